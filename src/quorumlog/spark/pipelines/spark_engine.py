"""SparkEngine: each work of a pipeline is a task on an executor.

The DataFrame API alone is used, so a Connect session does. Executors need quorumlog installed, as the
data source does, and what a work reads or writes under the same name: members by their addresses,
directories by a shared path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import msgspec
import pyarrow as pa

from quorumlog.config import MIB
from quorumlog.errors import (
    ConfigError,
    DirectoryDamaged,
    LedgerError,
    ProtocolViolation,
    StoreFailure,
)
from quorumlog.net.errors import ErrorResponse, error_of, error_response

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

W = TypeVar("W", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

RESULT_BYTES = 128 * MIB
"""Of a job, whose results its driver holds at once, in Java and in Python
(`spark.driver.maxResultSize`)."""
_COLUMNS = "number bigint, result binary, refusal binary"


class SparkEngine:
    def __init__(self, spark: SparkSession | Callable[[], SparkSession]) -> None:
        """Or how to start a session, once something is to run on it."""
        self._given = spark

    @property
    def spark(self) -> SparkSession:
        """A session may take half a minute to start: what can be refused before it is, is."""
        if callable(self._given):
            self._given = self._given()
        return self._given

    def map(self, run: Callable[[W], R], works: Sequence[W], result_bytes: int = 0) -> Iterator[R]:
        """A task that is lost is run again by Spark, and a slow one may run twice. What a work refuses
        it would refuse again, so that is not a failure of its task, and is raised here."""
        at = largest = 0
        while at < len(works):
            stop = at + max(RESULT_BYTES // result_bytes, 1) if result_bytes else len(works)
            for size, result in self._job(run, tuple(works[at:stop])):
                largest = max(largest, size)
                yield result
            at, result_bytes = stop, 2 * largest

    def _job(self, run: Callable[[W], R], works: tuple[W, ...]) -> Iterator[tuple[int, R]]:
        """With the bytes of each."""

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield _row(number, run, works[number])

        numbers = self.spark.range(0, len(works), 1, len(works))
        rows = numbers.mapInArrow(task, _COLUMNS).collect()
        kind = get_type_hints(run)["return"]
        for row in sorted(rows, key=lambda row: row["number"]):
            if row["refusal"]:
                raise _raised(bytes(row["refusal"]))
            yield len(row["result"]), msgspec.msgpack.decode(bytes(row["result"]), type=kind)


_KINDS = (StoreFailure, ProtocolViolation, ConfigError)


class _Refusal(msgspec.Struct):
    """How a work ended that refused."""

    text: str
    error: ErrorResponse | None = None
    """Of a LedgerError."""
    kind: str = ""
    """Name of one without a place."""
    place: dict[str, Any] = {}
    """Of DirectoryDamaged, as its constructor takes it."""


def _row(number: int, run: Callable[[W], R], work: W) -> pa.RecordBatch:
    result, refusal = b"", b""
    try:
        result = msgspec.msgpack.encode(run(work))
    except LedgerError as error:
        refusal = msgspec.msgpack.encode(_Refusal(str(error), error_response(0, error)))
    except DirectoryDamaged as error:
        place = {name: getattr(error, name) for name in ("path", "position", "index", "stop_index")}
        refusal = msgspec.msgpack.encode(_Refusal(str(error), place=place))
    except (StoreFailure, ProtocolViolation, ConfigError) as error:
        name = next(kind.__name__ for kind in _KINDS if isinstance(error, kind))
        refusal = msgspec.msgpack.encode(_Refusal(str(error), None, name))
    fields = {"number": pa.int64(), "result": pa.binary(), "refusal": pa.binary()}
    values = {"number": [number], "result": [result], "refusal": [refusal]}
    return pa.RecordBatch.from_pydict(values, schema=pa.schema(list(fields.items())))


def _raised(encoded: bytes) -> Exception:
    refusal = msgspec.msgpack.decode(encoded, type=_Refusal)
    if refusal.error is not None:
        return error_of(refusal.error)
    if refusal.place:
        return DirectoryDamaged(refusal.text, **refusal.place)
    return next(kind for kind in _KINDS if kind.__name__ == refusal.kind)(refusal.text)
