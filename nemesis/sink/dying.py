"""DyingSource: its query's driver is killed once a manifest stands and nothing of it is replayed."""

from __future__ import annotations

import os
import signal
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from quorumlog.spark import LedgerDataSource
from quorumlog.spark.row_bodies import SinkOptions
from quorumlog.spark.writers import LedgerStreamWriter
from quorumlog.staging import SinkCommits

DRIVER_GROUP = "NEMESIS_DRIVER_GROUP"
"""The driver's process group, which Spark's workers are not of, in the environment."""


class DyingSource(LedgerDataSource):
    @classmethod
    def name(cls) -> str:
        return "dying-quorumlog"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return DyingWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)


class DyingWriter(LedgerStreamWriter):
    def commit(self, *args: Any, **kwargs: Any) -> None:
        SinkCommits._replay_once = _die  # type: ignore[method-assign, assignment]
        super().commit(*args, **kwargs)


def _die(*_: object) -> None:
    os.killpg(int(os.environ[DRIVER_GROUP]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
