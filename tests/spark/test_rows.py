from __future__ import annotations

from datetime import UTC, datetime
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from quorumlog.append_times import AppendTimes
from quorumlog.errors import ConfigError
from quorumlog.spark.options import COLUMNS, RowEncoder, check_schema, spark_schema_of
from tests.spark.made_batches import MadeLog

BODIES = [b"a", b"", "naïve ☃".encode(), bytes(range(256)) * 20, b"b"]


def test_every_column_says_what_the_entry_says() -> None:
    log = MadeLog(BODIES, term=7)
    times = AppendTimes(1_700_000_000_123)
    rows = RowEncoder(spark_schema_of(COLUMNS), "orders").encode(log.batch, times).to_pydict()
    assert list(rows) == list(COLUMNS)
    assert rows["group"] == ["orders"] * 5
    assert rows["index"] == [0, 1, 2, 3, 4]
    assert rows["term"] == [7] * 5
    assert rows["pos"] == log.batch.starts.tolist()
    assert rows["channel"] == [0] * 5
    assert rows["chain_crc"] == log.batch.headers()["chain_crc"].tolist()
    assert rows["body_crc"] == [crc32(body) for body in BODIES]
    assert rows["body"] == BODIES
    assert rows["append_time"] == [datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)] * 5


def test_digests_above_2_to_the_31_stay_positive() -> None:
    bodies = [str(number).encode() for number in range(64)]
    rows = RowEncoder(spark_schema_of(["chain_crc", "body_crc"]), "g").encode(MadeLog(bodies).batch)
    assert max(rows.column(0).to_pylist()) > 2**31
    assert max(rows.column(1).to_pylist()) > 2**31
    assert min(rows.column(0).to_pylist()) >= 0


def test_noops_are_not_rows() -> None:
    log = MadeLog([None, b"a", None, b"", b"b", None])
    rows = RowEncoder(spark_schema_of(["index", "body"]), "g").encode(log.batch).to_pydict()
    assert rows == {"index": [1, 3, 4], "body": [b"a", b"", b"b"]}


def test_a_batch_of_noops_alone_is_empty() -> None:
    rows = RowEncoder(spark_schema_of(COLUMNS), "g").encode(MadeLog([None, None]).batch, AppendTimes(-1))
    assert rows.num_rows == 0
    assert rows.schema == RowEncoder(spark_schema_of(COLUMNS), "g").arrow_schema


def test_equally_long_entries_are_read_as_well_as_others() -> None:
    bodies = [b"%04d" % number for number in range(1000)]
    rows = RowEncoder(spark_schema_of(["body", "index"]), "g").encode(MadeLog(bodies).batch)
    assert rows.column(0).to_pylist() == bodies
    assert rows.column(1).to_pylist() == list(range(1000))


def test_a_slice_of_a_batch_gives_its_own_rows() -> None:
    log = MadeLog(BODIES)
    rows = RowEncoder(spark_schema_of(["index", "body"]), "g").encode(log.batch.slice(2, 4)).to_pydict()
    assert rows == {"index": [2, 3], "body": BODIES[2:4]}


@pytest.mark.parametrize("columns", [COLUMNS, ("body",), ("index", "group"), ("channel", "pos")])
def test_the_arrow_schema_is_the_one_that_spark_expects(columns: tuple[str, ...]) -> None:
    schema = spark_schema_of(columns)
    encoder = RowEncoder(schema, "g")
    assert encoder.arrow_schema == to_arrow_schema(schema, timezone="UTC")
    assert encoder.encode(MadeLog(BODIES).batch, AppendTimes(-1)).schema == encoder.arrow_schema


def test_not_null_of_a_user_schema_is_kept() -> None:
    schema = StructType([StructField("index", LongType(), nullable=False)])
    encoder = RowEncoder(schema, "g")
    assert encoder.arrow_schema.field("index") == pa.field("index", pa.int64(), nullable=False)
    assert encoder.encode(MadeLog(BODIES).batch).schema == to_arrow_schema(schema, timezone="UTC")


def test_bodies_are_not_decoded_one_by_one() -> None:
    """The body column is one kernel call over the batch's own memory, whatever the number of rows."""
    log = MadeLog([b"x" * 10] * 20_000)
    body = RowEncoder(spark_schema_of(["body"]), "g").encode(log.batch).column(0)
    offsets = np.frombuffer(body.buffers()[1], np.int32)[: len(body) + 1]
    assert (np.diff(offsets) == 10).all()


@pytest.mark.parametrize(
    ("schema", "columns", "message"),
    [
        (StructType().add("indx", "long"), None, "'indx'; format quorumlog has group, index"),
        (StructType().add("body", "string"), None, "body as STRING, but it is BINARY; cast it"),
        (StructType().add("chain_crc", IntegerType()), None, "chain_crc as INT, but it is BIGINT"),
        (StructType(), None, "names no column"),
        (StructType().add("index", "long").add("index", "long"), None, "twice"),
        (StructType().add("index", "long"), ("index", "body"), r"columns \(index, body\) and .schema"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused(
    schema: StructType, columns: tuple[str, ...] | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_schema(schema, columns)


def test_a_schema_with_some_of_our_columns_is_taken() -> None:
    check_schema(StructType().add("body", "binary").add("index", "long"), None)
    check_schema(StructType().add("body", "binary"), ("body",))
