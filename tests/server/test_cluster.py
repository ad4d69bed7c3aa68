"""Whole clusters in this process: real servers and sockets, killed, restarted, wiped, handed over."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quorumlog import (
    AppendReceipt,
    AsyncLedgerClient,
    ConfigError,
    ConsensusConfig,
    IndexOutOfRange,
    LedgerClient,
    LocalCluster,
    OutcomeUnknown,
    Refused,
    StoreConfig,
    connect,
    connect_async,
)
from quorumlog.config import LARGEST_ENTRY_BYTES, MIB
from quorumlog.errors import BodyTooLarge, RequestTimeout, TransferFailed
from tests.waiting import assert_same_log, eventually, row_of, wait_until_identical

SMALL = StoreConfig(
    segment_bytes=256 * 1024, index_segment_bytes=32 * 1024, reserve_step_bytes=64 * 1024
)


def bodies_of(client, first: int = 0) -> list[bytes]:
    return [entry.body for entry in client.read(first)]


def assert_directories_identical(cluster: LocalCluster, client: LedgerClient) -> None:
    """Stops the members once all have the same end, the leader last, and compares their files."""
    end = wait_until_identical(client)
    leader = cluster.leader()
    for member in sorted(cluster.running, key=lambda member: member == leader):
        cluster.stop(member)
    assert_same_log((cluster.data_dir(m.member_id) for m in cluster.members), end=end)


@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_what_is_appended_is_read_back_in_order(members: int) -> None:
    with LocalCluster(members, storage=SMALL) as cluster, connect(cluster.servers) as client:
        receipts = [client.append(b"single %d" % i) for i in range(5)]
        batch = client.append_batch([b"batch %d" % i for i in range(500)])
        assert [r.first_index for r in receipts] == list(
            range(receipts[0].first_index, receipts[0].first_index + 5)
        )
        assert batch.count == 500
        assert batch.durability == "sync"
        expected = [b"single %d" % i for i in range(5)] + [b"batch %d" % i for i in range(500)]
        assert bodies_of(client) == expected
        assert client.get(batch.first_index + 7).body == b"batch 7"
        assert_directories_identical(cluster, client)


def test_every_member_serves_what_is_committed() -> None:
    with LocalCluster(3, storage=SMALL) as cluster, connect(cluster.servers) as client:
        client.append_batch([b"%d" % i for i in range(100)])
        wait_until_identical(client)
        for member in ("n0", "n1", "n2"):
            entries = list(client.read(0, from_member=member))
            assert [e.body for e in entries] == [b"%d" % i for i in range(100)]


def test_only_a_leader_that_a_majority_confirms_says_where_the_log_ends() -> None:
    """What is known to be committed it gives alone."""
    with LocalCluster(3, storage=SMALL) as cluster, connect(cluster.servers) as client:
        first_index = client.append_batch([b"%d" % i for i in range(10)]).first_index
        leader = cluster.leader()
        followers = [member for member in cluster.running if member != leader]
        for member in followers:
            cluster.kill(member)
        with connect(cluster.servers, timeout_ms=500) as impatient:
            assert impatient.get(first_index + 9).body == b"9"
            assert len(list(impatient.read(first_index, first_index + 10))) == 10
            assert len(list(impatient.read(0, from_member=leader))) == 10
            for to_the_end in (
                lambda: list(impatient.read(0)),
                lambda: list(impatient.read(0, limit=10)),
                lambda: impatient.get(first_index + 10),
                impatient.end_index,
            ):
                with pytest.raises(Refused):
                    to_the_end()
        cluster.restart(followers[0])
        assert len(bodies_of(client)) == 10


def test_more_reads_to_the_end_than_may_wait_at_once_all_end_well() -> None:
    async def read_all(servers: str) -> list[int]:
        async def read(log: AsyncLedgerClient) -> int:
            return len([entry async for entry in log.read(0, limit=2)])

        async with connect_async(servers) as log:
            await log.append_batch([b"a", b"b", b"c"])
            return await asyncio.gather(*(read(log) for _ in range(1500)))

    with LocalCluster(3, store="memory") as cluster:
        assert asyncio.run(read_all(cluster.servers)) == [2] * 1500


def test_a_read_to_the_end_has_what_any_client_was_told_before() -> None:
    """While leadership moves, and over connections to whoever led before."""
    with (
        LocalCluster(3, storage=SMALL) as cluster,
        connect(cluster.servers) as writer,
        connect(cluster.servers) as reader,
    ):
        for number in range(60):
            if number % 10 == 5:
                leader = cluster.leader()
                with contextlib.suppress(TransferFailed):
                    writer.transfer(next(m for m in cluster.running if m != leader))
            index = writer.append(b"%d" % number).first_index
            assert reader.end_index() >= index
            assert [entry.body for entry in reader.read(index)] == [b"%d" % number]


def test_a_killed_leader_loses_nothing_and_comes_back() -> None:
    with LocalCluster(3, storage=SMALL) as cluster, connect(cluster.servers) as client:
        acknowledged = [client.append(b"before %d" % i) for i in range(50)]
        killed = cluster.leader()
        cluster.kill(killed)
        attempts: list[bytes] = []

        def append_after() -> AppendReceipt | None:
            # The connection may die under the first attempt, whose outcome is unknown then.
            attempts.append(b"after %d" % len(attempts))
            try:
                return client.append(attempts[-1])
            except OutcomeUnknown:
                return None

        after = eventually(append_after)
        assert after.term > acknowledged[-1].term
        assert cluster.leader() != killed
        cluster.restart(killed)
        wait_until_identical(client)
        log = bodies_of(client)
        assert log[:50] == [b"before %d" % i for i in range(50)]
        assert set(log[50:]) <= set(attempts)
        assert log[-1] == client.get(after.first_index).body == attempts[-1]
        assert_directories_identical(cluster, client)


def test_all_members_killed_at_once_keep_every_acknowledged_entry() -> None:
    with LocalCluster(3, storage=SMALL) as cluster, connect(cluster.servers) as client:
        client.append_batch([b"x" * 1000] * 300)
        last = client.append(b"last")
        for member in cluster.running:
            cluster.kill(member)
        for member in ("n0", "n1", "n2"):
            cluster.restart(member)
        assert client.get(last.first_index).body == b"last"
        client.append(b"more")
        assert_directories_identical(cluster, client)


def test_a_member_that_lost_a_segment_file_is_repaired_by_the_others() -> None:
    with LocalCluster(3, storage=SMALL) as cluster, connect(cluster.servers) as client:
        client.append_batch([b"x" * 1000] * 900)
        wait_until_identical(client)
        damaged = next(m for m in cluster.running if m != cluster.leader())
        cluster.kill(damaged)
        (cluster.data_dir(damaged) / "data" / f"{SMALL.segment_bytes:020d}").unlink()
        cluster.restart(damaged)
        client.append(b"on")
        wait_until_identical(client)

        def problems() -> list[str]:
            return list(row_of(client, damaged).problems)

        eventually(lambda: not problems(), what="nothing left to repair")
        served = [entry.body for entry in client.read(0, from_member=damaged)]
        assert served == [b"x" * 1000] * 900 + [b"on"]
        assert_directories_identical(cluster, client)


def test_a_follower_far_behind_is_fed_from_segment_files() -> None:
    """More is missing than members keep in memory, over many segments."""
    storage = StoreConfig(segment_bytes=4 * MIB)
    with LocalCluster(3, storage=storage) as cluster, connect(cluster.servers) as client:
        client.append(b"first")
        leader = cluster.leader()
        behind = next(m for m in cluster.running if m != leader)
        cluster.kill(behind)
        for _ in range(48):
            client.append_batch([b"y" * 1000] * 1000)
        cluster.restart(behind)
        assert_directories_identical(cluster, client)


def test_the_largest_entry_that_a_configuration_allows_reaches_every_member() -> None:
    """Pushed from memory, fed to a member that was away, and read; as is what follows it."""
    storage = StoreConfig(segment_bytes=64 * MIB, max_entry_bytes=LARGEST_ENTRY_BYTES)
    body = b"edge" * ((LARGEST_ENTRY_BYTES - 48) // 4)
    with LocalCluster(3, storage=storage) as cluster, connect(cluster.servers) as client:
        client.append(b"before")
        away = next(m for m in cluster.running if m != cluster.leader())
        cluster.kill(away)
        index = client.append(body, timeout_ms=60_000).first_index
        client.append(b"after")
        cluster.restart(away)
        wait_until_identical(client)
        assert all(client.get(index, from_member=m).body == body for m in cluster.running)
        with pytest.raises(BodyTooLarge, match=str(len(body))):
            client.append(body + b".")
        assert_directories_identical(cluster, client)


def test_leadership_goes_where_it_is_sent() -> None:
    with LocalCluster(3, storage=SMALL) as cluster, connect(cluster.servers) as client:
        client.append(b"a")
        wait_until_identical(client)
        target = next(m for m in cluster.running if m != cluster.leader())
        client.transfer(target)
        assert eventually(lambda: cluster.leader() == target)
        client.append(b"b")
        assert bodies_of(client) == [b"a", b"b"]


def test_a_leader_that_is_stopped_under_full_load_hands_over_and_leaves_nothing_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also on request: thousands of entries are on their way all the time."""
    batches: list[AppendReceipt] = []
    stop = threading.Event()

    def produce(servers: str) -> None:
        def batch() -> Iterator[list[bytes]]:
            while not stop.is_set():
                yield [b"x" * 20] * 512

        with connect(servers) as own:
            for receipt in own.append_stream(batch(), window=8):
                batches.append(receipt)  # noqa: PERF402

    def wait_for_more() -> None:
        seen = len(batches)
        eventually(lambda: len(batches) > seen + 20, what="more acknowledged batches")

    with (
        LocalCluster(3, storage=StoreConfig(segment_bytes=4 * MIB)) as cluster,
        ThreadPoolExecutor(2) as pool,
        connect(cluster.servers) as client,
    ):
        producers = [pool.submit(produce, cluster.servers) for _ in range(2)]
        try:
            for target in ("n0", "n1", "n2"):
                wait_for_more()
                if cluster.leader() != target:
                    client.transfer(target)
            wait_for_more()
            leader = cluster.leader()
            term = row_of(client, leader).term
            cluster.stop(leader)
            assert row_of(client, cluster.leader()).term == term + 1
            wait_for_more()
        finally:
            stop.set()
        for producer in producers:
            producer.result()  # raises if an outcome was unknown
    assert "without a successor" not in caplog.text


def test_a_transfer_to_nobody_is_refused() -> None:
    with LocalCluster(3, storage=SMALL) as cluster, connect(cluster.servers) as client:
        with pytest.raises(Refused, match="n7"):
            client.transfer("n7")
        client.append(b"still led")


def test_the_preferred_leader_takes_over_once_it_is_there() -> None:
    consensus = ConsensusConfig(
        preferred_leader_ids=("n2",), preferred_check_interval_ms=100, preferred_cool_down_ms=300
    )
    with LocalCluster(3, storage=SMALL, consensus=consensus) as cluster:
        assert eventually(lambda: cluster.leader() == "n2")
        cluster.kill("n2")
        assert cluster.leader() != "n2"
        cluster.restart("n2")
        assert eventually(lambda: cluster.leader() == "n2")


@pytest.mark.parametrize(("flush", "store"), [("async", "file"), ("sync", "memory")])
def test_the_receipt_says_what_an_append_survives(flush: str, store: str) -> None:
    with LocalCluster(3, flush=flush, store=store) as cluster, connect(cluster.servers) as client:
        assert client.append(b"x").durability == ("memory" if store == "memory" else "async")


def test_a_killed_memory_member_comes_back_as_an_observer() -> None:
    with LocalCluster(3, store="memory") as cluster, connect(cluster.servers) as client:
        client.append(b"x")
        victim = next(m for m in cluster.running if m != cluster.leader())
        cluster.kill(victim)
        cluster.restart(victim)
        eventually(lambda: row_of(client, victim).role == "observer")
        eventually(lambda: row_of(client, victim).committed_index >= 1)
        eventually(lambda: "membership" in row_of(client, victim).waits_for)
        assert list(cluster.directory.iterdir()) == []


def test_a_wiped_member_cannot_help_to_lose_what_it_forgot() -> None:
    """Two of three hold an entry; one of them is wiped and the other is killed. The third and the
    wiped one are two of three by name, and would elect a leader that lacks the entry."""
    with LocalCluster(3, storage=SMALL) as cluster, connect(cluster.servers) as client:
        client.append(b"everybody has this")
        wait_until_identical(client)
        leader = cluster.leader()
        lagging, wiped = (m for m in cluster.running if m != leader)
        cluster.kill(lagging)
        kept = client.append(b"only two have this")
        cluster.kill(wiped)
        cluster.kill(leader)
        shutil.rmtree(cluster.data_dir(wiped))
        cluster.restart(wiped)
        cluster.restart(lagging)
        eventually(lambda: row_of(client, wiped).role == "observer")
        assert row_of(client, lagging).role != "leader"
        with connect(cluster.servers, timeout_ms=2000) as impatient, pytest.raises(Refused):
            impatient.append(b"nobody may take this")
        cluster.restart(leader)
        assert client.get(kept.first_index).body == b"only two have this"
        client.append(b"three again, two of them voters")
        end = row_of(client, leader).committed_index
        eventually(lambda: row_of(client, wiped).committed_index >= end)


def test_status_says_who_votes_also_of_members_that_are_gone() -> None:
    with LocalCluster(3, storage=SMALL) as cluster, connect(cluster.servers) as client:
        client.append(b"everybody has formed")
        wait_until_identical(client)
        leader = cluster.leader()
        wiped, other = (m for m in cluster.running if m != leader)

        def voters() -> set[str]:
            row = row_of(client, leader)
            assert (row.voters, row.quorum_size) == (3, 2)
            return {member.id for member in row.members if member.is_voter}

        assert voters() == {leader, wiped, other}
        cluster.kill(wiped)
        eventually(
            lambda: {m.id for m in row_of(client, leader).members if m.reachable} == {leader, other}
        )
        assert voters() == {leader, wiped, other}
        shutil.rmtree(cluster.data_dir(wiped))
        cluster.restart(wiped)
        eventually(lambda: voters() == {leader, other}, what="another directory is known, and no voter")


def test_an_append_in_flight_at_a_kill_is_unknown_or_acknowledged_never_both() -> None:
    """Every acknowledged body is in the log exactly once; refused ones are not in it."""
    with LocalCluster(3, storage=SMALL) as cluster, connect(cluster.servers) as client:
        acknowledged: list[bytes] = []
        unknown: list[bytes] = []
        refused: list[bytes] = []
        stop = threading.Event()

        def produce(number: int) -> None:
            count = 0
            with connect(cluster.servers) as own:
                while not stop.is_set():
                    body = b"%d/%d" % (number, count)
                    count += 1
                    try:
                        own.append(body)
                        acknowledged.append(body)
                    except OutcomeUnknown:
                        unknown.append(body)
                    except Refused:
                        refused.append(body)

        threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            seen = len(acknowledged)
            eventually(lambda seen=seen: len(acknowledged) > seen + 50)
            killed = cluster.leader()
            cluster.kill(killed)
            seen = len(acknowledged)
            eventually(lambda seen=seen: len(acknowledged) > seen + 50)
            cluster.restart(killed)
        stop.set()
        for thread in threads:
            thread.join()
        wait_until_identical(client)
        log = bodies_of(client)
        assert len(log) == len(set(log))
        assert set(acknowledged) <= set(log)
        assert not set(refused) & set(log)
        assert set(log) <= set(acknowledged) | set(unknown)
        assert_directories_identical(cluster, client)


def test_garbage_closes_one_connection_and_nothing_else() -> None:
    with LocalCluster(1, storage=SMALL) as cluster, connect(cluster.servers) as client:
        client.append(b"before")
        member = cluster.members[0]
        with socket.create_connection((member.host, member.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: quorumlog\r\n\r\n")
            assert stranger.recv(100) == b""
        client.append(b"after")
        assert bodies_of(client) == [b"before", b"after"]


def test_reading_outside_the_log_names_its_bounds() -> None:
    with LocalCluster(1, storage=SMALL) as cluster, connect(cluster.servers) as client:
        last = client.append(b"only").first_index
        with pytest.raises(IndexOutOfRange) as caught:
            client.get(last + 1)
        assert caught.value.committed_index == last
        assert caught.value.ledger_begin_index == 0
        with pytest.raises(IndexOutOfRange):
            client.get(-1)


def test_a_directory_serves_one_process_at_a_time(tmp_path: Path) -> None:
    with LocalCluster(1, directory=tmp_path, storage=SMALL):
        second = LocalCluster(1, directory=tmp_path, storage=SMALL)
        with pytest.raises(ConfigError, match=str(tmp_path)):
            second.start()


def test_a_cluster_that_misses_a_member_says_whom_it_waits_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = LocalCluster(3, directory=tmp_path, storage=SMALL)
    try:
        for member in ("n0", "n1"):
            cluster.restart(member)
        with connect(cluster.servers) as client:

            def waits() -> list[str]:
                return [r.waits_for for r in client.status() if r.reachable]

            eventually(lambda: len(waits()) == 2 and all("n2" in text for text in waits()))
            assert {row_of(client, member).role for member in ("n0", "n1")} == {"unformed"}
            eventually(lambda: "waits for n2" in caplog.text, what="the same on the log")
            with pytest.raises(RequestTimeout, match=r"n0: forming: waits for n2 \(not connected\)"):
                client.append(b"too early", timeout_ms=300)
            cluster.restart("n2")
            client.append(b"formed")
    finally:
        cluster.close()


def test_a_read_that_starts_behind_a_damaged_header_stops_nobody(tmp_path: Path) -> None:
    with LocalCluster(members=3, directory=tmp_path) as cluster:
        with connect(cluster.servers) as log:
            log.append_batch([b"body-%03d" % i for i in range(100)])
        for member in ("n0", "n1", "n2"):
            cluster.stop(member)
        for member in ("n0", "n1", "n2"):
            cluster.restart(member)
        with connect(cluster.servers) as log:
            log.append(b"later")
            leader = cluster.leader()
            (segment,) = (tmp_path / leader / "data").iterdir()
            with segment.open("r+b") as file:
                term_at = file.read(1 << 16).find(b"body-050") - 48 + 23
                file.seek(term_at)
                file.write(b"\x7f")
            first_index = next(entry.index for entry in log.read(0) if entry.body == b"body-051")
            assert log.get(first_index).body == b"body-051"
            assert all(row_of(log, member) for member in ("n0", "n1", "n2"))
