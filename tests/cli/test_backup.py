"""Backups of running members: complete, incremental, resumed, refused; and new clusters made of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumlog import LocalCluster, StoreConfig, connect
from quorumlog.config import KIB
from quorumlog.server.free_ports import free_ports
from tests.cli.conftest import Cli, objects, plain
from tests.waiting import wait_until_identical

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
    assert f"index 0 to {end + 100}" in plain(cli("inspect", directory).stdout)


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
        rows = log.status()
        assert {row.cluster_id for row in rows} == {said["cluster_id"]}
        assert all(row.voters == count and not row.problems and not row.waits_for for row in rows)
