"""IcebergArchive: an Iceberg table of an archive's files, in the catalog that pyiceberg is set up for.

Each commit says up to where the table has the log, in its snapshot's summary: a table that is rolled
back has the summary of the snapshot that it went back to. A property of the table says the same and is
not rolled back: it counts only where snapshots have expired.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from quorumlog.errors import ConfigError, the_extra
from quorumlog.header_array import Int64Array
from quorumlog.pipelines.archive_parts import ROW_SCHEMA
from quorumlog.pipelines.tables.target import (
    ARCHIVE_DIRECTORY,
    ICEBERG,
    ArchiveTable,
    Files,
    local_path,
    share,
)

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.table import Table
except ModuleNotFoundError as error:
    raise ConfigError(
        f"an archive that is an Iceberg table needs pyiceberg ({error}), {the_extra('iceberg')}"
    ) from None

LOG = "quorumlog.log"
MADE_BY = "quorumlog.archive"
STOP_INDEX = "quorumlog.stop-index"
RETRIES = "commit.retry.num-retries"
PROPERTIES = {
    MADE_BY: "1",
    # A commit that was overtaken is not simply made again: the range is read before each.
    RETRIES: "0",
    # The columns of which the files have statistics.
    "write.metadata.metrics.default": "none",
    "write.metadata.metrics.column.index": "full",
    "write.metadata.metrics.column.term": "full",
    "write.metadata.metrics.column.append_time": "full",
}


class IcebergArchive(ArchiveTable):
    def __init__(self, target: str, *, is_read: bool = False) -> None:
        """Unless it is to be read only, a table is made if there is none: a catalog says only then where
        it lies. Raises ConfigError."""
        self.name = target
        identifier = target.removeprefix(ICEBERG)
        if identifier.count(".") < 1 or not all(identifier.split(".")):
            raise ConfigError(f"{target!r} names no table; write {ICEBERG}NAMESPACE.TABLE")
        try:
            catalog = load_catalog()
            self._table = catalog.load_table(identifier) if is_read else _made(catalog, identifier)
        except NoSuchTableError:
            raise ConfigError(
                f"there is no table {identifier}; quorumlog pipeline archive {target} makes one"
            ) from None
        except Exception as error:  # of whatever the catalog is made of
            raise ConfigError(
                f"{target}: the catalog does not answer: {error}. Name it in ~/.pyiceberg.yaml or by"
                " PYICEBERG_CATALOG__DEFAULT__URI"
            ) from error
        self._location = local_path(target, self._table.location())
        self.directory = os.path.join(self._location, ARCHIVE_DIRECTORY)

    def check(self) -> None:
        if MADE_BY not in self._table.properties or STOP_INDEX in self._table.properties:
            raise ConfigError(
                f"{self.name} is a table of other rows, or has lost its archive; name a new table"
            )

    def commit(self, files: Files, missing: Files, log: str) -> None:
        if self._table.properties.get(RETRIES) != "0":
            raise ConfigError(
                f"{self.name} has {RETRIES} = {self._table.properties.get(RETRIES)}: a commit that is"
                " made again unseen may add its files twice. Set the table's property to 0"
            )
        data = os.path.join(self._location, "data")
        first, last = missing[0][0], missing[-1][0]
        archived = {
            "quorumlog.first-index": str(files[0][0].first_index),
            STOP_INDEX: str(last.stop_index),
            "quorumlog.last-chain": f"{last.last_chain:08x}",
            LOG: log,
        }
        with self.asking(Exception):  # of whatever the catalog is made of
            paths = ["file://" + share(path, data) for _, path in missing]
            with self._table.transaction() as commit:
                commit.set_properties(archived)
                # That no file is added twice is known by the range; looking would read every manifest.
                commit.add_files(
                    paths,
                    snapshot_properties={**archived, "quorumlog.first-index": str(first.first_index)},
                    check_duplicate_files=False,
                )

    def recorded_stop(self, log: str) -> tuple[int | None, bool]:
        with self.asking(Exception):  # of whatever the catalog is made of
            table = self._table.refresh()
        if table.properties.get(LOG, log) != log:
            raise ConfigError(
                f"{self.name} is of another log, {table.properties[LOG]}; name a new table"
            )
        snapshot = table.current_snapshot()
        if snapshot is None:
            return None, True
        newest = max(each.sequence_number or 0 for each in table.snapshots())
        is_newest = (snapshot.sequence_number or 0) == newest
        while True:
            summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
            if STOP_INDEX in summary:
                return int(summary[STOP_INDEX]), True
            # pyiceberg takes the parent's id away where that one expires, other engines leave it.
            parent_id = snapshot.parent_snapshot_id
            parent = None if parent_id is None else table.snapshot_by_id(parent_id)
            if parent is None:
                break
            snapshot = parent
        if snapshot.parent_snapshot_id is None and STOP_INDEX not in table.properties:
            return None, True
        if not is_newest or STOP_INDEX not in table.properties:
            raise ConfigError(
                f"{self.name} was rolled back, and the snapshots that record which entries it has are"
                " expired. Archive to another table"
            )
        return int(table.properties[STOP_INDEX]), False

    def indices(self) -> Iterator[Int64Array]:
        for batch in self._table.refresh().scan(selected_fields=("index",)).to_arrow_batch_reader():
            yield batch.column(0).to_numpy()


def _made(catalog: Catalog, identifier: str) -> Table:
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(identifier.rpartition(".")[0])
        return catalog.create_table_if_not_exists(identifier, ROW_SCHEMA, properties=PROPERTIES)
