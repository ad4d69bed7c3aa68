"""Options of a sink: each wrong one is named, with what would be right."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StructType

from quorumlog.errors import ConfigError
from quorumlog.spark.ledger_data_source import LedgerDataSource
from quorumlog.spark.row_bodies import SinkOptions
from quorumlog.spark.writers import LedgerBatchWriter, LedgerStreamWriter

SERVERS = {"servers": "127.0.0.1:1"}
SCHEMA = StructType().add("body", "binary")


def test_options_of_reading_are_ignored_and_named(caplog: pytest.LogCaptureFixture) -> None:
    given = {**SERVERS, "startingoffsets": "0", "kafka.bootstrap.servers": "a:1"}
    del given["servers"]
    assert SinkOptions.to_write(given).servers == "a:1"
    assert "startingoffsets is for reading" in caplog.text


def test_a_slip_in_a_query_that_reads_is_not_told_to_be_one_where_rows_are_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spark does not say at first whether it will read or write."""
    reading = LedgerDataSource({**SERVERS, "subscribepattern": "("})
    with pytest.raises(ConfigError, match="subscribePattern is no regular expression"):
        reading.schema()
    assert not caplog.text
    writing = LedgerDataSource({**SERVERS, "subscribepattern": "(", "producerid": "p"})
    assert not caplog.text
    with pytest.raises(ConfigError, match="producerId and batchId go together"):
        writing.writer(SCHEMA, overwrite=False)
    assert "subscribepattern is for reading, and is ignored where rows are written" in caplog.text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "needs option servers"),
        ({"servers": "nowhere"}, "option servers"),
        ({**SERVERS, "producerid": "a/b"}, "producerId must have 1 to 48 letters"),
        ({**SERVERS, "batchid": "-1"}, "option batchId must be in 0"),
        ({**SERVERS, "bodyformat": "xml"}, "option bodyFormat must be raw, json or arrow, not 'xml'"),
        ({**SERVERS, "batchdiffers": "drop"}, "option batchDiffers must be error or keep"),
        ({**SERVERS, "startingoffset": "0"}, "unknown option 'startingoffset' where format quorumlog"),
        ({**SERVERS, "group": "a", "subscribe": "b"}, "subscribe is given twice, under two names"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        SinkOptions.parse(options)


def test_sparks_own_options_are_accepted() -> None:
    spark = {"checkpointlocation": "/c", "queryname": "copy", "path": "somewhere"}
    assert SinkOptions.parse({**SERVERS, **spark}) == SinkOptions.parse(SERVERS)


@pytest.mark.parametrize("one", [{"producerid": "copy"}, {"batchid": "0"}])
def test_a_batch_needs_both_of_its_names_or_none(one: dict[str, str]) -> None:
    options = SinkOptions.parse({**SERVERS, **one})
    with pytest.raises(ConfigError, match="producerId and batchId go together"):
        LedgerBatchWriter(options, SCHEMA, overwrite=False)


@pytest.mark.parametrize(
    ("options", "told"),
    [({}, "writeStream needs option producerId"), ({"producerid": "c", "batchid": "1"}, "for df.write")],
)
def test_a_stream_needs_a_producer_and_numbers_by_itself(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        LedgerStreamWriter(SinkOptions.parse({**SERVERS, **options}), SCHEMA, overwrite=False)


def test_a_log_is_never_overwritten() -> None:
    with pytest.raises(ConfigError, match=r"mode\('append'\)"):
        LedgerBatchWriter(SinkOptions.parse(SERVERS), SCHEMA, overwrite=True)


@pytest.mark.parametrize(
    "schema",
    [StructType().add("body", "binary").add("key", "string"), StructType().add("id", LongType())],
)
def test_rows_that_are_no_bodies_say_how_to_make_some(schema: StructType) -> None:
    with pytest.raises(ConfigError, match=r"bodyFormat=json"):
        LedgerBatchWriter(SinkOptions.parse(SERVERS), schema, overwrite=False)


def test_a_source_that_will_be_written_to_is_no_wrong_one_to_read() -> None:
    """Spark makes the source before it says what it is for."""
    source = LedgerDataSource({**SERVERS, "producerid": "copy"})
    with pytest.raises(ConfigError, match="unknown option 'producerid'"):
        source.schema()
    with pytest.raises(ConfigError, match="unknown option 'producrid' of format"):
        LedgerDataSource({**SERVERS, "producrid": "copy"})
    with pytest.raises(ConfigError, match="where format quorumlog is written to"):
        LedgerDataSource({**SERVERS, "producerid": "copy", "batchdifers": "keep"})
