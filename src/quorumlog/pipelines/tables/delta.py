"""DeltaArchive: a Delta table of an archive's files, committed without a JVM.

Each commit says up to where the table has the log, in its custom metadata. The present version's
contents follow from the history: RESTORE takes rows back, and leaves the application's transaction
(Delta's `txn` action) where it was. That transaction has one use: of two commits at once with it, Delta
refuses one. Its version decides nothing, since Delta takes a lower one or the same again without a word.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
import pyarrow.parquet as pq

from quorumlog.errors import ConfigError, the_extra
from quorumlog.header_array import Int64Array
from quorumlog.pipelines.archive_parts import ROW_SCHEMA, Part
from quorumlog.pipelines.tables.target import (
    ARCHIVE_DIRECTORY,
    DELTA,
    ArchiveTable,
    Files,
    local_path,
    share,
)

try:
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import (
        AddAction,
        CommitProperties,
        Transaction,
        create_table_with_add_actions,
    )
except ModuleNotFoundError as error:
    raise ConfigError(
        f"an archive that is a Delta table needs deltalake ({error}), {the_extra('delta')}"
    ) from None

APPLICATION = "quorumlog-archive"
LOG, STOP_INDEX = "quorumlog.log", "quorumlog.stop_index"


class DeltaArchive(ArchiveTable):
    def __init__(self, target: str) -> None:
        self.name = target
        self._path = local_path(target, target.removeprefix(DELTA))
        self.directory = os.path.join(self._path, ARCHIVE_DIRECTORY)
        self._table: DeltaTable | None = None
        """As it was looked at last."""

    def check(self) -> None:
        names = sorted(os.listdir(self._path)) if os.path.isdir(self._path) else []
        if strange := [name for name in names if name != ARCHIVE_DIRECTORY]:
            raise ConfigError(
                f"{self._path} holds {strange[0]} and no archive; name an empty or a new directory"
            )

    def commit(self, files: Files, missing: Files, log: str) -> None:
        if self._table is not None and len(missing) == len(files):  # it has none of them
            raise ConfigError(
                f"{self.name} is a table that its archive did not make; archive to another directory"
            )
        with self.asking(DeltaError, OSError):
            added = [self._added(part, path) for part, path in missing]
            first, last = missing[0][0], missing[-1][0]
            properties = CommitProperties(
                custom_metadata={
                    LOG: log,
                    "quorumlog.first_index": str(first.first_index),
                    STOP_INDEX: str(last.stop_index),
                    "quorumlog.chain_before": f"{first.chain_before:08x}",
                    "quorumlog.last_chain": f"{last.last_chain:08x}",
                },
                app_transactions=[Transaction(f"{APPLICATION}:{log}", last.stop_index)],
            )
            schema = Schema.from_arrow(ROW_SCHEMA)
            if self._table is not None:
                self._table.create_write_transaction(
                    [*added], "append", schema, commit_properties=properties
                )
            else:
                create_table_with_add_actions(
                    self._path, schema, added, commit_properties=properties, description=log
                )

    def _check_newest_rows(self, files: Files, stop_index: int) -> None:
        with self.asking(DeltaError, OSError):
            super()._check_newest_rows(files, stop_index)

    def recorded_stop(self, log: str) -> tuple[int | None, bool]:
        with self.asking(DeltaError, OSError):
            self._table = self._opened()
            return (None, True) if self._table is None else self._recorded_stop(self._table, log)

    def indices(self) -> Iterator[Int64Array]:
        table = self._opened()
        if table is not None:
            for batch in table.to_pyarrow_dataset().to_batches(columns=["index"]):
                yield batch.column(0).to_numpy()

    def _opened(self) -> DeltaTable | None:
        return DeltaTable(self._path) if DeltaTable.is_deltatable(self._path) else None

    def _recorded_stop(self, table: DeltaTable, log: str) -> tuple[int | None, bool]:
        commits = {commit["version"]: commit for commit in table.history()}
        version, is_restored = table.version(), False
        while version in commits:
            commit = commits[version]
            if commit.get(LOG) == log and STOP_INDEX in commit:
                return int(commit[STOP_INDEX]), True
            if commit["operation"] == "RESTORE":
                version, is_restored = _restored(commit, commits), True
            else:
                version -= 1
        if version < 0:
            return None, True
        if is_restored:
            raise ConfigError(
                f"{self.name} was restored to a version that its history no longer"
                " covers, so it is unknown which entries it has. Archive to another directory"
            )
        return table.transaction_version(f"{APPLICATION}:{log}"), False

    def _added(self, part: Part, archived: str) -> AddAction:
        path = share(archived, self._path)
        groups = pq.read_metadata(path)
        counted = [groups.row_group(n).column(0).statistics for n in range(groups.num_row_groups)]
        stats: dict[str, object] = {"numRecords": part.rows}
        if counted:
            stats["minValues"] = {"index": counted[0].min}
            stats["maxValues"] = {"index": counted[-1].max}
            stats["nullCount"] = {"index": 0}
        return AddAction(
            path=part.file,
            size=os.path.getsize(path),
            partition_values={},
            modification_time=int(os.path.getmtime(path) * 1000),
            data_change=True,
            stats=msgspec.json.encode(stats).decode(),
        )


def _restored(commit: dict[str, Any], commits: dict[int, dict[str, Any]]) -> int:
    """The version that a RESTORE went back to; below those of `commits`: it is not among them."""
    parameters = commit.get("operationParameters") or {}
    if parameters.get("version") is not None:
        return int(parameters["version"])
    until = parameters.get("datetime") or parameters.get("timestamp")
    try:
        until_ms = datetime.fromisoformat(str(until)).timestamp() * 1000
    except ValueError:
        until_ms = float(str(until)) if str(until).isdigit() else -1.0
    below = [v for v, c in commits.items() if v < commit["version"] and c["timestamp"] <= until_ms]
    return max(below, default=min(commits) - 1)
