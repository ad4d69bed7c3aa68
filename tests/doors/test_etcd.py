"""Real etcds of several versions beside our members, and clients of etcd as they are published."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import encryption
from harness.etcd import builds, clients
from harness.etcd.answers import ALL, OURS, SIDES, Recorded, replay
from harness.etcd.definitions import definitions
from harness.etcd.servers import Side, ours, running
from harness.etcd.session import Session
from nemesis.kv.run import run as nemesis
from quorumlog.cli import certificates
from tests.kv import etcdctl
from tests.kv.test_etcd_script import lines
from tests.waiting import eventually

pytestmark = [pytest.mark.doors, pytest.mark.processes, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
CLIENTS = Path(clients.__file__).parent
RECORDED = Recorded()


@pytest.fixture(scope="module", params=SIDES)
def side(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    """It answers. Ours is among them: what clients need must be there with a real etcd, too."""
    folder = tmp_path_factory.mktemp("side")
    version = request.param
    context = ours(folder / OURS) if version == OURS else running(builds.etcd(version).server, folder)
    with context as found:
        with Session(found, "ready"):
            pass
        yield found


@pytest.fixture
def name_of_side(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["side"])


@pytest.mark.parametrize("name", ALL)
def test_a_scenario_is_answered_as_it_was(side: Side, name_of_side: str, name: str) -> None:
    assert lines(replay(side, name)) == lines(RECORDED.steps(name, name_of_side))


@pytest.mark.parametrize("version", builds.VERSIONS)
def test_messages_have_the_fields_that_etcds_have(version: str) -> None:
    """What we define is defined alike, name by name and number by number."""
    product = definitions((ROOT / "src/quorumlog/kv/etcd/messages.proto").read_text())
    theirs = {
        message: fields
        for path in builds.definitions_of(version)
        for message, fields in definitions(path.read_text()).items()
    }
    for message, fields in theirs.items():
        if message in product:
            assert fields.items() <= product[message].items(), message
    if version == builds.VERSIONS[-1]:
        assert product.keys() <= theirs.keys()


@pytest.mark.parametrize("use", etcdctl.USES)
@pytest.mark.parametrize("version", builds.VERSIONS)
def test_etcdctl(side: Side, version: str, use: etcdctl.Use) -> None:
    use(etcdctl.Etcdctl(builds.etcd(version).etcdctl, side.grpc))


@pytest.mark.parametrize("version", builds.VERSIONS)
def test_etcdctl_manages_users_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    authority = tmp_path / "ca"
    certificates.init(authority, "test")
    monkeypatch.setenv(encryption.VARIABLE, str(authority))
    with ours(tmp_path / "members") as side:
        endpoints = [f"https://{side.grpc[0]}"]  # a token is known to the member that gave it
        ctl = etcdctl.Etcdctl(
            builds.etcd(version).etcdctl, endpoints, f"--cacert={authority / 'ca.crt'}"
        )
        eventually(lambda: ctl.answers("endpoint", "health"))
        etcdctl.use_users(ctl)


def run(*command: str | Path) -> list[str]:
    """The lines that it prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_recipes_of_clientv3(side: Side) -> None:
    steps = run(builds.recipes(), ",".join(side.grpc))
    assert steps == ["mutex", "election", "stm", "watch", "leases"]


@pytest.mark.parametrize("client", ["python_etcd3", "aetcd"])
def test_clients_in_python(side: Side, client: str) -> None:
    python = builds.environment(CLIENTS / f"{client}.txt")
    steps = run(python, CLIENTS / f"use_{client}.py", side.grpc[0])
    assert steps == ["keys", "transactions", "watches", "leases", "locks", "cluster"]


def test_what_patroni_asks(side: Side) -> None:
    python = builds.environment(ROOT / "nemesis/patroni/requirements.txt")
    steps = run(python, CLIENTS / "use_patroni.py", ",".join(side.gateways))
    assert steps == ["initialize", "leader", "config", "switchover"]


def test_porcupine_takes_histories_under_faults_to_be_linearizable(tmp_path: Path) -> None:
    """Of clients of etcd's API, with members killed, stopped and cut off."""
    faults = ("kill", "pause", "cut")
    report = nemesis(tmp_path, seed=3, rounds=3, faults=faults, over_etcd=True, porcupine=True)
    assert report.counts["keys that Porcupine takes to be linearizable"] == report.keys
