"""Rows as entries, and what they are recognised by."""

from __future__ import annotations

import datetime
import decimal
import io
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from quorumlog.arrow import batch_of_bodies
from quorumlog.batch import EntryBatch
from quorumlog.errors import ConfigError
from quorumlog.spark.row_bodies import Packed, RowBodies, SinkOptions, row_hashes
from quorumlog.staging import RowDigest

RAW = StructType().add("body", "binary")


def bodies_of(packed: list[Packed]) -> list[bytes]:
    return [bytes(body) for each in packed for body in each.batch.bodies()]


def digest_of(packed: list[Packed]) -> RowDigest:
    digest = RowDigest()
    for each in packed:
        digest = digest.plus(each.digest)
    return digest


def row_bodies(schema: StructType = RAW, **options: str) -> RowBodies:
    return RowBodies(schema, SinkOptions.parse({"servers": "127.0.0.1:1", **options}))


@given(st.lists(st.binary(max_size=9), min_size=1), st.integers(0, 5))
def test_a_column_becomes_entries_as_a_list_of_bodies_does(rows: list[bytes], skipped: int) -> None:
    column = pa.array([b"before"] * skipped + rows, pa.binary()).slice(skipped)
    made, expected = batch_of_bodies(column), EntryBatch.from_bodies(rows)
    assert bytes(made.buffer) == bytes(expected.buffer)
    assert made.sizes.tolist() == expected.sizes.tolist()


@given(st.lists(st.binary(max_size=60), min_size=1), st.integers(1, 400))
def test_raw_rows_are_cut_at_batch_bytes_and_nothing_else_changes(rows: list[bytes], limit: int) -> None:
    packed = list(row_bodies(batchBytes=str(limit)).pack(pa.RecordBatch.from_pydict({"body": rows})))
    assert bodies_of(packed) == rows
    assert all(each.batch.total_bytes <= limit or each.batch.count == 1 for each in packed)
    assert sum(each.rows for each in packed) == len(rows)
    assert digest_of(packed) == RowDigest.of_entries(EntryBatch.from_bodies(rows))


def test_text_is_a_body_too_and_a_null_is_none() -> None:
    schema = StructType().add("value", "string")
    rows = pa.RecordBatch.from_pydict({"value": ["a", "ü"]})
    assert bodies_of(list(row_bodies(schema).pack(rows))) == [b"a", "ü".encode()]
    with pytest.raises(ConfigError, match="column value is null in 1 of 2 rows"):
        list(row_bodies(schema).pack(pa.RecordBatch.from_pydict({"value": ["a", None]})))


COLUMNS = pa.RecordBatch.from_pydict(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "small": pa.array([1, None, 3], pa.int8()),
        "price": pa.array([1.5, float("nan"), -0.0]),
        "exact": pa.array(
            [decimal.Decimal("1.10"), None, decimal.Decimal("-3.00")], pa.decimal128(9, 2)
        ),
        "name": pa.array(["a", None, "ü"]),
        "flag": pa.array([True, False, None]),
        "at": pa.array([datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), None, None]),
        "tags": pa.array([["a"], [], None], pa.list_(pa.string())),
        "place": pa.array([{"x": 1}, {"x": None}, None], pa.struct([("x", pa.int32())])),
    }
)
SCHEMA = StructType()
"""Its types are looked at for `raw` only."""


def test_a_row_of_json_is_an_object_of_its_columns() -> None:
    bodies = bodies_of(list(row_bodies(SCHEMA, bodyFormat="json").pack(COLUMNS)))
    first = json.loads(bodies[0])
    assert first["id"] == 1
    assert first["tags"] == ["a"]
    assert first["exact"] == "1.10"
    assert json.loads(bodies[2])["id"] is None


def test_a_map_is_an_object_wherever_it_lies() -> None:
    counts = pa.map_(pa.string(), pa.int64())
    within = pa.struct([("m", pa.map_(pa.int64(), pa.list_(counts)))])
    rows = pa.record_batch(
        {
            "m": pa.array([[("a", 1)], [], None], counts),
            "s": pa.array([{"m": [(7, [[("b", 2)]])]}, None, None], within),
        }
    )
    bodies = bodies_of(list(row_bodies(SCHEMA, bodyFormat="json").pack(rows)))
    assert list(map(json.loads, bodies)) == [
        {"m": {"a": 1}, "s": {"m": {"7": [{"b": 2}]}}},
        {"m": {}, "s": None},
        {"m": None, "s": None},
    ]


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_rows_of_arrow_come_back_and_their_digest_knows_no_entries(rows: int) -> None:
    packed = list(row_bodies(SCHEMA, bodyFormat="arrow", rowsPerEntry=str(rows)).pack(COLUMNS))
    tables = [pa.ipc.open_stream(io.BytesIO(body)).read_all() for body in bodies_of(packed)]
    assert len(tables) == -(-3 // rows)
    back = pa.concat_tables(tables)
    assert back.drop_columns(["price"]) == pa.table(COLUMNS).drop_columns(["price"])
    assert sum(each.rows for each in packed) == 3
    assert digest_of(packed) == RowDigest.of_hashes(row_hashes(COLUMNS))


def test_a_row_has_its_number_wherever_it_stands() -> None:
    hashes = row_hashes(COLUMNS)
    assert len(set(hashes.tolist())) == 3
    for at in range(3):
        assert row_hashes(COLUMNS.slice(at, 1)).tolist() == [hashes[at]]
    turned = COLUMNS.take(pa.array([2, 0, 1]))
    assert row_hashes(turned).tolist() == hashes[[2, 0, 1]].tolist()


@pytest.mark.parametrize("name", COLUMNS.schema.names)
def test_every_column_counts_and_where_it_stands(name: str) -> None:
    hashes = row_hashes(COLUMNS)
    at = COLUMNS.schema.get_field_index(name)
    nulls = pa.nulls(3, COLUMNS.schema.field(at).type)
    changed = COLUMNS.set_column(at, name, nulls)
    assert row_hashes(changed)[0] != hashes[0]
    both = pa.RecordBatch.from_arrays([COLUMNS.column(at), nulls], names=["a", "b"])
    turned = pa.RecordBatch.from_arrays([nulls, COLUMNS.column(at)], names=["a", "b"])
    assert row_hashes(both)[0] != row_hashes(turned)[0]


def test_no_rows_are_nothing() -> None:
    assert list(row_bodies().pack(pa.RecordBatch.from_pydict({"body": pa.array([], pa.binary())}))) == []
    assert np.array_equal(row_hashes(COLUMNS.slice(0, 0)), np.zeros(0, np.uint64))
