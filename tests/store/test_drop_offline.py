"""What the tools say of a log that has lost its first entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.cli.log.kept_offline import kept_in
from quorumlog.entry import HardState
from quorumlog.errors import DirectoryDamaged, IndexOutOfRange
from quorumlog.log_state.log_state import EMPTY
from quorumlog.spark.options import LedgerOptions, LogBounds
from quorumlog.spark.sources.directory_source import DirectorySource
from quorumlog.store import directory_reader
from quorumlog.store.directory_reader import DirectoryReader, scan_own
from quorumlog.store.disk import OsDisk
from quorumlog.store.log_points import LogPoint, LogStart
from quorumlog.store.state_files import START_NAME, save_start
from quorumlog.store.verification import compare_directories, inspect_directory, verify_directory
from tests.store.log_making import append_numbered, sync
from tests.store.made_logs import flip, open_small, opened
from tests.store.test_drop import COUNT, drop, start_at

disk = OsDisk()


def made(path: Path, first: int, count: int = COUNT, *, commits: bool = True) -> Path:
    with opened(path) as directory:
        directory.save_hard_state(HardState(99, None))
        append_numbered(directory.store, count)
        sync(directory.store)
        if commits:
            directory.write_checkpoint(directory.store.end)
        if first:
            drop(directory, first)
    return path


def test_it_is_read_from_its_start(tmp_path: Path) -> None:
    path = made(tmp_path / "n0", 12)
    with DirectoryReader(disk, str(path)) as reader:
        assert (reader.ledger_begin_index, reader.ledger_end_index) == (12, 22)
        assert (reader.entry_count, reader.committed_index, reader.damage) == (11, 22, [])
        assert [segment.first_index for segment in reader.segments] == [12, 16, 20]
        batches = list(reader.batches(12, COUNT))
        assert sum(batch.count for batch in batches) == 11
        with pytest.raises(IndexOutOfRange, match="holds entries 12 to 22") as refused:
            list(reader.batches(11, COUNT))
        assert refused.value.ledger_begin_index == 12
    result = verify_directory(disk, str(path))
    assert (result.problem, result.entries, result.ledger_begin_index) == ("", 11, 12)
    assert inspect_directory(disk, str(path)).ledger_begin_index == 12


def test_without_a_checkpoint_what_was_dropped_was_committed(tmp_path: Path) -> None:
    with DirectoryReader(disk, str(made(tmp_path / "n0", 12, commits=False))) as reader:
        assert (reader.committed_index, reader.readable_index) == (11, 11)


def test_the_first_entry_is_checked_against_the_start(tmp_path: Path) -> None:
    path = made(tmp_path / "n0", 12)
    flip(path / "data" / f"{3072:020d}", 20)  # the chain of its first entry
    result = verify_directory(disk, str(path))
    assert result.damage and result.damage[0].index == 12


def test_segments_that_a_start_will_remove_are_no_damage(tmp_path: Path) -> None:
    path = made(tmp_path / "n0", 0)
    directory = open_small(path)
    directory.save_start(start_at(directory.store, 12))
    directory.close(clean=False)
    assert verify_directory(disk, str(path)).problem == ""
    with DirectoryReader(disk, str(path)) as reader:
        assert reader.ledger_begin_index == 12


def test_logs_are_compared_from_the_highest_start_on(tmp_path: Path) -> None:
    paths = [made(tmp_path / f"n{first}", first) for first in (0, 8, 16)]
    readers = [DirectoryReader(disk, str(path)) for path in paths]
    found = compare_directories(readers)
    assert (found.first_index, found.stop_index, found.ok) == (16, COUNT, True)
    for reader in readers:
        reader.close()


def test_a_lost_start_is_named(tmp_path: Path) -> None:
    path = made(tmp_path / "n0", 8)
    (path / START_NAME).unlink()
    named = [each.problem for each in verify_directory(disk, str(path)).damage]
    assert "is missing: the begin of the log is unknown" in named
    (path / START_NAME).write_bytes(bytes(1 << 18))
    assert "start cannot be used: neither slot is good" in verify_directory(disk, str(path)).problem


def test_a_member_that_drops_while_its_directory_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path / "n0", 8)
    with opened(path) as directory:
        start = start_at(directory.store, 12)
    calls = []

    def scan_while_it_drops(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 1:
            save_start(disk, str(path), start)
            (path / "data" / f"{2048:020d}").unlink()
        return scan_own(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(directory_reader, "scan_own", scan_while_it_drops)
    with DirectoryReader(disk, str(path)) as reader:
        assert (reader.ledger_begin_index, reader.damage) == (12, [])
    assert len(calls) == 2


def test_spark_reads_from_the_start(tmp_path: Path) -> None:
    path = made(tmp_path / "n0", 12)
    source = DirectorySource(LedgerOptions.parse({"path": str(path)}))
    assert source.bounds() == LogBounds("g", 12, COUNT)
    source.close()
    flip(path / "start", 100)
    flip(path / "start", 131072 + 100)
    with pytest.raises(DirectoryDamaged, match="start cannot be used"):
        DirectorySource(LedgerOptions.parse({"path": str(path)})).bounds()


def test_a_saved_state_shows_the_tools_what_is_committed_as_it_shows_a_start(tmp_path: Path) -> None:
    path = made(tmp_path / "n0", 0, commits=False)
    with opened(path) as directory:
        for index in (4, 8):
            assert directory.store.boundaries.save(start_at(directory.store, index))
    with DirectoryReader(disk, str(path)) as reader:
        assert (reader.committed_index, reader.readable_index) == (7, 7)
    with opened(path) as directory:
        assert directory.committed_index == 7
    flip(path / "states" / f"{2048:020d}", 20)
    with DirectoryReader(disk, str(path)) as reader:
        assert reader.committed_index == 3


def test_what_keeps_the_segments_of_a_log_without_any(tmp_path: Path) -> None:
    """It begins where its start says, also while no entry has come behind it."""
    path = made(tmp_path / "n0", 0)
    with opened(path) as directory:
        directory.save_start(LogStart(LogPoint(100, 3, 7, 2048), EMPTY.encode(), replaces=True))
    (segment,), _ = kept_in(str(path))
    assert (segment.first_index, segment.stop_index) == (101, 101)


def test_what_keeps_segments_that_are_lost_is_not_told(tmp_path: Path) -> None:
    path = made(tmp_path / "n0", 0)
    with opened(path) as directory:
        directory.save_start(LogStart(start_at(directory.store, 8).point, EMPTY.encode()))
    with opened(path):
        pass  # drops
    first, *others = sorted((path / "data").iterdir())
    assert first.name == f"{2048:020d}"
    first.unlink()
    with pytest.raises(DirectoryDamaged, match=f"{first.name}: no file holds the begin of the log"):
        kept_in(str(path))
    for each in others:
        each.unlink()
    with pytest.raises(DirectoryDamaged, match=f"{first.name}: no file holds the begin of the log"):
        kept_in(str(path))
