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
from harness.etcd.servers import Side, members, ours, running
from harness.etcd.session import Session
from harness.member_processes import MemberProcess, MemberProcesses
from nemesis.kv.run import run as nemesis
from quorumlog.cli import certificates
from quorumlog.kv.etcd.conversions import number_of
from quorumlog.server.free_ports import free_ports
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


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What members that are started meanwhile have certificates of."""
    folder = tmp_path / "ca"
    certificates.init(folder, "test")
    monkeypatch.setenv(encryption.VARIABLE, str(folder))
    return folder / "ca.crt"


def etcdctl_over_tls(side: Side, version: str, authority: Path) -> etcdctl.Etcdctl:
    """With all members as its endpoints; they answer."""
    endpoints = [f"https://{each}" for each in side.grpc]
    ctl = etcdctl.Etcdctl(builds.etcd(version).etcdctl, endpoints, f"--cacert={authority}")
    eventually(lambda: ctl.answers("endpoint", "health"))
    return ctl


@pytest.mark.parametrize("version", builds.VERSIONS)
def test_etcdctl_manages_users_over_tls(tmp_path: Path, authority: Path, version: str) -> None:
    with ours(tmp_path / "members") as side:
        etcdctl.use_users(etcdctl_over_tls(side, version, authority))


def leader_of(ctl: etcdctl.Etcdctl) -> str:
    """Its id, once all that answer name one that answers."""

    def found() -> str | None:
        told = ctl.known("endpoint", "status")
        leaders = {each["Status"]["leader"] for each in told}
        alive = {each["Status"]["header"]["member_id"] for each in told}
        return NUMBERS[leaders.pop()] if len(leaders) == 1 and leaders <= alive else None

    return eventually(found, what="a leader")


NUMBERS = {number_of(member_id): member_id for member_id in ("n0", "n1", "n2", "n3")}


def test_clients_that_log_in_go_on_where_leaders_are_killed(tmp_path: Path, authority: Path) -> None:
    """With three endpoints each: clientv3 puts, watches and keeps a lease alive; etcdctl gets."""
    with members(tmp_path / "members") as (side, processes):
        ctl = etcdctl_over_tls(side, "3.6", authority)
        ctl.run("user", "add", "root:sesame")
        root = ctl.as_user("root", "sesame")
        eventually(lambda: root.answers("get", "users/counter"))
        endpoints = ",".join(ctl.endpoints)
        command = [builds.recipes(), endpoints, str(authority), "root", "sesame"]
        client = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        try:
            assert client.stdin is not None and client.stdout is not None
            for turn in range(3):
                client.stdin.write(f"{turn}\n")
                assert client.stdout.readline() == f"{turn}\n"
                eventually(lambda: root.answers("get", "users/counter"))
                for member in processes.members:
                    if not member.running:
                        member.start()  # it knows no token of before
                leader = leader_of(root)
                processes[leader].kill()
            client.stdin.close()
            assert client.wait(60) == 0
        finally:
            client.kill()
            client.wait()


def test_etcdctl_adds_promotes_moves_and_removes_a_member(tmp_path: Path) -> None:
    folder = tmp_path / "members"
    addresses = [f"127.0.0.1:{port}" for port in free_ports(10)]
    stores, ports, (first, second) = addresses[:4], addresses[4:8], addresses[8:]

    def command_of(member_id: str) -> list[str]:
        place = int(member_id[1:])
        own = ["kv", "serve", "--listen", stores[place], "--servers", ",".join(stores)]
        return [*own, "--etcd", ports[place]]

    with MemberProcesses(folder, command_of=command_of) as processes:
        known = [f"{member.member_id}={member.address}" for member in processes.members]
        ctl = etcdctl.Etcdctl(builds.etcd("3.6").etcdctl, ports[:3])
        eventually(lambda: ctl.answers("endpoint", "health"))

        def joins(address: str) -> MemberProcess:
            listed = ",".join([*known, f"n3={address}"])
            return MemberProcess("n3", address, folder, listed, "", command=command_of("n3"))

        def listed() -> dict[str, tuple[str, bool]]:
            told = ctl.json("member", "list")["members"]
            return {each["name"]: (each["peerURLs"][0], each.get("isLearner", False)) for each in told}

        def number(member_id: str) -> str:
            return f"{number_of(member_id):x}"

        url = f"--peer-urls=http://n3@{first}"
        assert "is added as a learner" in ctl.refused("member", "add", "n3", url)
        nameless = f"--peer-urls=http://{first}"
        assert "with the id of the member" in ctl.refused("member", "add", "n3", nameless, "--learner")
        assert "n3 does not answer" in ctl.refused("member", "add", "n3", url, "--learner")
        ctl.run("put", "members/a", "1")
        member = joins(first)
        try:
            member.start()
            eventually(lambda: ctl.answers("member", "add", "n3", url, "--learner"))
            assert listed()["n3"] == (f"http://{first}", True) and len(listed()) == 4
            assert "already" in ctl.refused("member", "add", "n3", url, "--learner")
            ctl.run("member", "promote", number("n3"))
            assert listed()["n3"] == (f"http://{first}", False)
            assert "is a voter already" in ctl.refused("member", "promote", number("n3"))
            own = etcdctl.Etcdctl(builds.etcd("3.6").etcdctl, ports[3:])
            assert own.lines("get", "members/a") == ["members/a", "1"]
            member.kill()
            ctl.run("member", "update", number("n3"), f"--peer-urls=http://{second}")
            assert listed()["n3"] == (f"http://{second}", False)
            member = joins(second)
            member.start()
            eventually(lambda: own.answers("get", "members/a"))
            ctl.run("member", "remove", number("n3"))
            assert set(listed()) == {"n0", "n1", "n2"}
            assert "member not found" in ctl.refused("member", "remove", number("n3")).lower()
        finally:
            member.destroy()


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
