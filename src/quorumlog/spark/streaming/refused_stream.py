"""RefusedStream: a streaming query that cannot run, for what its options say."""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from quorumlog.spark.short_errors import in_short


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises what is wrong as soon as it is asked for anything. Where `streamReader` itself raises,
    PySpark 4.3 trips over the reader that it did not get, and the user sees two stacks."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @in_short
    def _refuse(self, *_: Any) -> NoReturn:
        raise self._error

    prepareForTriggerAvailableNow = getDefaultReadLimit = initialOffset = _refuse  # noqa: N815
    latestOffset = partitions = read = _refuse  # type: ignore[assignment]  # noqa: N815
