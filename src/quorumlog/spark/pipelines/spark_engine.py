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
    from pyspark.sql import Row, SparkSession

W = TypeVar("W", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

RESULT_BYTES = 128 * MIB
"""Of a job, whose results its driver holds at once, in Java and in Python, within
`spark.driver.maxResultSize`. A work alone may give more."""
_COLUMNS = "number bigint, size bigint, result binary, refusal binary"


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
        kind = get_type_hints(run)["return"]
        at, each_bytes, largest = 0, result_bytes, 0
        while at < len(works):
            count = max(RESULT_BYTES // each_bytes, 1) if each_bytes else len(works)
            some = tuple(works[at : at + count])
            share = RESULT_BYTES // len(some) if result_bytes and len(some) > 1 else 0
            rows = self._job(run, some, share)
            for row in rows:
                if row["refusal"]:
                    raise _raised(bytes(row["refusal"]))
                if not row["result"]:
                    break  # larger than its share, which those before did not tell
                yield msgspec.msgpack.decode(bytes(row["result"]), type=kind)
                at += 1
            largest = max(largest, *(row["size"] for row in rows))
            each_bytes = 2 * largest

    def _job(self, run: Callable[[W], R], works: tuple[W, ...], most_bytes: int) -> list[Row]:
        """Rows of `_COLUMNS`, in the order of works."""

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield _row(number, run, works[number], most_bytes)

        numbers = self.spark.range(0, len(works), 1, len(works))
        rows = numbers.mapInArrow(task, _COLUMNS).collect()
        return sorted(rows, key=lambda row: row["number"])


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


def _row(number: int, run: Callable[[W], R], work: W, most_bytes: int) -> pa.RecordBatch:
    """Of a result that is larger than `most_bytes` (0: none is) its size alone."""
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
    size = len(result)
    kept = b"" if 0 < most_bytes < size else result
    columns = [pa.array([number]), pa.array([size]), pa.array([kept]), pa.array([refusal])]
    return pa.RecordBatch.from_arrays(columns, ["number", "size", "result", "refusal"])


def _raised(encoded: bytes) -> Exception:
    refusal = msgspec.msgpack.decode(encoded, type=_Refusal)
    if refusal.error is not None:
        return error_of(refusal.error)
    if refusal.place:
        return DirectoryDamaged(refusal.text, **refusal.place)
    return next(kind for kind in _KINDS if kind.__name__ == refusal.kind)(refusal.text)
