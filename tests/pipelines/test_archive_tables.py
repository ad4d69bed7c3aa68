"""A Delta or Iceberg table gets each file of its archive once, whatever was interrupted or repeated."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from quorumlog import LocalCluster, connect
from quorumlog.errors import ConfigError
from quorumlog.pipelines.archive import Archive
from quorumlog.pipelines.archiving import Archived, archive
from quorumlog.pipelines.auditing import audit
from quorumlog.pipelines.places import Place, as_seen_anywhere, open_log
from quorumlog.pipelines.tables import target
from quorumlog.spark.options import LedgerOptions


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with LocalCluster(members=1, directory=tmp_path_factory.mktemp("member")) as cluster:
        with connect(cluster.servers) as log:
            for first in range(0, 3000, 500):
                log.append_batch([b"%d:" % n + bytes(n % 90) for n in range(first, first + 500)])
        yield Place(servers=cluster.servers, batch_bytes=8_000)


@pytest.fixture(params=["delta", "iceberg"])
def table(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> target.ArchiveTable:
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__WAREHOUSE", f"file://{tmp_path}/warehouse")
    # It reads its environment when it is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    name = f"delta:{tmp_path}/orders" if request.param == "delta" else "iceberg:shop.orders"
    found = target.table_at(name)
    assert found is not None
    return found


def entries_of(place: Place, stop_index: int | None = None) -> bytes:
    with closing(open_log(place)) as log:
        return b"".join(bytes(b.buffer) for b in log.batches(0, stop_index or log.stop_index))


def rows_in(name: str) -> pa.Table:
    kind, _, where = name.partition(":")
    if kind == "delta":
        return pa.table(DeltaTable(where).to_pyarrow_table()).sort_by("index")
    return load_catalog().load_table(where).scan().to_arrow().sort_by("index")


def commits_of(name: str) -> int:
    kind, _, where = name.partition(":")
    if kind == "delta":
        return DeltaTable(where).version() + 1
    return len(load_catalog().load_table(where).snapshots())


def run(place: Place, name: str, stop_index: int | None = None) -> Archived:
    return archive(place, name, part_bytes=20_000, stop_index=stop_index)


def test_a_table_has_every_row_once_and_is_an_archive_that_clean_ups_leave_whole(
    place: Place, table: target.ArchiveTable
) -> None:
    first = run(place, table.name, stop_index=1_000)
    assert (first.table, first.archive, commits_of(table.name)) == (table.name, table.directory, 1)
    whole = run(place, table.name)
    again = run(place, table.name)
    assert (again.new_entries, commits_of(table.name)) == (0, 2)
    rows = rows_in(table.name)
    bodies = rows.column("body").to_pylist()
    assert [int(body.split(b":")[0]) for body in bodies] == list(range(3000))
    kept = entries_of(Place(archive=table.name))
    assert as_seen_anywhere(Place(archive=table.name)).archive == table.directory, "asks no catalog"
    assert kept == entries_of(place, whole.last_index + 1)
    if table.name.startswith("delta:"):
        opened = DeltaTable(table.name.removeprefix("delta:"))
        opened.optimize.compact()
        opened.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        assert run(place, table.name).new_entries == 0
        assert rows_in(table.name).equals(rows)
        assert entries_of(Place(archive=table.name)) == kept


def test_what_was_archived_and_not_committed_is_added_by_the_next_run(
    place: Place, table: target.ArchiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(place, table.name, stop_index=1_000)

    class Crash(BaseException):
        """The process is gone."""

    def crash(given: object, to: object) -> None:
        raise Crash

    with monkeypatch.context() as patched, pytest.raises(Crash):
        patched.setattr(target.os, "link", crash)
        run(place, table.name)
    assert rows_in(table.name).num_rows < 3000
    run(place, table.name)
    assert rows_in(table.name).num_rows == 3000 and commits_of(table.name) == 2


def test_of_two_runs_that_commit_one_range_one_adds_it(
    place: Place, table: target.ArchiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(place, table.name)
    into = Archive.open(table.name)
    table.add(into.files(), f"{into.cluster_id}/{into.group}")
    with pytest.raises(ConfigError, match=r"another log|did not make"):
        table.add(into.files(), "another")
    if table.name.startswith("iceberg:"):
        before = target.table_at("iceberg:shop.late")
        assert before is not None
        run(place, "iceberg:shop.late")
        monkeypatch.setattr("pyiceberg.table.Table.refresh", lambda self: self)
        with pytest.raises(ConfigError, match="did not take the commit"):
            before.add(Archive.open("iceberg:shop.late").files(), "a/log")
        assert rows_in("iceberg:shop.late").num_rows == 3000
    assert rows_in(table.name).num_rows == 3000


def test_rows_that_a_restore_took_back_are_missed_by_an_audit_and_added_again(
    place: Place, table: target.ArchiveTable
) -> None:
    for stop_index in (1_000, 2_000):
        run(place, table.name, stop_index=stop_index)
    run(place, table.name)
    assert not audit([Place(archive=table.name)]).differences
    kind, _, where = table.name.partition(":")
    if kind == "delta":
        DeltaTable(where).restore(0)
        DeltaTable(where).optimize.compact()
    else:
        opened = load_catalog().load_table(where)
        first = min(opened.snapshots(), key=lambda each: each.sequence_number or 0)
        opened.manage_snapshots().set_current_snapshot(first.snapshot_id).commit()
    assert rows_in(table.name).num_rows < 1_000
    [missed] = audit([Place(archive=table.name)]).differences
    assert missed.index == 1_000 and "the table ends before entry 1000" in missed.what
    run(place, table.name)
    assert rows_in(table.name).column("index").to_pylist() == rows_of_archive(table.name)
    assert not audit([Place(archive=table.name)]).differences


def test_rows_that_were_deleted_from_a_table_are_named_by_an_audit(
    place: Place, table: target.ArchiveTable
) -> None:
    run(place, table.name)
    kind, _, where = table.name.partition(":")
    if kind == "delta":
        DeltaTable(where).delete("index >= 100 AND index < 120")
    else:
        load_catalog().load_table(where).delete("index >= 100 and index < 120")
    found = audit([Place(archive=table.name)]).differences
    assert found and all("the table has" in each.what for each in found)
    before = rows_in(table.name).num_rows
    run(place, table.name)
    assert rows_in(table.name).num_rows == before, "what somebody deleted stays deleted"


def expire(name: str) -> None:
    """What the table's older versions were is not known any more."""
    kind, _, where = name.partition(":")
    if kind == "delta":
        DeltaTable(where).create_checkpoint()
        for file in sorted(Path(where, "_delta_log").glob("*.json"))[:-1]:
            file.unlink()
        return
    opened = load_catalog().load_table(where)
    present = opened.current_snapshot()
    for snapshot in opened.snapshots():
        if present is not None and snapshot.snapshot_id != present.snapshot_id:
            opened.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()


def delete_one(name: str) -> None:
    kind, _, where = name.partition(":")
    if kind == "delta":
        DeltaTable(where).delete("index = 5")
    else:
        load_catalog().load_table(where).delete("index = 5")


def test_where_older_commits_have_expired_no_row_is_added_twice(
    place: Place, table: target.ArchiveTable
) -> None:
    run(place, table.name, stop_index=1_000)
    delete_one(table.name)
    expire(table.name)
    run(place, table.name)
    found = rows_in(table.name).column("index").to_pylist()
    assert found == [index for index in rows_of_archive(table.name) if index != 5]


def test_where_the_commits_have_expired_that_took_rows_back_nothing_is_left_out(
    place: Place, table: target.ArchiveTable
) -> None:
    for stop_index in (1_000, 2_000):
        run(place, table.name, stop_index=stop_index)
    kind, _, where = table.name.partition(":")
    if kind == "delta":
        DeltaTable(where).restore(0)
    else:
        opened = load_catalog().load_table(where)
        first = min(opened.snapshots(), key=lambda each: each.sequence_number or 0)
        opened.manage_snapshots().set_current_snapshot(first.snapshot_id).commit()
    delete_one(table.name)
    expire(table.name)
    before = rows_in(table.name).num_rows
    with pytest.raises(ConfigError, match="archive to another table"):
        run(place, table.name)
    assert rows_in(table.name).num_rows == before


def test_where_the_rows_of_a_delta_table_cannot_be_read_the_archive_is_named_as_complete(
    place: Place, tmp_path: Path
) -> None:
    name = f"delta:{tmp_path}/orders"
    run(place, name, stop_index=1_000)
    delete_one(name)
    expire(name)
    for file in (tmp_path / "orders").glob("*.parquet"):
        file.unlink()
    with pytest.raises(ConfigError, match=r"archive in .* is complete; repeat the call"):
        run(place, name)


def rows_of_archive(name: str) -> list[int]:
    kept = Archive.open(name)
    tables = [pq.read_table(path, columns=["index"]) for _, path in kept.files()]
    return pa.concat_tables(tables).column("index").to_pylist()


def test_links_that_are_refused_become_copies(
    place: Place, table: target.ArchiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(given: object, to: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(target.os, "link", refuse)
    run(place, table.name)
    assert rows_in(table.name).num_rows == 3000


def test_a_table_of_others_is_refused_before_anything_is_written(
    place: Place, tmp_path: Path, table: target.ArchiveTable
) -> None:
    other = pa.table({"index": [1]})
    if table.name.startswith("delta:"):
        name = f"delta:{tmp_path}/others"
        write_deltalake(tmp_path / "others", other)
    else:
        name = "iceberg:shop.others"
        load_catalog().create_table(name.removeprefix("iceberg:"), other.schema).append(other)
    with pytest.raises(ConfigError, match=r"name an empty|name a new table"):
        run(place, name)
    assert rows_in(name).to_pydict() == {"index": [1]} and commits_of(name) == 1


def test_a_table_that_cannot_be_one_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="local paths only"):
        target.table_at("delta:s3://bucket/orders")
    assert LedgerOptions.parse({"archive": f"delta:{tmp_path}/a"}).archive == f"{tmp_path}/a/_quorumlog"
    with pytest.raises(ConfigError, match="NAMESPACE"):
        target.table_at("iceberg:orders")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    for _ in range(2):  # looking makes none
        with pytest.raises(ConfigError, match=r"no table shop\.none"):
            open_log(Place(archive="iceberg:shop.none"))
    for kind, package in (("delta:x", "deltalake"), ("iceberg:a.b", "pyiceberg.catalog")):
        extra = kind.partition(":")[0]
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules, f"quorumlog.pipelines.tables.{extra}")
        with pytest.raises(ConfigError, match=rf"pip install '\.\[{extra}\]'"):
            target.table_at(kind)


def test_a_table_without_an_archive_is_told_how_one_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no archive; quorumlog pipeline archive delta:DIR"):
        Archive.open(f"delta:{tmp_path}/none")
