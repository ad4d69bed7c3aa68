"""Times of entries that were archived before the log's time was reset: those of the log behind it."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path

from quorumlog.arrow import TIME_COLUMN
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.places import Place
from quorumlog.spark.batch_reader import LedgerBatchReader
from quorumlog.spark.options import LedgerOptions, spark_schema_of
from quorumlog.spark.sources.ledger_source import open_source
from tests.client.test_clock_resets import HOUR, T0, Log, at_ms, made

__all__ = ["made"]


def test_an_archive_and_the_log_behind_it_tell_one_time(made: Log, tmp_path: Path) -> None:
    early = str(tmp_path / "early")
    archive(Place(servers=made.cluster.servers), early, part_bytes=8_000)
    made.reset()
    options = LedgerOptions.parse({"servers": made.cluster.servers, "archive": early})
    with closing(open_source(options)) as source:
        assert source.clock_resets() == made.log.clock_resets()
        assert {index: source.time_ms_at(index) for index in made.expected} == {
            index: at_ms(time) for index, time in made.expected.items()
        }
    columns = ("index", TIME_COLUMN)
    reader = LedgerBatchReader(options, spark_schema_of(columns))
    found = {
        row["index"]: row[TIME_COLUMN]
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    }
    assert found == made.expected

    late = str(at_ms(T0 + HOUR + timedelta(minutes=90)))
    options = LedgerOptions.parse(
        {"servers": made.cluster.servers, "archive": early, "startingTimestamp": late}
    )
    reader = LedgerBatchReader(options, spark_schema_of(columns))
    indices = [
        row["index"]
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    assert indices == [index for index, time in made.expected.items() if time > T0 + 2 * HOUR]
