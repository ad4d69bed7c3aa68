"""What counts as the same log in several directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.directories import compare_directories
from quorumlog import LocalCluster, StoreConfig, connect
from quorumlog.config import MIB
from tests.waiting import wait_until_identical

STORAGE = StoreConfig(segment_bytes=1 * MIB, index_segment_bytes=64 * 1024)


def write(directory: Path, bodies: list[bytes]) -> list[Path]:
    with LocalCluster(3, directory=directory, storage=STORAGE) as cluster:
        with connect(cluster.servers) as log:
            log.append_batch(bodies)
            wait_until_identical(log)
        leader = cluster.leader()
        for member in sorted(cluster.running, key=lambda member: member == leader):
            cluster.stop(member)
        return [cluster.data_dir(member.member_id) for member in cluster.members]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write(tmp_path_factory.mktemp("one"), [b"body %d" % number for number in range(100)])


def test_members_that_stopped_in_order_hold_the_same_log(written: list[Path]) -> None:
    result = compare_directories(written)
    assert result.agrees, result.detail
    assert "101 entries" in result.detail  # and the no-op that opened the term


def test_another_log_differs(written: list[Path], tmp_path: Path) -> None:
    others = write(tmp_path, [b"other %d" % number for number in range(100)])
    result = compare_directories([written[0], others[1]])
    assert not result.agrees
    assert "differ from index 1 on" in result.detail


def test_a_shorter_log_is_not_the_same(written: list[Path], tmp_path: Path) -> None:
    shorter = write(tmp_path, [b"body %d" % number for number in range(60)])
    result = compare_directories([written[0], shorter[0]])
    assert not result.agrees
    assert "end at" in result.detail


def test_damage_is_named(written: list[Path], tmp_path: Path) -> None:
    damaged = write(tmp_path, [b"body %d" % number for number in range(100)])
    segment = next(path for path in sorted((damaged[0] / "data").iterdir()))
    data = segment.read_bytes()
    place = data.index(b"body 50")
    segment.write_bytes(data[:place] + b"BODY 50" + data[place + 7 :])
    result = compare_directories(damaged)
    assert not result.agrees
    assert str(damaged[0]) in result.detail
