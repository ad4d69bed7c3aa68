"""`servers`: real members in this process, read without a JVM."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from quorumlog import LocalCluster, StoreConfig, connect
from quorumlog.batch import EntryBatch
from quorumlog.client import LedgerClient, MemberStatusRow
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import Forbidden, IndexOutOfRange, RequestTimeout, UnknownGroup, Unreachable
from quorumlog.log_state.log_state import Reset, Resets
from quorumlog.spark.ledger_data_source import LedgerDataSource
from quorumlog.spark.options import LedgerDataLoss, LedgerOptions, LogBounds, spark_schema_of
from quorumlog.spark.partitions import (
    ASK_CHAIN,
    MAX_PLANNED_CHAINS,
    LedgerPartition,
    RangeCheck,
    RangeMismatch,
)
from quorumlog.spark.reading import read_partition
from quorumlog.spark.sources.server_source import ServerSource, shared_client
from tests.spark.made_batches import MadeLog
from tests.spark.made_directories import flip_bit_of_body
from tests.waiting import eventually

BODIES = [b"record %d;" % number for number in range(3000)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three members with 3,000 records over many small segments. Tests leave all of them running."""
    storage = StoreConfig(segment_bytes=16384, index_segment_bytes=32000)
    with LocalCluster(members=3, storage=storage) as cluster:
        with connect(cluster.servers) as log:
            for first in range(0, len(BODIES), 500):
                log.append_batch(BODIES[first : first + 500])
        yield cluster


def followers(cluster: LocalCluster) -> tuple[str, ...]:
    leader = cluster.leader()
    return tuple(member for member in cluster.running if member != leader)


def rows_of(cluster: LocalCluster, **given: str) -> dict[str, list[Any]]:
    source = LedgerDataSource({"servers": cluster.servers, **given})
    reader = source.reader(spark_schema_of(["index", "body"]))
    rows: dict[str, list[Any]] = {"index": [], "body": []}
    for partition in reader.partitions():
        for batch in reader.read(partition):
            for name, values in batch.to_pydict().items():  # type: ignore[union-attr]
                rows[name] += values
    return rows


@pytest.mark.parametrize("consistency", ["read_index", "committed", "commitIndex", "local"])
def test_every_record_is_a_row_once_in_order(cluster: LocalCluster, consistency: str) -> None:
    eventually(lambda: rows_of(cluster, readConsistency=consistency)["body"][-1:] == BODIES[-1:])
    rows = rows_of(cluster, readConsistency=consistency, minPartitions="5", batchBytes="4096")
    assert rows["body"] == BODIES
    assert rows["index"] == sorted(set(rows["index"]))


def test_followers_get_the_partitions_in_turn(cluster: LocalCluster) -> None:
    reader = LedgerDataSource({"servers": cluster.servers, "minPartitions": "4"}).reader(
        spark_schema_of(["index"])
    )
    planned = [p for p in reader.partitions() if isinstance(p, LedgerPartition)]
    first, second = followers(cluster)
    leader = cluster.leader()
    assert [p.members for p in planned] == [(first, second, leader), (second, first, leader)] * 2


def test_one_client_serves_all_tasks_of_a_worker(cluster: LocalCluster) -> None:
    options = LedgerOptions.parse({"servers": cluster.servers})
    assert ServerSource(options)._client is ServerSource(options)._client
    assert shared_client(cluster.servers, "default", None) is not shared_client(
        cluster.servers, "other", None
    )


def test_a_worker_finds_members_that_its_own_list_does_not_name(cluster: LocalCluster) -> None:
    """Whoever was listed may have gone by the time that the plan is carried out."""
    count = MAX_PLANNED_CHAINS + 1
    given = {"servers": cluster.servers, "minPartitions": str(count)}
    reader = LedgerDataSource(given).reader(spark_schema_of(["index"]))
    partition = reader.partitions()[7]
    assert isinstance(partition, LedgerPartition)
    assert sorted(partition.servers) == sorted(cluster.servers.split(","))
    assert partition.previous_chain == ASK_CHAIN, "of so many the task asks for the chain itself"
    gone = LedgerOptions.parse({"servers": "127.0.0.1:2"})  # nobody listens there
    batches = list(read_partition(gone, spark_schema_of(["index"]), ServerSource, partition))
    assert sum(batch.num_rows for batch in batches) == partition.count


def test_a_forked_worker_makes_its_own_client(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shared_client(cluster.servers, "default", None)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    child = shared_client(cluster.servers, "default", None)
    assert child is not before
    child.client.close()


def test_an_unknown_group_is_told_at_once(cluster: LocalCluster) -> None:
    with pytest.raises(UnknownGroup, match="group 'orders' is not served here; groups: default"):
        rows_of(cluster, group="orders")


def test_an_offset_above_the_committed_index_is_refused(cluster: LocalCluster) -> None:
    with pytest.raises(IndexOutOfRange, match="endingOffsets is 999999, but group 'default' can be"):
        rows_of(cluster, endingOffsets="999999")


def test_without_any_server_the_error_names_the_option_and_the_reason() -> None:
    source = LedgerDataSource({"servers": "127.0.0.1:1", "timeoutMs": "1"})
    with pytest.raises(Unreachable, match=r"127.0.0.1:1 cannot be read after 1 ms \(option timeoutMs\)"):
        source.reader(spark_schema_of(["index"])).partitions()


def test_a_member_killed_in_the_middle_of_a_range_costs_no_row(cluster: LocalCluster) -> None:
    """The rows before the kill come from the follower of the plan, those behind it from another."""
    victim = followers(cluster)[0]
    given = {"servers": cluster.servers, "batchBytes": "4096", "prefetch": "1"}
    reader = LedgerDataSource(given).reader(spark_schema_of(["body"]))
    [partition] = reader.partitions()
    assert isinstance(partition, LedgerPartition)
    assert partition.members[0] == victim
    batches = reader.read(partition)
    bodies = next(batches).column(0).to_pylist()  # type: ignore[union-attr]
    cluster.kill(victim)
    for batch in batches:
        bodies += batch.column(0).to_pylist()  # type: ignore[union-attr]
    cluster.restart(victim)
    assert bodies == BODIES


def test_a_member_that_did_not_answer_is_asked_last_for_a_while(cluster: LocalCluster) -> None:
    first, second = followers(cluster)
    source = ServerSourceOf(cluster).source
    source._note_failure(first, RequestTimeout("no answer"))
    source._note_failure(second, IndexOutOfRange("answered"))
    later = ServerSource(LedgerOptions.parse({"servers": cluster.servers}))
    assert sorted([first, second], key=later._failed_lately) == [second, first]
    later._failures.clear()


def test_headers_come_alone_where_nobody_looks_at_bodies(cluster: LocalCluster) -> None:
    partition = whole_log(cluster, members=followers(cluster))
    heads = list(ServerSourceOf(cluster).source.batches(RangeCheck(partition), heads=True))
    whole = list(ServerSourceOf(cluster).source.batches(RangeCheck(partition)))
    assert all(batch.total_bytes == HEADER_BYTES * batch.count for batch in heads)
    words = [np.concatenate([batch.words() for batch in each], axis=1) for each in (heads, whole)]
    assert words[0].tolist() == words[1].tolist()
    given = {"servers": cluster.servers, "columns": "index,body_crc"}
    reader = LedgerDataSource(given).reader(spark_schema_of(["index", "body_crc"]))
    crcs: list[int] = []
    for part in reader.partitions():
        for rows in reader.read(part):
            crcs += rows.column(1).to_pylist()  # type: ignore[union-attr]
    assert crcs == list(map(zlib.crc32, BODIES))


def test_a_flipped_bit_on_one_members_disk_is_found_and_read_elsewhere(cluster: LocalCluster) -> None:
    victim = followers(cluster)[0]
    cluster.stop(victim)
    cluster.restart(victim)  # so that it reads from its disk and not from memory
    eventually(lambda: victim in ServerSourceOf(cluster).followers())
    flip_bit_of_body(cluster.data_dir(victim), b"record 1234;")
    partition = whole_log(cluster, members=(victim,))
    alone = RangeCheck(partition)
    with pytest.raises(RangeMismatch, match=f"{victim}: .*body_crc does not match"):
        list(ServerSourceOf(cluster).only_from(victim, alone))
    assert 0 < alone.next_index < partition.stop_index
    bodies = [
        bytes(body)
        for batch in ServerSourceOf(cluster).source.batches(RangeCheck(partition))
        for body in batch.bodies()
        if len(body)
    ]
    assert bodies == BODIES
    flip_bit_back(cluster.data_dir(victim))


class ServerSourceOf:
    """A planned source of a cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.source = ServerSource(
            LedgerOptions.parse({"servers": cluster.servers, "batchBytes": "4096"})
        )
        self.bounds = self.source.bounds()

    def followers(self) -> tuple[str, ...]:
        return self.source.readers().preferred

    def only_from(self, member: str, check: RangeCheck) -> Iterator[EntryBatch]:
        """What `batches` gives if the leader too answered as this member does."""
        try:
            yield from self.source._read(check, member, heads=False)
        except Exception as error:
            self.source._give_up(check, [member], [error], late=False)
            raise


def whole_log(cluster: LocalCluster, members: tuple[str, ...]) -> LedgerPartition:
    bounds = ServerSourceOf(cluster).bounds
    return LedgerPartition("default", bounds.begin_index, bounds.stop_index, members, 0)


def flip_bit_back(path: Path) -> None:
    damaged = b"record 1234;"
    flip_bit_of_body(path, damaged[:-1] + bytes([damaged[-1] ^ 1]))


def test_whoever_has_no_right_hears_it_at_once(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not after the time-out, as an outage."""
    given = {"servers": cluster.servers, "timeoutMs": "3600000", "readConsistency": "read_index"}
    source = ServerSource(LedgerOptions.parse(given))
    members, partition = source.bounds(), whole_log(cluster, ("n0", "n1"))

    def refused(*given: object, **named: object) -> Any:
        raise Forbidden("user bob may not read log 'default'")

    for name in ("end_index", "freshness", "read_batches", "time_at", "clock_resets"):
        monkeypatch.setattr(source._client, name, refused)
    for act in (
        source.bounds,
        lambda: source.points_of([members.begin_index]),
        lambda: source.time_ms_at(members.begin_index),
        source.clock_resets,
        lambda: next(source.batches(RangeCheck(partition))),
    ):
        with pytest.raises(Forbidden):
            act()


class ExpiringLog:
    """Stands for a client of members that dropped the begin of their log while a task was under way."""

    def __init__(self, begins: dict[str | None, int]) -> None:
        self.log = MadeLog([b"body %d" % number for number in range(100)])
        self.begins = begins

    def read_batches(
        self, first_index: int, stop_index: int, *, from_member: str | None, **_: int
    ) -> Iterator[EntryBatch]:
        begin_index = self.begins[from_member]
        if first_index < begin_index:
            raise IndexOutOfRange("gone", ledger_begin_index=begin_index, committed_index=99)
        yield self.log.range(first_index, stop_index)


def test_a_plan_asks_for_headers_alone(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some entries for each cut, which may have megabytes."""
    read_batches, taken = LedgerClient.read_batches, 0

    def counted(*given: Any, **named: Any) -> Iterator[EntryBatch]:
        nonlocal taken
        for batch in read_batches(*given, **named):
            assert batch.total_bytes == HEADER_BYTES
            taken += 1
            yield batch

    monkeypatch.setattr(LedgerClient, "read_batches", counted)
    source = LedgerDataSource({"servers": cluster.servers, "minPartitions": "3"})
    assert len(source.reader(spark_schema_of(["index", "body"])).partitions()) == 3
    assert taken > 10


def read_expiring(log: ExpiringLog, **given: str) -> list[int]:
    source = ServerSource(LedgerOptions.parse({"servers": "127.0.0.1:1", **given}))
    source._client = log  # type: ignore[assignment]
    chain = log.log.point_of(99).chain
    check = RangeCheck(LedgerPartition("default", 10, 100, ("n1",), None, chain))
    indices = [int(i) for batch in source.batches(check) for i in batch.headers()["index"]]
    check.finish()
    return indices


def test_entries_that_one_member_dropped_are_read_from_another() -> None:
    assert read_expiring(ExpiringLog({"n1": 40, None: 5})) == list(range(10, 100))


def test_entries_that_all_members_dropped_are_data_loss() -> None:
    log = ExpiringLog({"n1": 40, None: 30})
    with pytest.raises(LedgerDataLoss, match=r"entries 10 .. 29 of group 'default' are lost"):
        read_expiring(log)
    assert read_expiring(log, failOnDataLoss="false") == list(range(30, 100))
    assert read_expiring(ExpiringLog({"n1": 400, None: 300}), failOnDataLoss="false") == []


def test_what_a_task_goes_on_without_is_counted_at_the_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[tuple[str, int, int]] = []
    monkeypatch.setattr(ServerSource, "note_skipped", lambda self, *given: counted.append(given))
    log = ExpiringLog({"n1": 40, None: 30})
    assert read_expiring(log, failOnDataLoss="false", reader="lines") == list(range(30, 100))
    assert counted == [("lines", 10, 30)]


def test_a_count_that_cannot_be_kept_is_a_warning(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def skip(servers: str) -> None:
        options = {"servers": servers, "reader": "lines", "timeoutMs": "500"}
        ServerSource(LedgerOptions.parse(options)).note_skipped("lines", 2, 5)

    skip(cluster.servers)
    with connect(cluster.servers) as log:
        (row,) = log.readers()
    assert (row.name, row.skipped_entries, row.skipped_ranges) == ("lines", 3, ((2, 5),))
    assert not caplog.records
    skip("127.0.0.1:1")
    assert "entries 2 .. 4 are not counted at reader lines" in caplog.text


def end_of_stream(cluster: LocalCluster, **given: str) -> int:
    source = LedgerDataSource({"servers": cluster.servers, "timeoutMs": "500", **given})
    reader = source.streamReader(spark_schema_of(["index"]))
    begun = {"default": {"index": 0, "chain": None, "cluster": cluster_id_of(cluster)}}
    return int(reader.latestOffset(begun, ReadAllAvailable())["default"]["index"])


def cluster_id_of(cluster: LocalCluster) -> str:
    with connect(cluster.servers) as log:
        return log.layout().cluster_id


def test_without_a_quorum_only_what_is_known_to_be_committed_is_read(cluster: LocalCluster) -> None:
    leader = cluster.leader()
    survivor, other = followers(cluster)
    everything = ServerSourceOf(cluster).bounds
    cluster.kill(leader)
    cluster.kill(other)
    with pytest.raises(Unreachable, match=f"no member leads: .*{survivor}: "):
        rows_of(cluster, timeoutMs="2000", readConsistency="read_index")
    with pytest.raises(Unreachable, match="and 1 ms are allowed"):
        rows_of(cluster, timeoutMs="2000", maxStalenessMs="1")
    known = ServerSource(LedgerOptions.parse({"servers": cluster.servers})).bounds()
    assert isinstance(known, LogBounds)
    assert known.stop_index <= everything.stop_index
    with pytest.raises(Unreachable, match="no member leads"):
        # A query that has come further is not told that its log has lost entries.
        ServerSource(LedgerOptions.parse({"servers": cluster.servers, "timeoutMs": "2000"})).bounds(
            reached=known.stop_index + 1
        )
    with pytest.raises(Unreachable, match="no member leads"):
        end_of_stream(cluster)  # which ends at what was acknowledged by then
    assert end_of_stream(cluster, readConsistency="committed") == known.stop_index
    assert rows_of(cluster, columns="index,body")["body"] == BODIES
    assert rows_of(cluster, readConsistency="local", columns="index,body")["body"] == BODIES
    cluster.restart(leader)
    cluster.restart(other)
    cluster.leader()
    assert rows_of(cluster, readConsistency="read_index")["body"] == BODIES
    assert rows_of(cluster, maxStalenessMs="5000")["body"] == BODIES


def test_what_each_member_said_is_told_where_none_gives_what_a_plan_needs(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ServerSource(LedgerOptions(servers=cluster.servers, timeout_ms=1))
    source.bounds()

    def refuse(*_: int, from_member: str | None, **__: int) -> None:
        raise RequestTimeout(f"asked {from_member}")

    monkeypatch.setattr(source._client, "time_at", refuse)
    with pytest.raises(Unreachable, match="the time of entry 1 of group 'default' within 1 ms") as told:
        source.time_ms_at(1)
    sentences = [f"{member}: asked {member}" for member in cluster.running]
    assert "the leader: asked None" in str(told.value)
    assert all(each in str(told.value) for each in sentences), told.value


def test_the_time_of_an_entry_that_nobody_knows_to_be_committed_yet_is_waited_for(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an election; of one that is gone it is told at once."""
    source = ServerSource(LedgerOptions.parse({"servers": cluster.servers, "timeoutMs": "3600000"}))
    real, begin_index = source._client.time_at, source.bounds().begin_index
    left = [2 * len(cluster.running)]

    def time_at(index: int, *, from_member: str | None) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise IndexOutOfRange("not yet", ledger_begin_index=0, committed_index=index - 1)
        return real(index, from_member=from_member)

    monkeypatch.setattr(source._client, "time_at", time_at)
    assert source.time_ms_at(begin_index + 1) >= -1
    assert left[0] < 0

    def gone(index: int, *, from_member: str | None) -> Any:
        raise IndexOutOfRange("gone", ledger_begin_index=index + 1, committed_index=index + 9)

    monkeypatch.setattr(source._client, "time_at", gone)
    with pytest.raises(IndexOutOfRange, match="gone"):
        source.time_ms_at(begin_index + 1)


def test_without_a_leader_those_that_know_most_are_asked_for_times(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lags does not know the newest resets of the clock, and says so without an error."""
    source = ServerSource(LedgerOptions.parse({"servers": cluster.servers}))
    known = dict(zip(("n0", "n1", "n2"), (5, 9, 7), strict=True))
    real = source._client.status
    asked: list[str | None] = []

    def status() -> list[MemberStatusRow]:
        return [msgspec.structs.replace(row, committed_index=known[row.id]) for row in real()]

    def clock_resets(*, from_member: str | None) -> Resets:
        asked.append(from_member)
        if from_member is None:
            raise Unreachable("nobody leads")
        return (Reset(8, 1),) if known[from_member] >= 8 else ()

    monkeypatch.setattr(source._client, "status", status)
    monkeypatch.setattr(source._client, "clock_resets", clock_resets)
    assert source.clock_resets() == (Reset(8, 1),)
    assert asked == [None, "n1"]
