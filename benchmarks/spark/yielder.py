"""A Python data source without a log: the same Arrow batch again and again. What reads from Python can
be no faster than this, whatever it reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StructType

from quorumlog.spark.options import LedgerOptions

BATCH_BYTES = LedgerOptions().batch_bytes
HEADER_BYTES = 48
"""Of an entry: batches have as many rows as those of a log."""


@dataclass(frozen=True)
class Part(InputPartition):
    first_index: int
    stop_index: int


class YielderReader(DataSourceReader):
    def __init__(self, rows: int, body_bytes: int, columns: list[str]) -> None:
        self._rows = rows
        self._body_bytes = body_bytes
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        count = os.cpu_count() or 1
        edges = [self._rows * number // count for number in range(count + 1)]
        return [Part(first, stop) for first, stop in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part), partition
        most = max(BATCH_BYTES // (self._body_bytes + HEADER_BYTES), 1)
        bounds = pa.py_buffer(np.arange(most + 1, dtype=np.int32) * self._body_bytes)
        text = pa.py_buffer(os.urandom(most * self._body_bytes))
        ready = {
            "index": pa.array(np.arange(most)),
            "term": pa.array(np.ones(most, np.int64)),
            "body": pa.Array.from_buffers(pa.binary(), most, [None, bounds, text]),
        }
        columns = [ready[name] for name in self._columns]
        schema = pa.schema(
            [
                pa.field(name, column.type, nullable=False)
                for name, column in zip(self._columns, columns, strict=True)
            ]
        )
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        for at in range(partition.first_index, partition.stop_index, most):
            yield batch.slice(0, partition.stop_index - at)


class Yielder(DataSource):
    """Options `rows`, `size` of a body, `columns` of index, term, body."""

    @classmethod
    def name(cls) -> str:
        return "yielder"

    def _columns(self) -> list[str]:
        return self.options["columns"].split(",")

    def schema(self) -> StructType:
        schema = StructType()
        for name in self._columns():
            schema = schema.add(name, BinaryType() if name == "body" else LongType(), nullable=False)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        return YielderReader(int(self.options["rows"]), int(self.options["size"]), self._columns())
