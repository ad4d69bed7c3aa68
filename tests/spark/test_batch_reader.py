"""The reader without a JVM and without a server: `partitions()` and `read()` over a log in memory."""

from __future__ import annotations

import gc
import itertools
import pickle
import subprocess
import sys
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)
from pyspark.sql.types import StructType

from quorumlog.batch import EntryBatch
from quorumlog.errors import ConfigError, IndexOutOfRange
from quorumlog.log_state.log_state import Reset
from quorumlog.spark.batch_reader import LedgerBatchReader, PushdownReader
from quorumlog.spark.ledger_data_source import LedgerDataSource
from quorumlog.spark.options import LedgerDataLoss, LedgerOptions, LogBounds, spark_schema_of
from quorumlog.spark.partitions import EntryPoint, LedgerPartition, RangeCheck, RangeMismatch, Readers
from quorumlog.spark.reading import keep_modules
from tests.spark.made_batches import MadeLog

BODIES: list[bytes | None] = [None if number % 50 == 0 else b"body %d" % number for number in range(500)]
LOG = MadeLog(BODIES)


class MadeSource:
    """A LedgerSource over `LOG`, in batches of 7 entries."""

    def __init__(self, *, begin_index: int = 0, stop_index: int = 500, ends_early: bool = False) -> None:
        self.group = "default"
        self.begin_index = begin_index
        self.stop_index = stop_index
        self.ends_early = ends_early
        self.bounds_asked = 0
        self.committed: list[tuple[str, int]] = []
        self.skipped: list[tuple[str, int, int]] = []
        self.begun: list[tuple[str, int, bool]] = []
        self.log = LOG
        self.cluster = "made"
        self.first_s = 0
        self.opened = 0
        self.closed = 0

    def open(self, _options: LedgerOptions) -> MadeSource:
        self.opened += 1
        return self

    def bounds(self, reached: int = 0) -> LogBounds:
        self.bounds_asked += 1
        return LogBounds(self.group, self.begin_index, self.stop_index)

    def readers(self) -> Readers:
        return Readers(("n1", "n2"), ("n0",))

    def points_of(self, indices: Sequence[int]) -> list[EntryPoint]:
        return list(map(LOG.point_of, indices))

    def follow(self, partition: LedgerPartition) -> None:
        assert partition.members[-1] == "n0"

    def batches(self, check: RangeCheck, *, heads: bool = False) -> Generator[EntryBatch]:
        while not check.is_complete:
            stop_index = min(check.next_index + 7, check.partition.stop_index)
            batch = LOG.range(check.next_index, stop_index)
            check.accept(batch, "memory")
            yield batch
            if self.ends_early:
                return

    def time_ms_at(self, index: int) -> int:
        """An entry a second, the first one at `first_s`."""
        assert self.begin_index <= index < self.stop_index, "members refuse others"
        return (index + self.first_s) * 1000

    def clock_resets(self) -> tuple[Reset, ...]:
        return ()

    def chain_before(self, index: int) -> int | None:
        return self.log.point_of(index - 1).chain if index > self.begin_index else None

    def cluster_id(self) -> str:
        return self.cluster

    def begin_reader(self, name: str, index: int, *, hold: bool) -> None:
        self.begun.append((name, index, hold))

    def commit_reader(self, name: str, index: int) -> None:
        self.committed.append((name, index))

    def note_skipped(self, name: str, first_index: int, stop_index: int) -> None:
        self.skipped.append((name, first_index, stop_index))

    def close(self) -> None:
        self.closed += 1


def reading(
    source: MadeSource, columns: tuple[str, ...] = ("index", "body"), **given: str
) -> LedgerBatchReader:
    options = LedgerOptions.parse({"servers": "made:1", **given})
    kind = PushdownReader if options.pushdown else LedgerBatchReader
    return kind(options, spark_schema_of(columns), source.open)


def rows_of(reader: LedgerBatchReader) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {}
    for partition in reader.partitions():
        for batch in reader.read(partition):
            for name, values in batch.to_pydict().items():
                rows.setdefault(name, []).extend(values)
    return rows


def expected(first_index: int, stop_index: int) -> dict[str, list[Any]]:
    indices = [index for index in range(first_index, stop_index) if BODIES[index] is not None]
    return {"index": indices, "body": [BODIES[index] for index in indices]}


@pytest.mark.parametrize(("parts", "prefetch"), [("1", "0"), ("1", "2"), ("9", "0"), ("9", "2")])
def test_every_entry_that_is_not_a_noop_is_a_row_once(parts: str, prefetch: str) -> None:
    source = MadeSource()
    assert rows_of(reading(source, minPartitions=parts, prefetch=prefetch)) == expected(0, 500)
    assert source.closed == source.opened


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({"startingTimestamp": "77500"}, (78, 500)),
        ({"endingTimestamp": "77000"}, (20, 77)),
        ({"startingOffsetsByTimestamp": '{"default": 0}', "endingOffsets": "30"}, (20, 30)),
        ({"startingTimestamp": "999000000"}, (500, 500)),
    ],
)
def test_a_range_may_be_stated_by_time(given: dict[str, str], rows: tuple[int, int]) -> None:
    """The made source has an entry a second."""
    assert rows_of(reading(MadeSource(begin_index=20), **given)) == (
        expected(*rows) if rows[0] < rows[1] else {}
    )


def test_a_condition_on_the_time_of_an_append_cuts_the_range_and_is_left_to_spark() -> None:
    reader = reading(MadeSource(), pushdown="true")
    since, before = (datetime(1970, 1, 1, 0, minute, tzinfo=UTC) for minute in (1, 3))
    time = ("append_time",)
    filters = [GreaterThanOrEqual(time, since), LessThan(time, before)]
    assert isinstance(reader, PushdownReader) and list(reader.pushFilters(filters)) == filters
    assert rows_of(reader) == expected(60, 181)


def test_latest_is_resolved_once_and_partitions_stay_below_it() -> None:
    source = MadeSource(stop_index=300)
    reader = reading(source, minPartitions="4")
    partitions = reader.partitions()
    assert source.bounds_asked == 1
    source.stop_index = 500
    assert [index for p in partitions for b in reader.read(p) for index in b["index"].to_pylist()] == (
        expected(0, 300)["index"]
    )
    assert source.bounds_asked == 1


def test_offsets_select_the_range() -> None:
    assert rows_of(reading(MadeSource(), startingOffsets="120", endingOffsets="340")) == expected(
        120, 340
    )


def test_only_the_columns_asked_for_are_built() -> None:
    reader = reading(MadeSource(), ("body_crc", "index"))
    batch = next(reader.read(reader.partitions()[0]))
    assert batch.schema.names == ["body_crc", "index"]


def test_nothing_to_read_is_no_partition_and_the_placeholder_gives_no_row() -> None:
    reader = reading(MadeSource(), startingOffsets="latest")
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_a_batch_of_noops_gives_no_record_batch() -> None:
    reader = reading(MadeSource(), startingOffsets="50", endingOffsets="51")
    assert [list(reader.read(partition)) for partition in reader.partitions()] == [[]]


def test_partitions_prefer_the_members_in_turn() -> None:
    partitions = reading(MadeSource(), minPartitions="3").partitions()
    assert [p.members for p in partitions if isinstance(p, LedgerPartition)] == [
        ("n1", "n2", "n0"),
        ("n2", "n1", "n0"),
        ("n1", "n2", "n0"),
    ]


def test_a_source_that_ends_early_is_an_error_and_not_a_smaller_result() -> None:
    reader = reading(MadeSource(ends_early=True))
    with pytest.raises(RangeMismatch, match=r"read 7 entries up to offset 7 .* the plan has 500"):
        rows_of(reader)


def test_a_start_below_the_begin_is_data_loss_unless_the_query_says_otherwise() -> None:
    with pytest.raises(LedgerDataLoss, match=r"entries 20 .. 99 of group 'default' are lost"):
        reading(MadeSource(begin_index=100), startingOffsets="20").partitions()
    tolerant = reading(MadeSource(begin_index=100), startingOffsets="20", failOnDataLoss="false")
    assert rows_of(tolerant) == expected(100, 500)


class Deleting(MadeSource):
    """What lies below 100 goes once the plan asks for an entry."""

    def points_of(self, indices: Sequence[int]) -> list[EntryPoint]:
        self.begin_index = 100
        if min(indices, default=100) < 100:
            raise IndexOutOfRange("gone", ledger_begin_index=100, committed_index=499)
        return super().points_of(indices)


@pytest.mark.parametrize("first_index", [0, 60, 100, 101])
def test_what_is_deleted_while_a_query_is_planned_is_data_loss_unless_the_query_says_otherwise(
    first_index: int,
) -> None:
    given = {"startingOffsets": str(first_index)}
    assert rows_of(reading(Deleting(), failOnDataLoss="false", **given)) == (
        expected(max(first_index, 100), 500)
    )
    assert reading(Deleting(), failOnDataLoss="false", endingOffsets="60").partitions() == []
    if first_index < 100:
        with pytest.raises(LedgerDataLoss, match=rf"entries {first_index} .. 99 of group 'default'"):
            reading(Deleting(), **given).partitions()


def test_an_end_above_the_committed_index_is_refused() -> None:
    source = MadeSource(stop_index=300)
    with pytest.raises(IndexOutOfRange, match="endingOffsets is 301"):
        reading(source, endingOffsets="301").partitions()
    assert source.closed == source.opened == 1


def test_closing_the_rows_early_closes_the_source() -> None:
    source = MadeSource()
    reader = reading(source)
    rows = reader.read(reader.partitions()[0])
    assert list(itertools.islice(rows, 1))
    rows.close()  # type: ignore[attr-defined]
    assert source.closed == source.opened == 2


def test_a_schema_that_is_not_ours_is_refused_when_the_reader_is_made() -> None:
    data_source = LedgerDataSource({"path": "/nowhere"})
    with pytest.raises(ConfigError, match=r"names the column 'key'.*append_time$"):
        data_source.reader(StructType().add("key", "binary"))


def test_the_data_source_offers_the_columns_asked_for() -> None:
    assert LedgerDataSource({"path": "/x"}).schema().fieldNames() == ["index", "term", "body"]
    pruned = LedgerDataSource({"path": "/x", "columns": "body,index"})
    assert pruned.schema().fieldNames() == ["body", "index"]
    assert LedgerDataSource.name() == "quorumlog"


def test_reader_and_partitions_travel_to_a_worker() -> None:
    reader = LedgerDataSource({"path": "/x"}).reader(spark_schema_of(["index"]))
    assert isinstance(pickle.loads(pickle.dumps(reader)), LedgerBatchReader)


@pytest.mark.parametrize(
    ("conditions", "first_index", "stop_index"),
    [
        ([GreaterThan(("index",), 100)], 101, 500),
        ([GreaterThanOrEqual(("index",), 100)], 100, 500),
        ([LessThan(("index",), 30)], 0, 30),
        ([LessThanOrEqual(("index",), 30)], 0, 31),
        ([EqualTo(("index",), 77)], 77, 78),
        ([GreaterThan(("index",), 10), LessThan(("index",), 20), IsNotNull(("index",))], 11, 20),
        ([GreaterThan(("index",), 10), GreaterThan(("index",), 5)], 11, 500),
        ([EqualTo(("index",), 3), EqualTo(("index",), 4)], 3, 3),
        ([LessThan(("index",), -5)], 0, 0),
        ([GreaterThan(("index",), 10**12)], 0, 0),
        ([EqualTo(("index",), -1)], 0, 0),
    ],
)
def test_conditions_on_index_narrow_the_range(
    conditions: list[Filter], first_index: int, stop_index: int
) -> None:
    reader = reading(MadeSource(), pushdown="true")
    assert list(reader.pushFilters(conditions)) == []
    rows = rows_of(reader)
    assert rows.get("index", []) == expected(first_index, stop_index)["index"]


def test_other_conditions_stay_with_spark() -> None:
    conditions: list[Filter] = [
        EqualTo(("term",), 1),
        In(("index",), (1, 2)),
        Not(EqualTo(("index",), 1)),
        StringContains(("group",), "x"),
    ]
    reader = reading(MadeSource(), pushdown="true")
    assert list(reader.pushFilters(conditions)) == conditions
    assert rows_of(reader) == expected(0, 500)


def test_a_condition_does_not_hide_data_loss() -> None:
    reader = reading(MadeSource(begin_index=100), startingOffsets="20", pushdown="true")
    list(reader.pushFilters([GreaterThan(("index",), 200)]))
    with pytest.raises(LedgerDataLoss):
        reader.partitions()


def test_only_the_pushdown_reader_overrides_push_filters() -> None:
    """Spark refuses a reader that does while its setting is off."""
    assert "pushFilters" not in vars(LedgerBatchReader)
    assert type(LedgerDataSource({"path": "/x"}).reader(spark_schema_of(["index"]))) is LedgerBatchReader
    pushing = LedgerDataSource({"path": "/x", "pushdown": "true"}).reader(spark_schema_of(["index"]))
    assert type(pushing) is PushdownReader


@pytest.mark.parametrize("name", ["append_time", "Append_Time"])
def test_only_a_time_may_be_null_however_a_schema_spells_it(name: str) -> None:
    schema = StructType().add(name, "timestamp").add("Body", "binary")
    options = LedgerOptions.parse({"servers": "made:1", "pushdown": "true"})
    reader = PushdownReader(options, schema, MadeSource().open)
    of_time = IsNotNull((name,))
    assert list(reader.pushFilters([IsNotNull(("Body",)), of_time])) == [of_time], "Spark applies it"


def test_only_a_worker_of_spark_keeps_what_it_has_imported_out_of_the_sight_of_the_collector() -> None:
    before = gc.get_freeze_count()
    keep_modules.__wrapped__()
    assert gc.get_freeze_count() == before
    names = "import sys, gc; from quorumlog.spark.reading import keep_modules"
    of_daemon = "type('Spec', (), {'name': 'pyspark.daemon'})"
    code = f"{names}; sys.modules['__main__'].__spec__ = {of_daemon}; keep_modules()"
    code += "; sys.exit(gc.get_freeze_count() < 1000)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
