"""IcebergArchive: an Iceberg table of an archive's files, in the catalog that pyiceberg is set up for.

The archived range is a property of the table, set in the same commit as its files are added: properties
stay when snapshots expire.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from quorumlog.errors import ConfigError
from quorumlog.pipelines.archive_parts import Part
from quorumlog.pipelines.archive_rows import ROW_SCHEMA
from quorumlog.pipelines.tables.target import (
    ARCHIVE_DIRECTORY,
    ICEBERG,
    local_path,
    missing_in_table,
    not_committed,
    share,
)

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.table import Table
except ModuleNotFoundError as error:
    raise ConfigError(
        f"an archive that is an Iceberg table needs the package pyiceberg ({error}):"
        " pip install 'quorumlog[iceberg]'"
    ) from None

LOG = "quorumlog.log"
MADE_BY = "quorumlog.archive"
STOP_INDEX = "quorumlog.stop-index"
PROPERTIES = {
    MADE_BY: "1",
    # A commit that was overtaken is not simply made again: the range is read before each.
    "commit.retry.num-retries": "0",
    # The columns of which the files have statistics.
    "write.metadata.metrics.default": "none",
    "write.metadata.metrics.column.index": "full",
    "write.metadata.metrics.column.term": "full",
    "write.metadata.metrics.column.append_time": "full",
}


class IcebergArchive:
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

    def add(self, parts: Sequence[Part], log: str) -> None:
        try:
            properties = self._table.refresh().properties
        except Exception as error:  # of whatever the catalog is made of
            raise not_committed(self.name, self.directory, error) from error
        if properties.get(LOG, log) != log:
            raise ConfigError(f"{self.name} is of another log, {properties[LOG]}; name a new table")
        stop_index = int(properties[STOP_INDEX]) if STOP_INDEX in properties else None
        missing = missing_in_table(self.name, parts, stop_index)
        if not missing:
            return
        data = os.path.join(self._location, "data")
        first, last = missing[0], missing[-1]
        archived = {
            "quorumlog.first-index": str(parts[0].first_index),
            STOP_INDEX: str(last.stop_index),
            "quorumlog.last-chain": f"{last.last_chain:08x}",
            LOG: log,
        }
        try:
            paths = ["file://" + share(self.directory, part, data) for part in missing]
            with self._table.transaction() as commit:
                commit.set_properties(archived)
                # That no file is added twice is known by the range; looking would read every manifest.
                commit.add_files(
                    paths,
                    snapshot_properties={**archived, "quorumlog.first-index": str(first.first_index)},
                    check_duplicate_files=False,
                )
        except Exception as error:  # of whatever the catalog is made of
            raise not_committed(self.name, self.directory, error) from error


def _made(catalog: Catalog, identifier: str) -> Table:
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(identifier.rpartition(".")[0])
        return catalog.create_table_if_not_exists(identifier, ROW_SCHEMA, properties=PROPERTIES)
