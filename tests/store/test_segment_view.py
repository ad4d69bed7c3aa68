"""Segments that are only looked at: of somebody else, perhaps damaged, perhaps just being cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from quorumlog.errors import ConfigError
from quorumlog.store.disk import OsDisk, OsFile, os_error
from quorumlog.store.segment_view import (
    MAX_OPEN_FILES,
    IndexUnits,
    SegmentView,
    header_at,
    list_segment_files,
    read_pages,
)
from quorumlog.store.segments import segment_name
from quorumlog.testing.disk import PAGE_BYTES, SimDisk

disk = OsDisk()
SEGMENT_BYTES = 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Segments 0 and 1 are whole, 3 is short, 2 is missing."""
    path = tmp_path / "data"
    path.mkdir()
    for number, size_bytes in ((0, SEGMENT_BYTES), (1, SEGMENT_BYTES), (3, 40)):
        file = path / segment_name(number * SEGMENT_BYTES)
        file.write_bytes(bytes([number + 1]) * size_bytes)
    return path


def view_of(folder: Path) -> SegmentView:
    files = list_segment_files(disk, str(folder.parent), folder.name)
    return SegmentView(disk, str(folder), files, SEGMENT_BYTES)


WHOLE = b"\1" * 100 + b"\2" * 100 + bytes(100) + b"\4" * 40 + bytes(60)


@pytest.mark.parametrize(("first", "stop"), [(0, 400), (30, 130), (150, 320), (210, 290), (330, 700)])
def test_what_no_file_holds_reads_as_zeros(folder: Path, first: int, stop: int) -> None:
    segments = view_of(folder)
    assert read_pages(segments, stop - first, first) == (WHOLE.ljust(700, b"\0")[first:stop], ())
    segments.close()


def test_a_file_that_goes_before_or_while_it_is_read_is_zeros_from_then_on(folder: Path) -> None:
    segments = view_of(folder)
    (folder / segment_name(0)).unlink()
    assert read_pages(segments, 200, 0) == (bytes(100) + b"\2" * 100, ())
    os.truncate(folder / segment_name(100), 10)
    assert read_pages(segments, 200, 0) == (bytes(100) + b"\2" * 10 + bytes(90), ())
    segments.close()


def test_what_lies_between_files_is_one_piece_however_short_they_are(folder: Path) -> None:
    files = list_segment_files(disk, str(folder.parent), folder.name)
    segments = SegmentView(disk, str(folder), files, 1)
    data, _ = read_pages(segments, 1 << 24, 0)
    assert (data[:1], data[100:101], data[300:301], data.count(0)) == (
        b"\1",
        b"\2",
        b"\4",
        (1 << 24) - 3,
    )
    segments.close()


@pytest.mark.parametrize("position", [0, 99, 110, 250, 300, 339, 340, 399, 1000])
def test_who_looks_for_the_next_bytes_never_comes_back_nor_leaves_the_segment(
    folder: Path, position: int
) -> None:
    segments = view_of(folder)
    assert position <= segments.next_data(position) <= segments.base_of(position) + SEGMENT_BYTES
    segments.close()


def test_a_log_of_many_segments_needs_few_open_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    count = MAX_OPEN_FILES + 30
    for number in range(count):
        (folder / segment_name(number * SEGMENT_BYTES)).write_bytes(bytes([number]) * SEGMENT_BYTES)
    segments = view_of(folder)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        data, unreadable = read_pages(segments, count * SEGMENT_BYTES, 0)
        assert (data, unreadable) == (b"".join(bytes([n]) * SEGMENT_BYTES for n in range(count)), ())
    assert len(os.listdir("/proc/self/fd")) - before <= MAX_OPEN_FILES
    segments.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_page_that_the_disk_refuses_is_zeros_and_named_and_costs_no_other() -> None:
    simulated = SimDisk()
    simulated.make_directory("m/data")
    path = f"m/data/{segment_name(0)}"
    file = simulated.open(path, create=True)
    file.pwritev([b"\7" * 3 * PAGE_BYTES], 0)
    simulated.unreadable.add((path, 1))
    segments = SegmentView(
        simulated, "m/data", list_segment_files(simulated, "m", "data"), 3 * PAGE_BYTES
    )
    data, (page,) = read_pages(segments, 3 * PAGE_BYTES, 0)
    assert data == b"\7" * PAGE_BYTES + bytes(PAGE_BYTES) + b"\7" * PAGE_BYTES
    assert page.position == PAGE_BYTES
    assert "cannot be read" in page.problem
    assert header_at(segments, PAGE_BYTES) is None
    units = IndexUnits(segments)
    assert not units.read(PAGE_BYTES // 32, PAGE_BYTES // 16)["size"].any()
    assert [page.position for page in units.unreadable.values()] == [PAGE_BYTES]


def test_a_file_of_another_user_is_no_damage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = view_of(folder)

    def refuse(path: str, **_: bool) -> OsFile:
        raise os_error(errno.EACCES, path)

    monkeypatch.setattr(disk, "open", refuse)
    with pytest.raises(ConfigError, match=r"no permission for .*; run this as the user that the member"):
        read_pages(segments, 3 * SEGMENT_BYTES, 0)
