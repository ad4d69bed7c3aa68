"""`quorumlog kv`, against three members in this process and one of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

from quorumlog.cli.main import app
from quorumlog.kv import connect
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.service import StoreOptions
from quorumlog.kv.testing import LocalStores
from quorumlog.server.free_ports import free_ports, is_free
from quorumlog.store.ledger_space import LedgerSpace
from quorumlog.version import IS_COMPILED, VERSION
from tests.cli.named_options import options_that_do_not_exist
from tests.kv.etcd_grpc import EtcdCalls
from tests.waiting import eventually

Kv = Callable[..., Result]


@pytest.fixture(scope="module")
def stores() -> Iterator[LocalStores]:
    with LocalStores() as made:
        yield made


@pytest.fixture
def kv(stores: LocalStores) -> Iterator[Kv]:
    def run(*arguments: str, given: str | None = None, status: int = 0) -> Result:
        environment = {"QUORUMLOG_KV_SERVERS": stores.servers}
        result = CliRunner().invoke(app, ["kv", *arguments], input=given, env=environment)
        assert result.exit_code == status, (result.output, result.exception)
        assert options_that_do_not_exist(["kv", *arguments], result.stderr) == [], result.stderr
        return result

    run("delete", "", "--prefix")
    yield run


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_keys_are_put_read_and_deleted(kv: Kv, tmp_path: Path) -> None:
    revision = int(kv("put", "color", "blue").stdout)
    assert kv("get", "color").stdout == "blue\n"
    assert kv("put", "color", given="green").stdout == f"{revision + 1}\n"
    assert kv("get", "color", "--revision", str(revision)).stdout == "blue\n"
    kv("get", "nothing", status=1)
    changed = rows(kv("put", "color", "red", "--prev-kv", "--json"))[0]
    assert changed["prev_kv"]["value"] == "green"
    kv("put", "color", "white", "--expect-revision", "1", status=1)
    read = rows(kv("get", "color", "--json"))[0]["mod_revision"]
    again = rows(kv("put", "color", "red", "--expect-revision", str(read), "--prev-kv", "--json"))[0]
    assert again["prev_kv"]["value"] == "red"
    kv("put", "size", "3", "--expect-revision", "0")
    assert kv("range", "", "--prefix").stdout == "color\tred\nsize\t3\n"
    assert kv("range", "a", "d", "--keys-only").stdout == "color\n"
    assert kv("range", "a", "--count").stdout == "2\n"
    row = rows(kv("range", "size", "--json"))[0]
    assert (row["key"], row["value"], row["version"]) == ("size", "3", 1)
    file = tmp_path / "keys.jsonl"
    assert rows(kv("snapshot", str(file), "--json"))[0]["keys"] == 2
    assert len(file.read_text().splitlines()) == 2
    assert "exists: name another file" in kv("snapshot", str(file), status=2).output
    kv("put", "third", "3")
    kv("snapshot", str(file), "--replace")
    assert len(file.read_text().splitlines()) == 3
    assert "not a regular file" in kv("snapshot", str(tmp_path), "--replace", status=2).output
    nowhere = kv("snapshot", str(tmp_path / "no" / "keys.jsonl"), status=2)
    assert "No such file or directory; name another file" in nowhere.output
    assert [each.name for each in tmp_path.iterdir()] == [file.name], "nothing half is left"
    kv("delete", "third")
    assert kv("delete", "color", "--prev-kv").stdout == "1\ncolor\tred\n"


def test_a_transaction_is_given_as_json(kv: Kv) -> None:
    txn = {
        "compare": [{"key": "a", "target": "create", "relation": "=", "than": 0}],
        "then": [{"put": {"key": "a", "value": "1"}}],
        "else": [{"range": {"key": "a"}}],
    }
    assert rows(kv("txn", given=json.dumps(txn)))[0]["succeeded"] is True
    again = rows(kv("txn", given=json.dumps(txn)))[0]
    assert again["succeeded"] is False
    assert again["answers"][0]["range"]["items"][0]["value"] == "1"
    compare = {"key": "a", "target": "creat", "than": 0}
    wrong = kv("txn", given=json.dumps({"compare": [compare]}), status=2)
    assert "target 'creat' is none of version, create, mod, value, lease" in wrong.stderr
    wrong = kv("txn", given='{"then": [{"jump": {"key": "a"}}]}', status=2)
    assert "unknown operation 'jump'" in wrong.output
    for given, what in (
        ('{"els": []}', "there is no 'els'"),
        ('{"then": [{"put": {"key": "a", "value": "1", "prev_key": true}}]}', "there is no 'prev_key'"),
        (
            '{"then": [{"put": {"key": "a", "value": "1", "lease": -1}}]}',
            "lease must be a number from 0 up, not -1",
        ),
        (
            '{"then": [{"range": {"key": "a", "limit": 1e30}}]}',
            "limit must be a number from 0 up, not 1e+30",
        ),
        ('{"then": [{"delete": {"key": "a", "prev_kv": "no"}}]}', "must be true or false"),
        ('{"then": [{"put": {"key": "a", "value": null}}]}', "value must be text or a number, not None"),
        ('{"then": [{"put": {"key": "a", "value": true}}]}', "value must be text or a number, not True"),
        ('{"then": [{"put": {"key_base64": "YQ==!", "value": "1"}}]}', "key_base64 is not base64"),
        (
            '{"then": [{"put": {"key": "a", "key_base64": "YQ==", "value": "1"}}]}',
            "key and key_base64 exclude each other",
        ),
    ):
        assert what in kv("txn", given=given, status=2).output
    number = {"then": [{"put": {"key": "a", "value": 1.5}}]}
    assert rows(kv("txn", given=json.dumps(number)))[0]["succeeded"] is True
    assert kv("get", "a").stdout == "1.5\n"
    put = {"put": {"key": "a", "value": "2", "prev_kv": True}}
    delete = {"delete": {"key": "a", "end_base64": "/w==", "prev_kv": True}}
    answers = [
        rows(kv("txn", "--json", given=json.dumps({"then": [each]})))[0] for each in (put, delete)
    ]
    assert answers[0]["answers"][0]["put"]["prev_kv"]["value"] == "1.5"
    assert answers[1]["answers"][0]["delete"]["prev_kvs"][0]["value"] == "2"


def test_keys_need_not_be_text(kv: Kv) -> None:
    """As the shell gives bytes that are none."""
    kv("put", "\udcff\udcfe", "\udcfe")
    assert rows(kv("range", "", "--prefix", "--json"))[0]["key_base64"] == "//4="
    assert kv("get", "\udcff\udcfe").stdout_bytes == b"\xfe\n"


def test_slips_are_told_in_a_sentence(kv: Kv) -> None:
    for arguments, what in (
        (("delete", "a", "b", "--prefix"), "END and --prefix exclude each other"),
        (("range", "a", "b", "--prefix"), "END and --prefix exclude each other"),
        (("watch", "a", "b", "--prefix"), "END and --prefix exclude each other"),
        (("get", "a", "--revision", str(2**63)), "must be less than or equal to"),
        (("put", "a", "b", "--lease", str(2**70)), "must be less than or equal to"),
        (("compact", str(2**70)), "must be less than or equal to"),
        (("lease", "show", str(2**70)), "must be less than or equal to"),
        (("lease", "grant", "nan"), "nan"),
        (("put", "", "x"), "a key is text or bytes, at least one byte long"),
    ):
        assert what in kv(*arguments, status=2).output
    twice = json.dumps({"then": [{"put": {"key": "a", "value": "1"}}] * 2})
    assert "writes the key b'a' twice" in kv("txn", given=twice, status=2).output


def test_changes_are_told_and_history_ends(kv: Kv) -> None:
    revision = int(kv("put", "w", "1").stdout)
    kv("put", "w", "2")
    kv("delete", "w")
    seen = rows(kv("watch", "w", "--from", str(revision), "--limit", "3", "--prev-kv", "--json"))
    assert [row["type"] for row in seen] == ["put", "put", "delete"]
    assert seen[2]["prev_kv"]["value"] == "2"
    of_range = kv("watch", "v", "x", "--from", str(revision), "--limit", "2").stdout
    assert of_range == "put\tw\t1\nput\tw\t2\n"
    kv("compact", str(revision + 2))
    assert "compacted" in kv("get", "w", "--revision", str(revision), status=1).output
    assert "compacted" in kv("watch", "w", "--from", str(revision), status=1).output


def test_leases_locks_and_elections(kv: Kv, capfd: pytest.CaptureFixture[str]) -> None:
    lease = kv("lease", "grant", "30").stdout.strip()
    kv("put", "mine", "x", "--lease", lease)
    assert rows(kv("lease", "show", lease, "--json"))[0]["keys"] == [{"key": "mine"}]
    assert kv("lease", "keep-alive", lease).stdout == "30000 ms\n"
    assert lease in kv("lease", "list").stdout
    assert kv("lease", "revoke", lease).stdout == "1\n"
    assert "no lease" in kv("lease", "show", lease, status=1).output
    first = kv("lock", "endpoint", "--", "true").stdout
    assert int(kv("lock", "endpoint", "--", "true").stdout) > int(first)
    kv("lock", "endpoint", "--", "false", status=1)
    nobody = ("--servers", f"127.0.0.1:{free_ports(1)[0]}", "--wait", "0.1")
    assert "or no member answers" in kv("lock", "endpoint", *nobody, status=1).stderr
    kv("elect", "cron", "me", "--", "true")
    assert "cron has no leader" in kv("elect", "cron", status=1).output
    kv("lock", "endpoint", "--", "sh", "-c", "kill -TERM $$", status=128 + signal.SIGTERM)
    kv("lock", "endpoint", "--", "no-such-command", status=127)
    assert capfd.readouterr().err == "no-such-command cannot be run: No such file or directory\n"


def test_it_says_how_the_store_is(kv: Kv, stores: LocalStores) -> None:
    assert kv("health").stdout == "healthy\n"
    found = rows(kv("status", "--json"))
    assert [row["reachable"] for row in found] == [True] * 3
    assert sorted(row["role"] for row in found) == ["follower", "follower", "leader"]
    assert [row["release"] for row in found] == [VERSION] * 3
    heading, *members = kv("status").stdout.splitlines()
    assert heading.split()[-1] == "release"
    assert [member.split()[-1] for member in members] == [VERSION] * 3
    nobody = CliRunner().invoke(
        app, ["kv", "health", "--servers", f"127.0.0.1:{free_ports(1)[0]}", "--timeout", "0.2"]
    )
    assert nobody.exit_code == 1
    assert (nobody.stdout, "no server could be reached" in nobody.stderr) == ("", True)


@pytest.mark.skipif(IS_COMPILED, reason="a compiled core takes no other method")
def test_it_is_not_healthy_while_every_put_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with LocalStores(options=StoreOptions(quota_bytes=10_000_000)) as full:

        def kv(*arguments: str, given: str | None = None) -> Result:
            line = ["kv", *arguments, "--servers", full.servers, "--timeout", "0.5"]
            return CliRunner().invoke(app, line, input=given)

        eventually(lambda: kv("health").exit_code == 0)
        with monkeypatch.context() as patched:
            patched.setattr(LedgerSpace, "is_above_watermark", lambda space: True)
            # A busy machine may need longer for one of them than it has, which says nothing of space.
            eventually(lambda: "disk_full_ratio" in kv("put", "k", given="x" * 500_000).stderr)
            eventually(lambda: re.search("disk_full_ratio|no space on", kv("health").stderr))
            unhealthy = kv("health")
            assert (unhealthy.exit_code, unhealthy.stdout) == (1, "")
            told = kv("health", "--json")
            (row,) = rows(told)
            assert (told.exit_code, row["healthy"], bool(row["reason"])) == (1, False, True)
        eventually(lambda: kv("health").exit_code == 0)
        eventually(lambda: "quota" in kv("put", "k", given="x" * 1_000_000).stderr)
        eventually(lambda: "its quota is 10000000" in kv("health").stderr)


def test_addresses_that_cannot_be_are_told_by_their_option(tmp_path: Path) -> None:
    serve = ["kv", "serve", "--id", "n0", "--members", "n0=127.0.0.1:1", "--data-dir", str(tmp_path)]
    three = ["--members", "n0=127.0.0.1:1,n1=127.0.0.1:2,n2=127.0.0.1:3"]
    listen = "127.0.0.1:20921"
    for more, what in (
        (["--listen", "nonsense"], "--listen: 'nonsense' is not an address"),
        (["--etcd-gateway", "abc"], "--etcd-gateway: '127.0.0.1:abc' is not an address"),
        (["--listen", listen, "--etcd-gateway", "20921"], "have the same address"),
        ([*three, "--etcd-gateway", "2379", "--servers", ""], "--etcd-gateway needs --servers"),
        (["--etcd-gateway", "2379", "--servers", "x"], "--servers: 'x' is not an address"),
        (["--etcd", "abc"], "--etcd: '127.0.0.1:abc' is not an address"),
        (
            ["--etcd", "2379", "--etcd-gateway", "2379"],
            "--etcd-gateway and --etcd have the same address",
        ),
        ([*three, "--etcd", "2379", "--servers", ""], "--etcd needs --servers"),
    ):
        refused = CliRunner().invoke(app, [*serve, *more])
        assert (refused.exit_code, what in refused.output) == (2, True), refused.output


@pytest.mark.processes
def test_a_member_is_served_by_a_process(tmp_path: Path) -> None:
    port, listen = free_ports(2)
    command = [sys.executable, "-m", "quorumlog", "kv"]
    serve = [
        *command, "serve", "--id", "n0", "--members", f"n0=127.0.0.1:{port}",
        "--data-dir", str(tmp_path / "n0"), "--listen", f"127.0.0.1:{listen}", "--engine", "rocksdb",
    ]  # fmt: skip
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as member:
        assert member.stdout is not None and "listens on" in member.stdout.readline()
        put = ["kv", "put", "turn", "1", "--servers", f"127.0.0.1:{listen}"]
        done = CliRunner().invoke(app, put)
        assert done.exit_code == 0, done.output
        member.send_signal(signal.SIGTERM)
        _, errors = member.communicate(timeout=60)
        assert member.returncode == 0
        assert "the key-value store listens on" in errors


@pytest.mark.processes
def test_clients_of_etcd_have_ports_by_the_file_and_in_a_cluster_for_trials(tmp_path: Path) -> None:
    port, listen, etcd, gateway = free_ports(4)
    config = tmp_path / "n0.toml"
    config.write_text(f"""
member_id = "n0"
members = "n0=127.0.0.1:{port}"
data_dir = "{tmp_path / "n0"}"
[kv]
etcd = "{etcd}"
etcd_gateway = "{gateway}"
""")
    command = [sys.executable, "-m", "quorumlog"]
    serve = [*command, "kv", "serve", "--config", str(config), "--listen", f"127.0.0.1:{listen}"]
    first = first_of_free(3)
    dev = [*command, "dev", "--json", "--etcd", f"127.0.0.1:{first}"]
    for arguments, address in ((serve, f"127.0.0.1:{etcd}"), (dev, f"127.0.0.1:{first + 2}")):
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline()
            with EtcdCalls(address) as calls:
                calls.put("a", "1")
                assert calls.range("a").count == 1
                (url, *_) = (
                    calls.call("Cluster/MemberList", pb.MemberListRequest()).members[0].clientURLs
                )
                assert url.startswith("http://127.0.0.1:")
            if arguments is serve:
                asked = http.client.HTTPConnection("127.0.0.1", gateway, timeout=60)
                with closing(asked) as connection:
                    connection.request("POST", "/v3/kv/range", '{"key": "YQ=="}')
                    assert json.loads(connection.getresponse().read())["count"] == "1"
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            assert process.returncode == 0


def first_of_free(count: int) -> int:
    """Of so many ports, one after the other, that nobody uses."""
    return next(
        first
        for first in (port - count for port in free_ports(50))
        if all(is_free(first + each) for each in range(count))
    )


# ---------------------------------------------------------------- a command under a lock

WORK = """
{trap}
sh -c '{trap} echo child $$; while :; do sleep 0.05; done' &
echo shell $$
while :; do sleep 0.05; done
"""
"""A shell and its child, which both say who they are and go on until they are ended."""


class Locked:
    """`quorumlog kv lock` with a shell and its child."""

    def __init__(self, stores: LocalStores, *, trap: str = "", stdin: int = subprocess.DEVNULL) -> None:
        self.name = f"guarded {uuid4()}"
        lock = ["kv", "lock", self.name, "--servers", stores.servers, "--ttl", "3"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quorumlog", *lock, "--", "sh", "-c", WORK.format(trap=trap)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip().isdigit(), "the token"
        lines = [self.process.stdout.readline().split() for _ in range(2)]
        self.pids = [int(pid) for _, pid in lines]

    def is_working(self) -> bool:
        return any(map(runs, self.pids))

    def end(self) -> None:
        for pid in (self.process.pid, *self.pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture(params=["in a group of its own", "at a terminal"])
def locked(request: pytest.FixtureRequest, stores: LocalStores) -> Iterator[Locked]:
    if request.param == "in a group of its own":
        running = Locked(stores)
    else:
        controller, terminal = os.openpty()
        running = Locked(stores, stdin=terminal)
        request.addfinalizer(lambda: (os.close(controller), os.close(terminal)))
    yield running
    running.end()


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on_and_the_lock_is_released_behind_the_command(
    stores: LocalStores, locked: Locked, number: signal.Signals
) -> None:
    locked.process.send_signal(number)
    with connect(stores.servers) as kv, kv.lock(locked.name, timeout_ms=60_000):
        assert not locked.is_working()
    assert locked.process.wait(60) == 128 + number


@pytest.mark.processes
def test_a_command_takes_its_time_to_end_and_keeps_the_lock_so_long(
    stores: LocalStores, tmp_path: Path
) -> None:
    os.mkfifo(go := tmp_path / "go")
    slow = f"trap 'echo ends; read go < {go}; exit 3' TERM; echo works; while :; do sleep 0.05; done"
    lock = [sys.executable, "-m", "quorumlog", "kv", "lock", "slow", "--servers", stores.servers]
    with (
        subprocess.Popen([*lock, "--", "sh", "-c", slow], stdout=subprocess.PIPE, text=True) as process,
        connect(stores.servers) as kv,
    ):
        assert process.stdout is not None
        while process.stdout.readline() != "works\n":
            pass
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "ends\n"
        with pytest.raises(TimeoutError), kv.lock("slow", timeout_ms=200):
            pass
        go.write_text("on\n")
        assert process.wait(60) == 3


@pytest.mark.processes
def test_whoever_is_killed_under_a_lock_leaves_no_command_that_works(locked: Locked) -> None:
    locked.process.kill()
    eventually(lambda: not locked.is_working(), what="the end of the shell and its child")


@pytest.mark.processes
def test_a_command_ends_with_what_it_has_started_once_the_lock_is_lost(
    stores: LocalStores, locked: Locked
) -> None:
    with connect(stores.servers) as kv:
        (place,) = kv.prefix(locked.name).items
        kv.revoke(place.lease)
    assert locked.process.wait(60) == 1
    assert not locked.is_working()


@pytest.mark.processes
def test_what_ignores_signals_is_killed(stores: LocalStores) -> None:
    locked = Locked(stores, trap='trap "" TERM HUP;')
    try:
        locked.process.kill()
        eventually(lambda: not locked.is_working(), what="the end of the shell and its child")
    finally:
        locked.end()


@pytest.mark.parametrize(
    "line",
    [
        ("clock", "reset"),
        ("status",),
        ("read",),
        ("member", "list"),
        ("machine", "step-over", "kv", "1"),
    ],
)
def test_a_command_of_the_log_that_is_given_the_port_of_a_store_says_so(
    stores: LocalStores, line: tuple[str, ...]
) -> None:
    timeout = [] if line == ("status",) else ["--timeout", "3600"]
    result = CliRunner().invoke(app, [*line, *timeout, "--servers", stores.servers.split(",")[0]])
    assert result.exit_code == 1, result.output
    said = " ".join(result.stderr.split())
    assert "this port serves a key-value store; its log listens at" in said
