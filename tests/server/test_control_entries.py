"""Control entries in a real cluster: who may write them, and that no reader is given one."""

from __future__ import annotations

import pytest

from quorumlog import IndexOutOfRange, LocalCluster, StoreConfig, connect
from quorumlog.log_state.control_entries import LEVEL, Keep, TimeMark
from quorumlog.server.node_driver import NodeDriver
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import OsDisk
from quorumlog.store.state_files import saved_positions
from quorumlog.store.verification import inspect_directory, verify_directory
from tests.waiting import eventually, propose

SMALL = StoreConfig(
    segment_bytes=256 * 1024, index_segment_bytes=32 * 1024, reserve_step_bytes=64 * 1024
)


def driver_of(cluster: LocalCluster, member_id: str) -> NodeDriver:
    return cluster.server(member_id).drivers[0]


def write(driver: NodeDriver, body: TimeMark | Keep) -> None:
    end_index = driver.node.committed_index
    propose(driver, body)
    eventually(lambda: driver.node.committed_index > end_index)


def test_no_reader_is_given_a_control_entry() -> None:
    with LocalCluster(3, storage=SMALL) as cluster, connect(cluster.servers) as log:
        leader = driver_of(cluster, cluster.leader())
        eventually(lambda: not leader.members_below(LEVEL))
        first = log.append(b"a").last_index
        write(leader, TimeMark(1_000))
        write(leader, Keep(0))
        last = log.append(b"b", expected_last=first).last_index
        assert last == first + 3
        for member in cluster.running:
            entries = list(log.read(0, last + 1, from_member=member))
            assert [(e.index, e.body) for e in entries] == [(first, b"a"), (last, b"b")]
        with pytest.raises(IndexOutOfRange, match="the TIME of term"):
            log.get(first + 1)
        paths = [str(cluster.data_dir(member)) for member in cluster.running]
        for member in list(cluster.running):
            cluster.stop(member)
        for path in paths:
            assert verify_directory(OsDisk(), path).ok
            reader = DirectoryReader(OsDisk(), path)
            bodies = [e.body for batch in reader.batches(0, last + 1) for e in batch.entries()]
            assert bodies == [b"a", b"b"]


def test_the_state_at_each_boundary_is_saved_beside_the_work_of_a_member() -> None:
    with LocalCluster(3, storage=SMALL) as cluster:
        with connect(cluster.servers) as log:
            for _ in range(10):
                log.append_batch([bytes(50_000)] * 2)
        paths = [str(cluster.data_dir(member)) for member in cluster.running]
        eventually(lambda: all(len(saved_positions(OsDisk(), path)) >= 3 for path in paths))
        for member in list(cluster.running):
            cluster.stop(member)
        for path in paths:
            states = inspect_directory(OsDisk(), path).states
            assert len(states) >= 3 and not any(state.problem for state in states)


def test_a_member_that_was_not_heard_of_keeps_them_out() -> None:
    with LocalCluster(3, storage=SMALL) as cluster, connect(cluster.servers) as log:
        log.append(b"a")
        leader = driver_of(cluster, cluster.leader())
        eventually(lambda: not leader.members_below(LEVEL))
        peer = next(iter(leader.peers.values()))
        peer.level = 0
        assert leader.members_below(1) == [peer.member_id]
