"""DeltaArchive: a Delta table of an archive's files, committed without a JVM.

The end of the archived range is the version of an application's transaction (Delta's `txn` action),
which lies in the same commit as the files up to there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
import pyarrow.parquet as pq

from quorumlog.errors import ConfigError
from quorumlog.pipelines.archive_parts import Part
from quorumlog.pipelines.archive_rows import ROW_SCHEMA
from quorumlog.pipelines.tables.target import (
    ARCHIVE_DIRECTORY,
    DELTA,
    local_path,
    missing_in_table,
    not_committed,
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
        f"an archive that is a Delta table needs the package deltalake ({error}):"
        " pip install 'quorumlog[delta]'"
    ) from None

APPLICATION = "quorumlog-archive"


class DeltaArchive:
    def __init__(self, target: str) -> None:
        self.name = target
        self._path = local_path(target, target.removeprefix(DELTA))
        self.directory = os.path.join(self._path, ARCHIVE_DIRECTORY)

    def check(self) -> None:
        names = sorted(os.listdir(self._path)) if os.path.isdir(self._path) else []
        if strange := [name for name in names if name != ARCHIVE_DIRECTORY]:
            raise ConfigError(
                f"{self._path} holds {strange[0]} and no archive; name an empty or a new directory"
            )

    def add(self, parts: Sequence[Part], log: str) -> None:
        application = f"{APPLICATION}:{log}"
        try:
            table = DeltaTable(self._path) if DeltaTable.is_deltatable(self._path) else None
            stop_index = table.transaction_version(application) if table is not None else None
            if table is not None and stop_index is None:
                raise ConfigError(
                    f"{self.name} is a table that its archive did not make; archive to another directory"
                )
            missing = missing_in_table(self.name, parts, stop_index)
            if not missing:
                return
            added = [self._added(part) for part in missing]
            first, last = missing[0], missing[-1]
            properties = CommitProperties(
                custom_metadata={
                    "quorumlog.log": log,
                    "quorumlog.first_index": str(first.first_index),
                    "quorumlog.stop_index": str(last.stop_index),
                    "quorumlog.chain_before": f"{first.chain_before:08x}",
                    "quorumlog.last_chain": f"{last.last_chain:08x}",
                },
                app_transactions=[Transaction(application, last.stop_index)],
            )
            schema = Schema.from_arrow(ROW_SCHEMA)
            if table is not None:
                table.create_write_transaction([*added], "append", schema, commit_properties=properties)
            else:
                create_table_with_add_actions(
                    self._path, schema, added, commit_properties=properties, description=log
                )
        except (DeltaError, OSError) as error:
            raise not_committed(self.name, self.directory, error) from error

    def _added(self, part: Part) -> AddAction:
        path = share(self.directory, part, self._path)
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
