"""Members that come back to a group whose logs begin above all that they hold."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quorumlog import (
    GroupConfig,
    IndexOutOfRange,
    LedgerClient,
    LedgerServer,
    LocalCluster,
    MemberAddress,
    StoreConfig,
    connect,
)
from quorumlog.server.free_ports import free_ports
from quorumlog.server.local_cluster import CONSENSUS, _MemberThread
from quorumlog.server.node_driver import NodeDriver
from tests.server.test_cluster import assert_directories_identical
from tests.server.test_control_entries import driver_of
from tests.waiting import eventually, wait_until_identical

SEGMENTS = StoreConfig(
    segment_bytes=16 * 1024, index_segment_bytes=4 * 1024, reserve_step_bytes=16 * 1024
)


def fill(log: LedgerClient, count: int = 200) -> None:
    for _ in range(count // 20):
        log.append_batch([b"x" * 500] * 20)


def drop(driver: NodeDriver) -> int:
    """At the newest boundary that may be: the index of the first entry that is left."""

    def try_to_drop() -> bool:
        asked: list[bool] = []

        def begin() -> None:
            node, store = driver.node, driver.node.store
            last = min(node.durable_committed_index, store.durable.index - 1)
            starts = [s for s in store.boundaries.saved() if store.begin.index < s.point.index <= last]
            asked.append(bool(starts) and node.drops.begin(starts[0]))

        driver._loop.call_soon_threadsafe(lambda: driver.enter(None, begin))
        return eventually(lambda: asked)[0]

    node = driver.node
    eventually(lambda: node.durable_committed_index == node.store.end.index, what="all of it committed")
    eventually(try_to_drop, what="a boundary to drop at")
    eventually(lambda: not driver.node.drops.is_under_way, what="the drop")
    return driver.node.store.begin.index + 1


@pytest.mark.parametrize("is_wiped", [False, True])
def test_a_member_comes_back_to_a_log_that_begins_above_its_own(is_wiped: bool) -> None:
    with LocalCluster(3, storage=SEGMENTS) as cluster, connect(cluster.servers) as log:
        fill(log, 20)
        wait_until_identical(log)
        away = next(member for member in cluster.running if member != cluster.leader())
        cluster.stop(away)
        fill(log)
        for member in cluster.running:
            driver = driver_of(cluster, member)
            # The states at the boundaries are saved beside: the newest may not be there yet.
            eventually(
                lambda driver=driver: drop(driver) > 30, what="a begin above the end of who is away"
            )
        if is_wiped:
            shutil.rmtree(cluster.data_dir(away))
        first = max(driver_of(cluster, member).node.store.begin.index for member in cluster.running) + 1
        cluster.restart(away)
        wait_until_identical(log)
        node = driver_of(cluster, away).node
        assert node.store.begin.index > 20
        assert next(iter(log.read(first, first + 3, from_member=away))).index == first
        with pytest.raises(IndexOutOfRange) as refused:
            list(log.read(1, from_member=away))
        assert refused.value.ledger_begin_index == node.store.begin.index + 1
        assert "are gone here; read from there on" in str(refused.value)
        fill(log, 40)
        assert_directories_identical(cluster, log)


def test_who_asks_a_member_while_it_begins_anew_is_answered() -> None:
    """A tail of entries goes on, with the member that it reads from among those that begin anew."""
    with LocalCluster(3, storage=SEGMENTS) as cluster, connect(cluster.servers) as log:
        fill(log, 20)
        wait_until_identical(log)
        leader = cluster.leader()
        away = next(member for member in cluster.running if member != leader)
        cluster.stop(away)
        fill(log)
        begin = drop(driver_of(cluster, leader))
        end = log.append(b"last").last_index
        with ThreadPoolExecutor() as threads, connect(cluster.servers) as reader:
            cluster.restart(away)

            def read() -> int:
                return next(iter(reader.tail(end, from_member=away))).index

            reads = [threads.submit(read) for _ in range(4)]
            assert [each.result(timeout=60) for each in reads] == [end] * 4
        assert driver_of(cluster, away).node.store.begin.index + 1 == begin
        wait_until_identical(log)


def test_another_group_of_the_same_process_goes_on(tmp_path: Path) -> None:
    """One of its groups begins anew; the connections of clients stay."""
    ports = free_ports(3)
    members = tuple(MemberAddress(f"n{i}", "127.0.0.1", port) for i, port in enumerate(ports))
    servers = ",".join(map(str, members))
    groups = {
        member.member_id: [
            GroupConfig(
                member_id=member.member_id,
                members=members,
                data_dir=str(tmp_path / group / member.member_id),
                group=group,
                consensus=CONSENSUS,
                storage=SEGMENTS,
            )
            for group in ("one", "other")
        ]
        for member in members
    }
    running = {name: _MemberThread(LedgerServer(configs), name) for name, configs in groups.items()}
    try:
        for thread in running.values():
            thread.wait_started()
        with connect(servers, group="one") as one, connect(servers, group="other") as other:
            fill(one, 20)
            other.append(b"before")
            wait_until_identical(one)
            leader_id = next(row.leader_id for row in one.status() if row.leader_id)
            away = next(name for name in running if name != leader_id)
            running.pop(away).stop()
            fill(one)
            drivers = {name: thread.server.drivers for name, thread in running.items()}
            (leading,) = [d for d in drivers[leader_id] if d.config.group == "one"]
            drop(leading)
            running[away] = _MemberThread(LedgerServer(groups[away]), away)
            running[away].wait_started()
            wait_until_identical(one)
            wait_until_identical(other)
            found = {d.config.group: d.node.store.begin.index for d in running[away].server.drivers}
            assert found == {"one": leading.node.store.begin.index, "other": -1}
            assert [entry.body for entry in other.read(0)] == [b"before"]
    finally:
        for thread in running.values():
            thread.stop()


@pytest.mark.parametrize("how", ["stop", "kill", "go on"])
def test_a_server_ends_in_order_while_one_of_its_members_begins_anew(how: str) -> None:
    with LocalCluster(3, storage=SEGMENTS) as cluster, connect(cluster.servers) as log:
        fill(log, 20)
        wait_until_identical(log)
        member = next(member for member in cluster.running if member != cluster.leader())
        server, driver = cluster.server(member), driver_of(cluster, member)
        driver._loop.call_soon_threadsafe(server._reopen, driver, "test")
        if how == "stop":
            cluster.stop(member)
        elif how == "kill":
            cluster.kill(member)
        else:
            eventually(lambda: driver_of(cluster, member) is not driver, what="another node")
        assert server.failure is None
        if how != "go on":
            cluster.restart(member)  # the directory is free
        fill(log, 20)
        assert_directories_identical(cluster, log)
