"""Micro-batches, without a JVM: offsets, limits, and what a restart asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import StructType

from quorumlog.errors import ConfigError, IndexOutOfRange
from quorumlog.spark import streaming as stream_reader
from quorumlog.spark.ledger_data_source import LedgerDataSource
from quorumlog.spark.options import COLUMN_TYPES, LedgerDataLoss, LedgerOptions, spark_schema_of
from quorumlog.spark.streaming import LedgerStreamReader
from tests.spark.made_batches import MadeLog
from tests.spark.test_batch_reader import LOG, MadeSource, expected

ALL = ReadAllAvailable()
OTHER = MadeLog([b"other %d" % number for number in range(500)])


@pytest.fixture(autouse=True)
def _no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reader, "POLL_S", 0.0)
    monkeypatch.setattr(stream_reader, "FIND_S", 0.0)


def streaming(source: MadeSource, **given: str) -> LedgerStreamReader:
    options = LedgerOptions.parse({"servers": "made:1", **given})
    return LedgerStreamReader(options, spark_schema_of(["index", "body"]), source.open)


def at(index: int, cluster: str = "made", log: MadeLog = LOG) -> dict[str, Any]:
    """Of a query that has begun, as its checkpoint has it."""
    chain = log.point_of(index - 1).chain if index else None
    return {"index": index, "chain": chain, "cluster": cluster}


def rows_of(reader: LedgerStreamReader, partitions: Any) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {"index": [], "body": []}
    for partition in partitions:
        assert isinstance(partition, InputPartition)
        for batch in reader.read(partition):
            for name, values in batch.to_pydict().items():
                rows[name] += values
    return rows


def test_micro_batches_follow_each_other_and_miss_nothing() -> None:
    source = MadeSource(stop_index=0)
    reader = streaming(source)
    start, rows = reader.initialOffset(), {"index": [], "body": []}  # type: ignore[var-annotated]
    assert start == {"default": 0}
    for stop_index in (0, 3, 3, 250, 500):
        source.stop_index = stop_index
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert end == {"default": at(stop_index)}
        for name, values in rows_of(reader, reader.partitions(start, end)).items():
            rows[name] += values
        start = end
    assert rows == expected(0, 500)
    assert source.closed == source.opened
    assert reader.reportLatestOffset() == {"default": {"index": 500}}


@pytest.mark.parametrize(
    ("stated", "first_index"), [("earliest", 20), ("latest", 500), ("77", 77), ('{"default": 30}', 30)]
)
def test_a_query_begins_where_it_is_told_to(stated: str, first_index: int) -> None:
    reader = streaming(MadeSource(begin_index=20), startingOffsets=stated)
    assert reader.initialOffset() == {"default": first_index}


def test_a_start_that_is_gone_or_not_there_yet_is_refused_as_in_a_batch_query() -> None:
    with pytest.raises(LedgerDataLoss, match=r"entries 3 .. 19 of group 'default' are lost"):
        streaming(MadeSource(begin_index=20), startingOffsets="3").initialOffset()
    with pytest.raises(IndexOutOfRange, match="startingOffsets is 501"):
        streaming(MadeSource(), startingOffsets="501").initialOffset()


def test_a_limit_of_offsets_cuts_micro_batches_short_but_for_a_trigger_that_wants_all() -> None:
    reader = streaming(MadeSource(), maxOffsetsPerTrigger="200")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(200)
    assert reader.latestOffset({"default": at(0)}, limit) == {"default": at(200)}
    assert reader.latestOffset({"default": at(400)}, limit) == {"default": at(500)}
    assert reader.latestOffset({"default": at(0)}, ALL) == {"default": at(500)}


@pytest.mark.parametrize("first_index", [0, 123, 499])
@pytest.mark.parametrize("most_bytes", [1, 100, 1000, 5000, 10**9])
def test_a_limit_of_bytes_is_kept_and_used_up(first_index: int, most_bytes: int) -> None:
    reader = streaming(MadeSource(), maxBytesPerTrigger=str(most_bytes))
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(most_bytes)
    end = reader.latestOffset({"default": at(first_index)}, limit)["default"]["index"]
    sizes = LOG.batch.sizes
    assert end == first_index + 1 or int(sizes[first_index:end].sum()) <= most_bytes
    assert end == 500 or int(sizes[first_index : end + 1].sum()) > most_bytes


def test_few_entries_wait_for_more_but_not_for_ever() -> None:
    source = MadeSource(stop_index=30)
    patient = streaming(source, minOffsetsPerTrigger="50", maxTriggerDelay="1h")
    limit = patient.getDefaultReadLimit()
    assert limit == ReadMinRows(50)
    assert patient.latestOffset({"default": at(0)}, limit) == {"default": at(0)}
    source.stop_index = 50
    assert patient.latestOffset({"default": at(0)}, limit) == {"default": at(50)}
    hasty = streaming(source, minOffsetsPerTrigger="200", maxTriggerDelay="0ms")
    assert hasty.latestOffset({"default": at(0)}, limit) == {"default": at(50)}


def test_available_now_ends_at_what_was_there_in_bounded_batches() -> None:
    source = MadeSource(stop_index=100)
    reader = streaming(source, maxOffsetsPerTrigger="40", minOffsetsPerTrigger="99")
    reader.prepareForTriggerAvailableNow()
    source.stop_index = 500
    ends, start = [], {"default": 0}
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        ends.append(end["default"]["index"])
        start = end
    assert ends == [0, 40, 80, 100]


def test_a_batch_that_was_planned_before_a_restart_has_the_same_rows() -> None:
    reader = streaming(MadeSource(), maxOffsetsPerTrigger="7")
    planned = reader.partitions({"default": at(100)}, {"default": at(300)})
    assert rows_of(reader, planned) == expected(100, 300)


def test_a_query_that_never_committed_a_batch_begins_where_its_first_one_says() -> None:
    """Spark asks for the initial offset again at every restart until a batch is committed."""
    source = MadeSource(stop_index=113)
    first = streaming(source, startingOffsets="latest")
    begun = first.latestOffset(first.initialOffset(), ALL)
    assert begun == {"default": at(113)}
    source.stop_index = 124
    again = streaming(source, startingOffsets="latest")
    assert again.initialOffset() == {"default": 124}
    assert rows_of(again, again.partitions({"default": 124}, begun)) == {"index": [], "body": []}
    end = again.latestOffset(begun, ALL)
    assert rows_of(again, again.partitions(begun, end)) == expected(113, 124)


def test_a_checkpoint_of_another_log_is_refused_also_where_loss_is_tolerated() -> None:
    """The same length, other entries: a log that was restored, and has grown again since."""
    source = MadeSource()
    source.log = OTHER
    source.cluster = "restored"
    for given in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(LedgerDataLoss, match="of another log than group 'default' is now"):
            streaming(source, **given).latestOffset({"default": at(200)}, ALL)
        with pytest.raises(LedgerDataLoss, match="of another log than group 'default' is now"):
            streaming(source, **given).partitions({"default": at(0)}, {"default": at(200)})


def test_a_restored_log_with_the_same_entries_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    source = MadeSource()
    source.cluster = "restored"
    reader = streaming(source)
    assert reader.latestOffset({"default": at(200)}, ALL) == {"default": at(500, "restored")}
    assert "the checkpoint is of cluster made" in caplog.text


def test_below_the_begin_only_the_same_cluster_goes_on() -> None:
    """No chain is left there to compare."""
    source = MadeSource(begin_index=100)
    tolerant = streaming(source, failOnDataLoss="false")
    end = tolerant.latestOffset({"default": at(50)}, ALL)
    assert rows_of(tolerant, tolerant.partitions({"default": at(50)}, end)) == expected(100, 500)
    source.cluster = "another"
    with pytest.raises(LedgerDataLoss, match="of another log"):
        streaming(source, failOnDataLoss="false").latestOffset({"default": at(50)}, ALL)


def test_a_checkpoint_of_an_earlier_release_goes_on_and_learns_its_log() -> None:
    reader = streaming(MadeSource())
    assert rows_of(reader, reader.partitions({"default": 100}, {"default": 300})) == expected(100, 300)
    begun = reader.latestOffset({"default": 300}, ALL)
    assert begun == {"default": at(300)}
    assert rows_of(reader, reader.partitions({"default": 300}, begun)) == {"index": [], "body": []}


def test_a_first_batch_of_an_earlier_release_that_was_never_committed_is_named() -> None:
    start, end = {"default": 124}, {"default": 113}
    with pytest.raises(LedgerDataLoss, match=r"its first offset is unknown"):
        streaming(MadeSource()).partitions(start, end)
    assert not streaming(MadeSource(), failOnDataLoss="false").partitions(start, end)


def test_an_offset_of_a_later_release_is_refused() -> None:
    with pytest.raises(ConfigError, match="an offset that this release cannot read"):
        streaming(MadeSource()).latestOffset({"default": {"place": 7}}, ALL)


def test_entries_that_went_under_a_query_are_named_or_left_out() -> None:
    start, end = {"default": 10}, {"default": 60}
    with pytest.raises(LedgerDataLoss, match=r"entries 10 .. 39 of group 'default' are lost"):
        streaming(MadeSource(begin_index=40)).partitions(start, end)
    tolerant = streaming(MadeSource(begin_index=40), failOnDataLoss="false")
    assert rows_of(tolerant, tolerant.partitions(start, end)) == expected(40, 60)
    gone = streaming(MadeSource(begin_index=100), failOnDataLoss="false")
    assert rows_of(gone, gone.partitions(start, end)) == {"index": [], "body": []}


def test_entries_that_went_are_counted_at_the_reader_and_in_the_log_of_the_driver(
    caplog: pytest.LogCaptureFixture,
) -> None:
    start, end = {"default": 10}, {"default": 60}
    source = MadeSource(begin_index=40)
    streaming(source, failOnDataLoss="false", reader="lines").partitions(start, end)
    assert source.skipped == [("lines", 10, 40)]
    told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(told) == 1
    assert "entries 10 .. 39 of group 'default' are lost (30): the log begins at index 40" in told[0]
    streaming(source, failOnDataLoss="false").partitions(start, end)
    assert len(source.skipped) == 1, "who has no reader has nothing to count at"
    with pytest.raises(LedgerDataLoss):
        streaming(source, reader="lines").partitions(start, end)
    assert len(source.skipped) == 1


def test_a_log_that_ends_below_the_checkpoint_is_another_log() -> None:
    with pytest.raises(LedgerDataLoss, match="at offset 501, and group 'default' ends at 500"):
        streaming(MadeSource()).latestOffset({"default": {**at(500), "index": 501}}, ALL)


def test_a_checkpoint_of_another_group_is_refused() -> None:
    with pytest.raises(ConfigError, match="the checkpoint is of group 'orders'"):
        streaming(MadeSource()).latestOffset({"orders": 5}, ALL)


def test_a_checkpoint_of_which_a_pattern_finds_no_group_is_refused() -> None:
    options = LedgerOptions.parse({"servers": "made:1", "subscribePattern": "other.*"})
    schema = spark_schema_of(["index", "body"])
    reader = LedgerStreamReader(options, schema, MadeSource().open, served=lambda _: ["orders"])
    with pytest.raises(ConfigError, match="group 'orders', the options name no group that exists:"):
        reader.latestOffset({"orders": 5}, ALL)


def test_options_of_the_other_way_to_read_are_refused() -> None:
    schema = spark_schema_of(["index"])
    with pytest.raises(ConfigError, match=r"read it with spark\.read"):
        LedgerDataSource({"path": "/data/n0"}).streamReader(schema).initialOffset()
    with pytest.raises(ConfigError, match=r"endingOffsets is for spark\.read; a stream has no end"):
        stream = LedgerDataSource({"servers": "a:1", "endingOffsets": "5"}).streamReader(schema)
        stream.latestOffset({"default": 0}, ALL)
    ends = {"subscribe": "a,b", "endingOffsetsByTimestamp": '{"a": 1, "b": 2}'}
    with pytest.raises(ConfigError, match=r"endingOffsetsByTimestamp is for spark\.read"):
        LedgerDataSource({"servers": "a:1", **ends}).streamReader(schema).initialOffset()
    with pytest.raises(ConfigError, match=r"maxOffsetsPerTrigger is for spark\.readStream"):
        LedgerDataSource({"servers": "a:1", "maxoffsetspertrigger": "5"}).reader(schema)


def test_a_query_may_begin_at_a_time() -> None:
    """The made source has an entry a second."""
    reader = streaming(MadeSource(begin_index=20), startingTimestamp="77500")
    assert reader.initialOffset() == {"default": 78}
    early = streaming(MadeSource(begin_index=20), startingTimestamp="0")
    assert early.initialOffset() == {"default": 20}


def test_a_reader_of_the_log_moves_with_the_query_where_it_is_named() -> None:
    source = MadeSource()
    named = streaming(source, reader="billing", readerHold="true")
    named.latestOffset(named.initialOffset(), ALL)
    assert source.begun == [("billing", 0, True)], "it is kept before anything is read"
    named.commit({"default": at(70)})
    streaming(source).commit({"default": at(90)})
    assert source.committed == [("billing", 70)]
    older = MadeSource(begin_index=100)
    streaming(older, reader="billing", readerHold="true").latestOffset({"default": 50}, ALL)
    assert older.begun == [("billing", 100, True)], "no hold can stand where entries are gone"
    with pytest.raises(ConfigError, match="readerHold needs option reader"):
        streaming(source, readerHold="true")


def two_groups(
    a: MadeSource, b: MadeSource, columns: Sequence[str] = ("group", "index"), **given: str
) -> LedgerStreamReader:
    options = LedgerOptions.parse({"servers": "made:1", "subscribe": "b, a", **given})
    sources = {"a": a, "b": b}
    a.group, b.group = "a", "b"
    schema = StructType()
    for name in columns:  # spelled as a user may
        schema = schema.add(name, COLUMN_TYPES[name.lower()])
    return LedgerStreamReader(options, schema, lambda each: sources[each.served_group].open(each))


def test_a_query_of_several_groups_has_an_offset_of_each() -> None:
    reader = two_groups(
        MadeSource(stop_index=100), MadeSource(), startingOffsets='{"a": 90, "b": "earliest"}'
    )
    start = reader.initialOffset()
    assert list(start.items()) == [("a", 90), ("b", 0)], "always the same text"
    begun = reader.latestOffset(start, ALL)
    assert list(begun.items()) == [("a", at(90)), ("b", at(0))]
    end = reader.latestOffset(begun, ALL)
    assert end == {"a": at(100), "b": at(500)}
    assert reader.reportLatestOffset() == {"a": {"index": 100}, "b": {"index": 500}}
    groups = [
        (name, len(batch))
        for partition in reader.partitions({"b": at(480), "a": at(90)}, end)
        for batch in reader.read(partition)
        for name in set(batch["group"].to_pylist())
    ]
    assert sum(count for name, count in groups if name == "a") == len(expected(90, 100)["index"])
    assert sum(count for name, count in groups if name == "b") == len(expected(480, 500)["index"])


def test_limits_are_of_all_groups_together_by_what_each_has() -> None:
    a, b = MadeSource(stop_index=100), MadeSource(stop_index=400)
    limited = two_groups(a, b, maxOffsetsPerTrigger="50")
    start = {"a": at(0), "b": at(0)}
    end = limited.latestOffset(start, limited.getDefaultReadLimit())
    assert end == {"a": at(10), "b": at(40)}
    last = {"a": at(99), "b": at(0)}
    assert limited.latestOffset(last, limited.getDefaultReadLimit()) == {"a": at(100), "b": at(49)}
    patient = two_groups(a, b, minOffsetsPerTrigger="501")
    assert patient.latestOffset(start, patient.getDefaultReadLimit()) == start
    by_bytes = two_groups(a, b, maxBytesPerTrigger="1")
    assert by_bytes.latestOffset(start, by_bytes.getDefaultReadLimit()) == {"a": at(1), "b": at(1)}


def all_ends(reader: LedgerStreamReader) -> list[tuple[int, int]]:
    start, ends = {"a": at(0), "b": at(0)}, []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        ends.append((end["a"]["index"], end["b"]["index"]))
        start = end
    return ends


def test_groups_advance_together_by_time_where_a_watermark_may_be_taken_of_it() -> None:
    """Rows of `b` are 200 s younger: read by number alone, they would lift the watermark over `a`'s."""
    a, b = MadeSource(stop_index=400), MadeSource(stop_index=100)
    b.first_s = 200
    ends = all_ends(two_groups(a, b, ("group", "Append_Time"), maxOffsetsPerTrigger="100"))
    assert ends[-1] == (400, 100)
    assert all(read_of_b <= max(0, read_of_a - 200) for read_of_a, read_of_b in ends[:-1])
    by_number = two_groups(a, b, maxOffsetsPerTrigger="100")
    first = by_number.latestOffset({"a": at(0), "b": at(0)}, by_number.getDefaultReadLimit())
    assert first == {"a": at(80), "b": at(20)}


def indices_of(reader: LedgerStreamReader, partitions: Any) -> dict[str, list[int]]:
    """By group; for readers of the columns group and index."""
    found: dict[str, list[int]] = {}
    for partition in partitions:
        for batch in reader.read(partition):
            for group, index in zip(*batch.to_pydict().values(), strict=True):
                found.setdefault(group, []).append(index)
    return found


def test_a_group_that_a_restarted_query_names_for_the_first_time_is_read_from_its_begin() -> None:
    alone = {"a": at(90)}
    reader = two_groups(
        MadeSource(stop_index=100), MadeSource(begin_index=450), startingOffsets="latest"
    )
    begun = reader.latestOffset(alone, ALL)
    assert begun == {"a": at(90), "b": {**at(450), "chain": None}}, "before anything is read"
    assert not reader.partitions(alone, begun)
    end = reader.latestOffset(begun, ALL)
    assert end == {"a": at(100), "b": at(500)}
    read = indices_of(reader, reader.partitions(begun, end))
    assert read == {"a": expected(90, 100)["index"], "b": expected(450, 500)["index"]}


def test_groups_that_a_pattern_finds_later_are_read_from_their_begin() -> None:
    a, b = MadeSource(stop_index=100), MadeSource(begin_index=450)
    a.group, b.group = "orders.a", "orders.b"
    sources, served = {each.group: each for each in (a, b)}, ["default"]
    options = LedgerOptions.parse(
        {"servers": "made:1", "subscribePattern": r"orders\..*", "startingOffsets": "latest"}
    )
    reader = LedgerStreamReader(
        options,
        spark_schema_of(["group", "index"]),
        lambda each: sources[each.served_group].open(each),
        lambda _: served,
    )
    nothing = reader.initialOffset()
    assert nothing == {} == reader.latestOffset(nothing, ALL)
    assert not reader.partitions(nothing, nothing)
    served.append("orders.a")
    begun = reader.latestOffset(nothing, ALL)
    assert begun == {"orders.a": at(0)}, "what came while the query ran, ran from its begin"
    end = reader.latestOffset(begun, ALL)
    served.append("orders.b")
    joined = reader.latestOffset(end, ALL)
    assert joined == {"orders.a": at(100), "orders.b": {**at(450), "chain": None}}
    reader.prepareForTriggerAvailableNow()
    last = reader.latestOffset(joined, ALL)
    assert indices_of(reader, reader.partitions(joined, last)) == {
        "orders.b": expected(450, 500)["index"]
    }
    served.remove("orders.a")
    assert reader.latestOffset(last, ALL) == last, "availableNow keeps the groups that it began with"


def test_a_group_that_a_restarted_query_does_not_name_ends_where_that_was_asked_for() -> None:
    both, only_a = {"a": at(90), "b": at(480)}, {"a": at(90)}
    sources = MadeSource(stop_index=100), MadeSource()

    def of_a(**given: str) -> LedgerStreamReader:
        options = LedgerOptions.parse({"servers": "made:1", "subscribe": "a", **given})
        a, b = sources
        a.group, b.group = "a", "b"
        schema = spark_schema_of(["group", "index"])
        by_name = {"a": a, "b": b}
        return LedgerStreamReader(options, schema, lambda each: by_name[each.served_group].open(each))

    with pytest.raises(ConfigError, match=r"the rest of 'b' would not be read\. Name it again, or"):
        of_a().latestOffset(both, ALL)
    reader = of_a(failOnDataLoss="false")
    assert reader.latestOffset(both, ALL) == {"a": at(100)}
    # What was planned with both and not committed has the rows of both.
    again = reader.partitions(both, {"a": at(100), "b": at(500)})
    assert indices_of(reader, again) == {
        "a": expected(90, 100)["index"],
        "b": expected(480, 500)["index"],
    }
    assert indices_of(reader, reader.partitions(both, {"a": at(100)})) == {
        "a": expected(90, 100)["index"]
    }
    done = of_a(failOnDataLoss="false").latestOffset({"a": at(100), "b": at(480)}, ALL)
    assert done == {"a": at(100)}, "the checkpoint forgets the other one, also with nothing to read"
    assert reader.latestOffset(only_a, ALL) == {"a": at(100)}


def test_groups_advance_together_over_entries_that_are_gone() -> None:
    a, b = MadeSource(begin_index=250, stop_index=400), MadeSource(begin_index=30, stop_index=100)
    b.first_s = 200
    given = {"maxOffsetsPerTrigger": "100", "failOnDataLoss": "false"}
    ends = all_ends(two_groups(a, b, ("group", "append_time"), **given))
    assert ends[-1] == (400, 100)
    assert all(read_of_b <= max(30, read_of_a - 200) for read_of_a, read_of_b in ends[:-1]), ends


def test_rows_with_a_time_wait_for_a_group_whose_rows_have_none_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first 200 entries of `a` lie in front of its first time mark; those behind are older than
    `b`'s."""
    a, b = MadeSource(stop_index=400), MadeSource(stop_index=100)
    b.first_s = 1000
    monkeypatch.setattr(a, "time_ms_at", lambda index: index * 1000 if index >= 200 else -1)
    ends = all_ends(two_groups(a, b, ("group", "append_time"), maxOffsetsPerTrigger="100"))
    assert ends[-1] == (400, 100)
    assert {read_of_b for read_of_a, read_of_b in ends if read_of_a < 400} == {0}
