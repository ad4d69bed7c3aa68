"""Backups of running members: complete, incremental, resumed, refused; and new clusters made of them."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import msgspec
import pytest

import quorumlog
from quorumlog import LocalCluster, StoreConfig, connect
from quorumlog.config import KIB
from quorumlog.kv.client.blocking_store import KeyValueClient
from quorumlog.kv.testing import LocalStores
from quorumlog.server.free_ports import free_ports
from quorumlog.store.disk import OsDisk
from quorumlog.store.state_files import decode_backup, encode_backup, load_backup
from tests.cli.conftest import Cli, objects, plain
from tests.dropping import drop_before_newest_boundary
from tests.waiting import eventually, wait_until_identical

Start = Callable[..., subprocess.Popen[bytes]]

STORAGE = StoreConfig(segment_bytes=16 * KIB, index_segment_bytes=1 * KIB)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(members=3, directory=tmp_path / "old", storage=STORAGE) as cluster:
        yield cluster


def bodies(first: int, count: int) -> list[bytes]:
    return [b"%d:" % number + bytes(number * 37 % 900) for number in range(first, first + count)]


def read_bodies(cli: Cli, path: Path) -> list[str]:
    result = cli("read", "--path", path, "--format", "hex")
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_a_log_is_backed_up_while_it_works_and_later_what_is_new(
    cli: Cli, running: LocalCluster, tmp_path: Path
) -> None:
    directory = tmp_path / "backup"
    given = ("backup", "--servers", running.servers, "--to", directory)
    with connect(running.servers) as log:
        log.append_batch(bodies(0, 300))
        end = log.end_index()
        result = cli(*given, "--json")
        assert result.exit_code == 0, result.output
        (said,) = objects(result.stdout)
        assert (said["first_index"], said["last_index"], said["new_entries"]) == (0, end, end + 1)
        assert said["member_id"] != running.leader()
        log.append_batch(bodies(300, 100))
        (said,) = objects(cli(*given, "--json").stdout)
        assert (said["last_index"], said["new_entries"]) == (end + 100, 100)
        (said,) = objects(cli(*given, "--json").stdout)
        assert (said["last_index"], said["new_entries"], said["member_id"]) == (end + 100, 0, "")
        wait_until_identical(log)
        held = [f"{entry.index} {entry.term} {entry.body.hex()}" for entry in log.read(0)]
    for member in running.members:
        running.stop(member.member_id) if member.member_id != running.leader() else None
    verified = cli("verify", directory, *(running.data_dir(m.member_id) for m in running.members))
    assert verified.exit_code == 0, verified.output
    assert read_bodies(cli, directory) == held
    shown = plain(cli("inspect", directory).stdout)
    assert f"index 0 to {end + 100}" in shown
    assert f"of group default, cluster {said['cluster_id']}; complete up to index {end + 100}" in shown
    (inspected,) = objects(cli("inspect", directory, "--json").stdout)
    assert inspected["backup"]["last_index"] == end + 100
    result = cli("recover", directory)
    assert result.exit_code == 2
    assert "is a backup and no member's directory" in plain(result.stderr)


@pytest.mark.parametrize("count", [1, 3])
def test_a_backup_becomes_a_new_cluster_that_elects_by_itself(
    cli: Cli, running: LocalCluster, tmp_path: Path, count: int
) -> None:
    directory = tmp_path / "backup"
    with connect(running.servers) as log:
        log.append_batch(bodies(0, 200))
        old = [(entry.index, entry.term, entry.body) for entry in log.read(0)]
        (taken,) = objects(
            cli("backup", "--servers", running.servers, "--to", directory, "--json").stdout
        )
    ports = free_ports(count)
    members = ",".join(f"n{number}=127.0.0.1:{port}" for number, port in enumerate(ports))
    targets = [f"n{number}={tmp_path / 'new' / f'n{number}'}" for number in range(count)]
    result = cli(
        "restore",
        "--from",
        directory,
        "--members",
        members,
        *(f"--to={each}" for each in targets),
        "--json",
    )
    assert result.exit_code == 0, result.output
    (said,) = objects(result.stdout)
    assert said["last_index"] == taken["last_index"]
    assert said["cluster_id"] != taken["cluster_id"]
    paths = [tmp_path / "new" / f"n{number}" for number in range(count)]
    assert cli("verify", *paths).exit_code == 0
    logs = [
        [(path / "data" / name.name).read_bytes() for name in sorted((path / "data").iterdir())]
        for path in paths
    ]
    assert all(each == logs[0] for each in logs)
    with (
        LocalCluster(members=count, directory=tmp_path / "new", storage=STORAGE, ports=ports) as cluster,
        connect(cluster.servers) as log,
    ):
        assert [(entry.index, entry.term, entry.body) for entry in log.read(0)] == old
        assert log.append(b"new").first_index > said["membership_index"]
        assert {row.cluster_id for row in log.status()} == {said["cluster_id"]}
        eventually(
            lambda: all(
                row.voters == count and not row.problems and not row.waits_for for row in log.status()
            )
        )


# ---------------------------------------------------------------- in the middle


class StallingRelay:
    """Between a client and a server: passes on so many bytes of answers and then nothing more, until it
    is told to go on."""

    def __init__(self, address: str, answer_bytes: int) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._left_bytes = answer_bytes
        self.stalled = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._sockets += [client, server]
            for source, target, is_answer in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._pass_on, args=(source, target, is_answer), daemon=True
                ).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        try:
            while data := source.recv(16384):
                if is_answer and self._left_bytes < len(data):
                    self.stalled.set()
                    return
                self._left_bytes -= len(data) if is_answer else 0
                target.sendall(data)
        except OSError:
            return


def test_a_backup_that_is_killed_in_the_middle_goes_on(cli: Cli, start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "backup"
    with LocalCluster(members=1, directory=tmp_path / "old") as cluster:
        with connect(cluster.servers) as log:
            for _ in range(12):
                log.append_batch([bytes(1000)] * 1000)
        with StallingRelay(cluster.servers, 8 << 20) as relay:
            process = start("backup", "--servers", relay.address, "--to", directory)
            assert relay.stalled.wait(60), process
            busy = cli("backup", "--servers", cluster.servers, "--to", directory)
            assert busy.exit_code == 2
            assert "is in use: another backup goes there" in plain(busy.stderr)
            process.kill()
            process.wait()
        refused = cli("restore", "--from", directory, "--members", "n0=h:1", "--to", f"n0={tmp_path}/x")
        assert refused.exit_code == 2
        assert "is a backup that was never complete; take it again" in plain(refused.stderr)
        (said,) = objects(
            cli("backup", "--servers", cluster.servers, "--to", directory, "--json").stdout
        )
        assert said["last_index"] == 12_000
        assert 0 < said["new_entries"] < 12_000
        cluster.stop("n0")
        assert cli("verify", directory, cluster.data_dir("n0")).exit_code == 0


def test_ctrl_c_says_where_it_goes_on(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "backup"
    with LocalCluster(members=1, directory=tmp_path / "old") as cluster:
        with connect(cluster.servers) as log:
            for _ in range(12):
                log.append_batch([bytes(1000)] * 1000)
        with StallingRelay(cluster.servers, 8 << 20) as relay:
            process = start("backup", "--servers", relay.address, "--to", directory)
            assert relay.stalled.wait(60), process
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=60)
            assert process.returncode == 130
            assert b"; repeat the command to continue there" in told


# ---------------------------------------------------------------- what is said


def test_what_is_said_to_people(cli: Cli, running: LocalCluster, tmp_path: Path) -> None:
    directory = tmp_path / "backup"
    with connect(running.servers) as log:
        log.append_batch(bodies(0, 50))
    result = cli("backup", "--servers", running.servers, "--to", directory)
    assert result.exit_code == 0, result.output
    assert "holds entries 0 to 50, 51 of them new (" in plain(result.stdout)
    assert "; verified, chain " in plain(result.stdout)
    given = ("--from", directory, "--members", "n0=127.0.0.1:21911", "--to", f"n0={tmp_path}/n0")
    result = cli("restore", *given, "--index", 20)
    text = plain(result.stdout)
    assert "restored entries 0 to 20 as cluster " in text
    served = (
        f"quorumlog serve --id n0 --group default --data-dir {tmp_path}/n0 --members n0=127.0.0.1:21911"
    )
    assert served in text
    assert "serve --config) that says segment_bytes = 16384 and index_segment_bytes = 1024" in text


def test_a_restored_store_is_started_as_a_store(cli: Cli, tmp_path: Path) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "n0"
    with LocalStores(members=1) as stores, KeyValueClient(stores.servers) as client:
        client.put("color", "blue")
        taken = cli("backup", "--servers", stores.cluster.servers, "--to", backup)
    assert taken.exit_code == 0, taken.output
    (address,) = [f"127.0.0.1:{port}" for port in free_ports(1)]
    given = ("--members", f"n0={address}", "--to", f"n0={restored}")
    result = cli("restore", "--from", backup, *given)
    assert f"quorumlog kv serve --id n0 --data-dir {restored} --members n0={address}" in plain(
        result.stdout
    )
    refused = cli("serve", "--id", "n0", "--data-dir", restored, "--members", f"n0={address}")
    assert refused.exit_code == 2
    assert "name another directory, or use quorumlog kv serve" in plain(refused.stderr)
    # Where the others of it are lost, too.
    (restored / "hardstate").write_bytes(b"\xff" * 8192)
    result = cli("recover", "--unsafe", restored, input=b"default\n")
    assert f"quorumlog kv serve --id n0 --data-dir {restored} --members n0={address}" in plain(
        result.stdout
    )


def test_a_backup_of_another_cluster_is_left_alone(
    cli: Cli, running: LocalCluster, tmp_path: Path
) -> None:
    directory = tmp_path / "backup"
    assert cli("backup", "--servers", running.servers, "--to", directory).exit_code == 0
    before = (directory / "backup").read_bytes()
    with LocalCluster(members=1, storage=STORAGE) as other:
        result = cli("backup", "--servers", other.servers, "--to", directory)
    assert result.exit_code == 2
    assert "is the backup of another log: its cluster id is" in plain(result.stderr)
    assert (directory / "backup").read_bytes() == before


def test_what_verify_says_of_a_directory_that_no_cluster_can_be_made_of(
    cli: Cli, running: LocalCluster, tmp_path: Path
) -> None:
    directory = tmp_path / "backup"
    assert cli("backup", "--servers", running.servers, "--to", directory).exit_code == 0
    assert cli("verify", directory).exit_code == 0
    record = directory / "backup"
    whole = record.read_bytes()

    def refused(says: str) -> None:
        result = cli("verify", directory)
        assert result.exit_code == 1
        assert says in plain(result.stdout)

    record.write_bytes(whole[:20] + b"ZZ" + whole[22:])
    refused("backup cannot be used: its CRC does not match")
    never_complete = msgspec.structs.replace(decode_backup(whole), cut=None)
    record.write_bytes(encode_backup(never_complete))
    refused("is a backup that was never complete")
    record.unlink()
    refused("backup: is missing, which records the end of the backup")


def test_a_hold_of_no_possible_name_begins_no_backup(
    cli: Cli, running: LocalCluster, tmp_path: Path
) -> None:
    directory = tmp_path / "backup"
    result = cli("backup", "--servers", running.servers, "--to", directory, "--hold", "a b")
    assert result.exit_code == 2
    assert "the name of a reader has 1 to 64 letters" in plain(result.stderr)
    assert not directory.exists()


def test_no_member_is_restored_into_the_backup_or_into_another_one(
    cli: Cli, running: LocalCluster, tmp_path: Path
) -> None:
    directory = tmp_path / "backup"
    assert cli("backup", "--servers", running.servers, "--to", directory).exit_code == 0
    restore = ("restore", "--from", directory, "--members", "n0=h:1,n1=h:2")
    for first, second in (
        (directory / "n0", tmp_path / "n1"),
        (tmp_path / "n0", tmp_path / "n0" / "n1"),
    ):
        result = cli(*restore, "--to", f"n0={first}", "--to", f"n1={second}")
        assert result.exit_code == 2
        assert "which is another directory of this command" in plain(result.stderr)
    assert not (tmp_path / "n0").exists()


def test_entries_that_were_deleted_before_they_were_copied(cli: Cli, tmp_path: Path) -> None:
    directory = tmp_path / "backup"
    with LocalCluster(members=1, directory=tmp_path / "old", storage=STORAGE) as cluster:
        given = ("backup", "--servers", cluster.servers, "--to", directory)
        assert cli(*given).exit_code == 0
        with connect(cluster.servers) as log:
            log.append_batch(bodies(0, 200))
        cluster.stop("n0")
        start = drop_before_newest_boundary(cluster.data_dir("n0"), STORAGE)
        cluster.restart("n0")
        result = cli(*given)
        assert result.exit_code == 1
        assert f"the log begins at index {start.point.index + 1} by now" in plain(result.stderr)
        assert cli("verify", directory).exit_code == 0
        again = tmp_path / "again"
        result = cli("backup", "--servers", cluster.servers, "--to", again, "--json")
        (said,) = objects(result.stdout)
        assert said["first_index"] == start.point.index + 1
        members = f"n0=127.0.0.1:{free_ports(1)[0]}"
        result = cli("restore", "--from", again, "--members", members, "--to", f"n0={tmp_path}/new/n0")
        assert result.exit_code == 0, result.output
        assert cli("verify", tmp_path / "new" / "n0").exit_code == 0
    port = int(members.rpartition(":")[2])
    with (
        LocalCluster(members=1, directory=tmp_path / "new", storage=STORAGE, ports=[port]) as cluster,
        connect(cluster.servers) as log,
    ):
        assert log.layout().begin_index == start.point.index
        assert log.append(b"new").term > said["last_term"]


def test_from_python(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with LocalCluster(members=1, storage=STORAGE) as cluster:
        with connect(cluster.servers) as log:
            log.append(b"one")
        taken = quorumlog.backup(cluster.servers, tmp_path / "b")
        again = quorumlog.backup(cluster.servers, tmp_path / "b", from_member="n0")
    assert (taken.last_index, again.new_entries) == (again.last_index, 0)
    new = {"n0": tmp_path / "new" / "n0"}
    restored = quorumlog.restore(tmp_path / "b", f"n0=127.0.0.1:{port}", new)
    with (
        LocalCluster(members=1, directory=tmp_path / "new", storage=STORAGE, ports=[port]) as cluster,
        connect(cluster.servers) as log,
    ):
        assert [entry.body for entry in log.read(0)] == [b"one"]
        assert log.status()[0].cluster_id == restored.cluster_id != taken.cluster_id


def test_up_to_a_time_by_the_marks_of_the_members(cli: Cli, tmp_path: Path) -> None:
    with LocalCluster(members=1, storage=STORAGE, time_marks=True) as cluster:
        with connect(cluster.servers) as log:
            log.append_batch(bodies(0, 50))
        given = ("backup", "--servers", cluster.servers, "--to", tmp_path / "b")
        (said,) = objects(cli(*given, "--json").stdout)
    mark = datetime.fromtimestamp(said["time_ms"] / 1000, UTC)
    given = ("restore", "--from", tmp_path / "b", "--members", "n0=h:1", "--to", f"n0={tmp_path}/n0")
    result = cli(*given, "--time", (mark - timedelta(milliseconds=1)).isoformat())
    assert result.exit_code == 2
    assert "is of a later time, at index 1; choose a later one" in plain(result.stderr)
    (restored,) = objects(cli(*given, "--time", mark.isoformat(), "--json").stdout)
    assert restored["last_index"] == said["last_index"] == 51


def test_a_reader_that_is_no_archive_is_not_led_past_what_it_has_not_read(
    cli: Cli, tmp_path: Path
) -> None:
    with LocalCluster(members=1, store="memory") as cluster, connect(cluster.servers) as log:
        reader = log.reader("billing", hold=True)
        log.append_batch(bodies(0, 5))
        given = ("backup", "--servers", cluster.servers, "--to", tmp_path / "b", "--hold", "billing")
        result = cli(*given)
        assert result.exit_code == 2
        assert f"billing is already a reader of the log, at position {reader.position}" in plain(
            result.stderr
        )
        assert load_backup(OsDisk(), str(tmp_path / "b")) is None
        again = log.reader("billing")
        assert (again.position, again.hold) == (reader.position, True)


def test_what_no_backup_holds_yet_is_kept(cli: Cli, running: LocalCluster, tmp_path: Path) -> None:
    given = ("backup", "--servers", running.servers, "--to", tmp_path / "b", "--hold", "nightly")
    with connect(running.servers) as log:
        for round_number in range(2):
            log.append_batch(bodies(0, 50))
            eventually(lambda: cli(*given).exit_code == 0)  # once all members know of readers
            record = load_backup(OsDisk(), str(tmp_path / "b"))
            assert record is not None and record.cut is not None
            (reader,) = log.readers()
            assert (reader.name, reader.position, reader.hold) == (
                "nightly",
                record.cut.index + 1,
                "archive",
            ), round_number
    result = cli(*given, "--from-member", "n0")
    assert result.exit_code == 2
    assert "--hold and --from-member exclude each other" in plain(result.stderr)


def test_a_log_that_lets_go_of_its_first_entries_waits_for_the_backup(cli: Cli, tmp_path: Path) -> None:
    storage = replace(STORAGE, retention_bytes=32 * KIB)
    with LocalCluster(members=3, storage=storage) as cluster, connect(cluster.servers) as log:
        given = ("backup", "--servers", cluster.servers, "--to", tmp_path / "b", "--hold", "nightly")
        eventually(lambda: cli(*given).exit_code == 0)  # once all members know of readers
        for _ in range(3):
            for number in range(3):
                log.append_batch(bodies(100 * number, 100))
            (said,) = objects(cli(*given, "--json").stdout)
            assert said["first_index"] == 0 < said["new_entries"]
            begins = [row.ledger_begin_index for row in log.status()]
            assert max(begins) <= said["last_index"]
            eventually(lambda: min(row.ledger_begin_index for row in log.status()) > 0)
        (inspected,) = objects(cli("inspect", tmp_path / "b", "--json").stdout)
        assert (inspected["ledger_begin_index"], inspected["damage"]) == (0, [])
        assert len(read_bodies(cli, tmp_path / "b")) == 900
        assert log.layout("any").begin_index > 0


def test_without_a_majority_what_one_member_knows(
    cli: Cli, running: LocalCluster, tmp_path: Path
) -> None:
    with connect(running.servers) as log:
        end = log.append_batch(bodies(0, 50)).last_index
        wait_until_identical(log)
    left, *gone = [member.member_id for member in running.members]
    for member_id in gone:
        running.kill(member_id)
    given = ("backup", "--servers", running.servers, "--to", tmp_path / "b")
    result = cli(*given, "--timeout", 1)
    assert result.exit_code == 1
    assert "--from-member" in plain(result.stderr)
    (said,) = objects(cli(*given, "--from-member", left, "--json").stdout)
    assert (said["last_index"], said["member_id"]) == (end, left)
    result = cli(*given, "--from-member", gone[0])
    assert result.exit_code == 1
    assert f"{gone[0]} cannot be reached" in plain(result.stderr)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--to", "n0"), "--to 'n0' must look like n0=/restored/n0"),
        (("--to", "n0=a", "--to", "n0=b"), "--to names n0 twice"),
        (("--to", "n0=a", "--time", "yesterday"), "--time 'yesterday' is neither a duration"),
        (("--to", "n0=a", "--time", "2026-11-23T12:00:00Z", "--index", "3"), "exclude each other"),
    ],
)
def test_slips_of_a_restore(cli: Cli, tmp_path: Path, options: tuple[str, ...], what: str) -> None:
    result = cli("restore", "--from", tmp_path, "--members", "n0=h:1", *options)
    assert result.exit_code == 2
    assert what in plain(result.stderr)


def test_a_backup_that_waits_for_a_leader_says_why(cli: Cli, tmp_path: Path) -> None:
    cluster = LocalCluster(3, directory=tmp_path / "data")
    try:
        cluster.restart("n0")
        servers = cluster.servers.split(",")[0]
        told = cli("backup", "--servers", servers, "--to", tmp_path / "backup", "--timeout", "0.5")
    finally:
        cluster.close()
    reason = "waits for a leader (n0: forming: waits for n1, n2 (not connected))"
    assert plain(told.stderr).startswith(reason)
