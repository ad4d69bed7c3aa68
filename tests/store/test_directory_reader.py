"""DirectoryReader on our own directories: what a start would find, without touching anything."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.config import StoreConfig
from quorumlog.entry import EntryId, EntryKind, HardState
from quorumlog.errors import ConfigError, DirectoryDamaged, IndexOutOfRange, StoreFailure
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import OsDisk
from quorumlog.store.durable_file import read_durable_point
from quorumlog.store.member_directory import MemberDirectory
from quorumlog.store.memory_disk import MemoryDisk
from quorumlog.store.state_files import Checkpoint, save_checkpoint
from tests.store.made_logs import (
    append,
    body_of,
    fill,
    flip,
    make_directory,
    open_small,
    opened,
    sync,
)

disk = OsDisk()
COUNT = 60


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("made") / "n0", COUNT)


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "n0"))


def digests(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.rglob("*")
        if file.is_file()
    }


def segment(path: Path, number: int) -> Path:
    return path / "data" / f"{1024 * number:020d}"


def bodies(reader: DirectoryReader, first: int, stop: int, **options: int) -> list[tuple[int, bytes]]:
    return [
        (entry.index, entry.body)
        for batch in reader.batches(first, stop, **options)  # type: ignore[arg-type]
        for entry in batch.entries()
    ]


EXPECTED = [(i, body_of(i)) for i in range(COUNT) if i not in (0, COUNT // 2)]  # without the no-ops


def test_a_stopped_directory_is_what_it_was(made: Path) -> None:
    before = digests(made)
    with DirectoryReader(disk, str(made)) as reader:
        assert (reader.is_java, reader.checked, reader.in_use) == (False, True, False)
        assert (reader.group, reader.member_id) == ("g", "n0")
        assert (reader.segment_bytes, reader.index_segment_bytes) == (1024, 320)
        assert (reader.ledger_begin_index, reader.ledger_end_index) == (0, COUNT - 1)
        assert reader.ledger_end_term == 2
        assert reader.entry_count == COUNT
        assert reader.committed_index == COUNT - 1
        assert reader.durable_index == COUNT - 1
        assert reader.hard_state == HardState(2, None)
        assert reader.damage == []
        assert reader.tail == ""
        assert len(reader.segments) > 4
        assert bodies(reader, 0, COUNT) == EXPECTED
    assert digests(made) == before


@given(
    first=st.integers(0, COUNT - 1),
    length=st.integers(0, COUNT),
    batch_bytes=st.integers(1, 3000),
    check_bodies=st.booleans(),
)
def test_every_range_in_batches_of_every_size(
    made: Path, first: int, length: int, batch_bytes: int, check_bodies: bool
) -> None:
    stop = min(first + length, COUNT)
    with DirectoryReader(disk, str(made)) as reader:
        found = list(reader.batches(first, stop, batch_bytes=batch_bytes, check_bodies=check_bodies))
    indices = np.concatenate([np.empty(0, np.int64), *(batch.headers()["index"] for batch in found)])
    assert indices.tolist() == list(range(first, stop))
    for batch in found:
        assert batch.count == 1 or batch.total_bytes <= batch_bytes
        batch.check_encoding()
        batch.check_bodies()


def test_a_range_outside_of_the_log_names_its_bounds(made: Path) -> None:
    with DirectoryReader(disk, str(made)) as reader:
        for first, stop in ((-1, 3), (0, COUNT + 1), (COUNT, COUNT + 1)):
            with pytest.raises(IndexOutOfRange, match=f"holds entries 0 to {COUNT - 1}"):
                list(reader.batches(first, stop))
        assert list(reader.batches(5, 5)) == []
        with pytest.raises(IndexOutOfRange):
            reader.header_at(COUNT)


def test_single_entries(made: Path) -> None:
    with DirectoryReader(disk, str(made)) as reader:
        assert reader.id_at(29) == EntryId(29, 1)
        assert reader.id_at(30) == EntryId(30, 2)
        assert reader.header_at(30).magic == EntryKind.NOOP
        assert reader.header_at(COUNT - 1).chain_crc == reader.end.chain


def test_no_directory_and_no_log(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="holds no log"):
            DirectoryReader(disk, str(path))
    (tmp_path / "n0").mkdir()
    for name in ("file", "n0/data"):
        (tmp_path / name).write_text("x")
    for path, what in ((tmp_path / "file", "file/member"), (tmp_path / "n0", "n0/data")):
        with pytest.raises(ConfigError, match=f"{what} is a file, not a directory; name") as refusal:
            DirectoryReader(disk, str(path))
        assert "Errno" not in str(refusal.value)


def test_an_empty_log(tmp_path: Path) -> None:
    with opened(tmp_path / "n0"):
        pass
    with DirectoryReader(disk, str(tmp_path / "n0")) as reader:
        assert (reader.ledger_begin_index, reader.ledger_end_index) == (-1, -1)
        assert (reader.entry_count, reader.committed_index) == (0, -1)
        assert reader.damage == []
        assert list(reader.batches(0, 0)) == []
        with pytest.raises(IndexOutOfRange):
            list(reader.batches(0, 1))


def test_a_running_member_is_read_without_its_lock(tmp_path: Path) -> None:
    with opened(tmp_path / "n0") as directory:
        fill(directory, 20)
        with DirectoryReader(disk, str(tmp_path / "n0")) as reader:
            assert reader.in_use
            append(directory.store, [b"meanwhile"], 1)
            sync(directory.store)
            assert reader.ledger_end_index == 19
            assert len(bodies(reader, 0, 20)) == 19
        with DirectoryReader(disk, str(tmp_path / "n0")) as reader:
            assert bodies(reader, 20, 21) == [(20, b"meanwhile")]


def test_whatever_a_running_member_writes_meanwhile_is_no_damage(tmp_path: Path) -> None:
    finished = threading.Event()
    with opened(tmp_path / "n0") as directory:
        fill(directory, 10)

        def write_until_finished() -> None:
            while not finished.is_set():
                end = directory.store.end
                append(directory.store, [body_of(i) for i in range(end.index + 1, end.index + 9)], 1)
                sync(directory.store)
                directory.write_checkpoint(directory.store.end)

        writing = threading.Thread(target=write_until_finished)
        writing.start()
        ends = []
        try:
            while len(ends) < 40 or ends[-1] == ends[0]:
                with DirectoryReader(disk, str(tmp_path / "n0")) as reader:
                    assert reader.damage == []
                    ends.append(reader.ledger_end_index)
                    assert 0 <= reader.committed_index <= reader.ledger_end_index
                    last = max(0, ends[-1] - 30)
                    assert sum(batch.count for batch in reader.batches(last, ends[-1] + 1)) > 0
        finally:
            finished.set()
            writing.join()
    assert ends == sorted(ends)


_WRITES = {"rename", "unlink", "pwritev", "allocate", "set_size"}
_READS = {"list", "size_of", "is_locked", "pread", "pread_into", "next_data"}


class _Stepped:
    """A disk, or a file of it: `before_step` is called before each call in `names`."""

    def __init__(self, inner: Any, names: set[str], before_step: Callable[[], None]) -> None:
        self._inner = inner
        self._names = names
        self._before_step = before_step

    def __getattr__(self, name: str) -> Any:
        done = getattr(self._inner, name)
        if name != "open" and name not in self._names:
            return done

        def step(*arguments: Any, **options: Any) -> Any:
            if name in self._names:
                self._before_step()
            result = done(*arguments, **options)
            return _Stepped(result, self._names, self._before_step) if name == "open" else result

        return step


def _append_over_a_boundary(directory: MemberDirectory) -> None:
    append(directory.store, [body_of(i) for i in range(10, 14)], 1)
    sync(directory.store)
    directory.write_checkpoint(directory.store.end)


def _cut_and_append(directory: MemberDirectory) -> None:
    directory.store.truncate_from(7)
    append(directory.store, [body_of(i) for i in range(50, 57)], 1)
    sync(directory.store)


def _read_meanwhile(
    write: Callable[[MemberDirectory], None], writer_step: int, reader_step: int
) -> tuple[bool, bool]:
    """The member stops before a step of what it writes, and goes on before a step of the reader; were
    there so many steps of each?"""
    inner, counts = MemoryDisk(), {"writer": -1000, "reader": 0}
    stopped, may_go_on = threading.Event(), threading.Event()

    def writer_steps() -> None:
        counts["writer"] += 1
        if counts["writer"] == writer_step:
            stopped.set()
            may_go_on.wait()

    def reader_steps() -> None:
        counts["reader"] += 1
        if counts["reader"] == reader_step:
            may_go_on.set()
            writing.join()

    def write_all() -> None:
        write(directory)
        stopped.set()

    member_disk: Any = _Stepped(inner, _WRITES, writer_steps)
    reader_disk: Any = _Stepped(inner, _READS, reader_steps)
    directory = open_small(Path("n0"), disk=member_disk)
    fill(directory, 10)
    directory.write_checkpoint(directory.store.point_on_disk(5))
    counts["writer"] = 0
    writing = threading.Thread(target=write_all)
    writing.start()
    stopped.wait()
    try:
        with DirectoryReader(reader_disk, "n0") as reader:
            where = (writer_step, reader_step)
            assert reader.damage == [], where
            assert 6 <= reader.ledger_end_index <= 13, where
            assert len(bodies(reader, 0, reader.ledger_end_index + 1)) == reader.ledger_end_index, where
    finally:
        may_go_on.set()
        writing.join()
    directory.close(clean=True)
    return counts["writer"] >= writer_step, counts["reader"] >= reader_step


@pytest.mark.parametrize(
    ("write", "last_step"), [(_append_over_a_boundary, 10), (_cut_and_append, 4)], ids=["append", "cut"]
)
def test_a_look_at_any_step_of_a_member_that_goes_on_at_any_step_of_the_look_is_no_damage(
    write: Callable[[MemberDirectory], None], last_step: int
) -> None:
    """A cut is seen before its first steps; what comes later is an append."""
    for writer_step in range(1, last_step + 1):
        has_writer_step, has_reader_step = True, True
        for reader_step in count(1):
            has_writer_step, has_reader_step = _read_meanwhile(write, writer_step, reader_step)
            if not has_reader_step:
                break
        assert has_writer_step
        assert reader_step > 10


def test_a_file_that_is_cut_while_it_is_read_is_damage_and_no_signal(path: Path) -> None:
    with DirectoryReader(disk, str(path)) as reader:
        batches = reader.batches(0, COUNT, batch_bytes=100)
        next(batches)
        for file in (path / "data").iterdir():
            os.truncate(file, 0)
        with pytest.raises(DirectoryDamaged):
            list(batches)
        with pytest.raises(DirectoryDamaged):
            reader.header_at(COUNT - 1)


# ---------------------------------------------------------------- the end of the log


def killed_with_tail(path: Path) -> tuple[int, int]:
    """A directory of a killed member; returns (durable index, last index written)."""
    directory = open_small(path)
    fill(directory, 20)
    append(directory.store, [body_of(index) for index in range(20, 40)], 1)
    directory.close(clean=False)
    return 19, 39


def test_whole_entries_above_the_durable_point_belong_to_the_log(tmp_path: Path) -> None:
    durable, last = killed_with_tail(tmp_path / "n0")
    with DirectoryReader(disk, str(tmp_path / "n0")) as reader:
        assert (reader.durable_index, reader.ledger_end_index) == (durable, last)
        assert bodies(reader, 0, 40) == [(i, body_of(i)) for i in range(1, 40)]


def test_it_ends_where_a_start_would_end_it_whatever_byte_of_the_tail_is_bad(tmp_path: Path) -> None:
    killed_with_tail(tmp_path / "n0")
    durable = read_durable_point(disk, str(tmp_path / "n0"))
    assert durable is not None
    first, ends = durable.point.position, set()
    for position in range(first, first + 900, 23):
        copy = Path(shutil.copytree(tmp_path / "n0", tmp_path / f"at{position}"))
        flip(segment(copy, position // 1024), position % 1024)
        with DirectoryReader(disk, str(copy)) as reader:
            seen = (reader.end, reader.damage)
            assert len(list(reader.batches(0, reader.ledger_end_index + 1))) > 0
        with opened(copy) as directory:
            assert seen == (directory.store.end, []), position
        ends.add(seen[0].index)
    assert len(ends) > 5


def test_a_torn_tail_is_described_but_is_no_damage(tmp_path: Path) -> None:
    killed_with_tail(tmp_path / "n0")
    durable = read_durable_point(disk, str(tmp_path / "n0"))
    assert durable is not None
    position = durable.point.position
    flip(segment(tmp_path / "n0", position // 1024), position % 1024 + 4)
    with DirectoryReader(disk, str(tmp_path / "n0")) as reader:
        assert reader.end.index == 19
        assert reader.tail.startswith(f"data/{position // 1024 * 1024:020d}: ")
        assert reader.damage == []


def test_who_was_told_the_end_is_not_told_again_what_lies_behind_it(tmp_path: Path) -> None:
    """A task of a plan: it would look through all that is reserved."""
    killed_with_tail(tmp_path / "n0")
    with DirectoryReader(disk, str(tmp_path / "n0")) as reader:
        end = reader.end
    flip(tmp_path / "n0" / "data" / f"{end.position // 1024 * 1024:020d}", end.position % 1024 + 8)
    for scanned_index, is_told in ((-1, True), (end.index - 1, True), (end.index, False)):
        with DirectoryReader(disk, str(tmp_path / "n0"), scanned_index=scanned_index) as reader:
            assert (reader.end, bool(reader.tail)) == (end, is_told)


def test_an_unfinished_segment_is_not_part_of_the_log(path: Path) -> None:
    (path / "data" / f"{1024 * 90:020d}").write_bytes(b"")
    with DirectoryReader(disk, str(path)) as reader:
        assert (reader.ledger_end_index, reader.damage) == (COUNT - 1, [])


@pytest.mark.parametrize(
    ("change", "proven"),
    [
        ({}, True),
        ({"committed_term": 1}, False),
        ({"committed_chain": 5}, False),
        ({"committed_index": 99}, False),
    ],
)
def test_the_committed_index_is_what_the_checkpoint_proves(
    path: Path, change: dict[str, int], proven: bool
) -> None:
    with DirectoryReader(disk, str(path)) as reader:
        header = reader.header_at(40)
    checkpoint = Checkpoint(COUNT - 1, 40, header.term, header.chain_crc)
    save_checkpoint(disk, str(path), checkpoint._replace(**change))
    with DirectoryReader(disk, str(path)) as reader:
        assert reader.committed_index == (40 if proven else -1)


@pytest.mark.parametrize("at", [16, 28, 32, 36, 40])
@pytest.mark.parametrize("index", [0, 1, 39, 40])
def test_a_checkpoint_of_a_damaged_entry_is_not_of_another_log(path: Path, index: int, at: int) -> None:
    """No more is known to be committed; but nothing says either that less is."""
    committed_index = max(index, 1)
    with DirectoryReader(disk, str(path)) as reader:
        header, damaged = reader.header_at(committed_index), reader.header_at(index)
    checkpoint = Checkpoint(COUNT - 1, committed_index, header.term, header.chain_crc)
    save_checkpoint(disk, str(path), checkpoint)
    flip(path / "data" / f"{damaged.pos // 1024 * 1024:020d}", damaged.pos % 1024 + at)
    with DirectoryReader(disk, str(path)) as reader:
        assert reader.readable_index == committed_index
        assert reader.committed_index in (committed_index, -1)


# ---------------------------------------------------------------- damage


def test_small_files_that_are_lost_are_listed_and_the_log_is_still_read(path: Path) -> None:
    (path / "durable").write_bytes(bytes(8192))
    (path / "hardstate").unlink()
    with DirectoryReader(disk, str(path)) as reader:
        assert {damage.path for damage in reader.damage} == {"durable", "hardstate"}
        assert reader.hard_state is None
        assert bodies(reader, 0, COUNT) == EXPECTED


def test_a_damaged_member_file_is_a_store_failure(path: Path) -> None:
    flip(path / "member", 3)
    with pytest.raises(StoreFailure, match="member cannot be used"):
        DirectoryReader(disk, str(path))


def test_any_flipped_byte_of_the_log_is_found_when_it_is_read(path: Path) -> None:
    with DirectoryReader(disk, str(path)) as reader:
        rows = [
            (int(header["index"]), int(header["pos"]), int(header["size"]))
            for batch in reader.batches(0, COUNT)
            for header in batch.headers()
        ]
    for index, position, size in rows[::7]:
        for offset in {*range(0, size, 11), 0, 4, 32, 39, 43, 47, size - 1}:
            at = position + offset
            if offset >= size:
                continue
            flip(segment(path, at // 1024), at % 1024)
            with DirectoryReader(disk, str(path)) as reader, pytest.raises(DirectoryDamaged) as raised:
                list(reader.batches(0, COUNT))
            assert raised.value.index == index, (index, offset)
            assert raised.value.position == position
            assert raised.value.path == f"data/{position // 1024 * 1024:020d}"
            flip(segment(path, at // 1024), at % 1024)
    with DirectoryReader(disk, str(path)) as reader:
        assert bodies(reader, 0, COUNT) == EXPECTED


def test_entries_behind_a_bad_one_can_still_be_read(path: Path) -> None:
    with DirectoryReader(disk, str(path)) as reader:
        position = reader.header_at(13).pos
    flip(segment(path, position // 1024), position % 1024 + 9)
    with DirectoryReader(disk, str(path)) as reader:
        with pytest.raises(DirectoryDamaged):
            list(reader.batches(14, 20))  # does 14 continue 13? nobody can say
        assert bodies(reader, 14, COUNT, link_first=False) == EXPECTED[13:]


def test_a_missing_segment_is_damage_and_reading_it_raises(path: Path) -> None:
    with DirectoryReader(disk, str(path)) as reader:
        third = reader.segments[2]
        fourth = reader.segments[3]
    segment(path, 2).unlink()
    with DirectoryReader(disk, str(path)) as reader:
        assert [damage.path for damage in reader.damage] == [third.name]
        assert reader.ledger_end_index == COUNT - 1
        assert len(bodies(reader, 1, third.first_index)) == third.first_index - 1
        with pytest.raises(DirectoryDamaged) as raised:
            list(reader.batches(0, COUNT))
        assert raised.value.index == third.first_index
        assert bodies(reader, fourth.first_index, COUNT, link_first=False) == [
            row for row in EXPECTED if row[0] >= fourth.first_index
        ]


def test_a_short_segment_below_the_durable_point_is_damage(path: Path) -> None:
    with segment(path, 1).open("r+b") as file:
        file.truncate(500)
    with DirectoryReader(disk, str(path)) as reader:
        (damage,) = reader.damage
        assert (damage.path, damage.problem) == (f"data/{1024:020d}", "is 500 bytes long")
        assert 1024 < damage.position <= 1024 + 500, "where the last whole entry ends"
        assert damage.stop_index == reader.segments[2].first_index
        with pytest.raises(DirectoryDamaged):
            list(reader.batches(0, COUNT))


def test_a_bad_first_header_is_damage_and_the_index_still_says_which_entry_it_was(path: Path) -> None:
    with DirectoryReader(disk, str(path)) as reader:
        expected = reader.segments
    flip(segment(path, 2), 3)
    with DirectoryReader(disk, str(path)) as reader:
        assert reader.segments == expected
        assert [(damage.path, damage.index) for damage in reader.damage] == [
            (expected[2].name, expected[2].first_index)
        ]


def test_a_durable_point_that_the_log_does_not_hold_is_damage(path: Path) -> None:
    with DirectoryReader(disk, str(path)) as reader:
        last = reader.header_at(COUNT - 1)
    flip(segment(path, last.pos // 1024), last.pos % 1024 + 39)  # its chain
    with DirectoryReader(disk, str(path)) as reader:
        assert reader.ledger_end_index == COUNT - 1
        assert [damage.index for damage in reader.damage] == [COUNT - 1]
        assert reader.committed_index == COUNT - 1, "a start takes it from the durable point"
        with pytest.raises(DirectoryDamaged) as raised:
            list(reader.batches(0, COUNT))
        assert raised.value.index == COUNT - 1


# ---------------------------------------------------------------- the index


@pytest.mark.parametrize("index", [0, 1, 17, 30, 58, COUNT - 1])
@pytest.mark.parametrize("offset", [0, 7, 15, 20, 31])
def test_where_an_index_unit_is_wrong_the_data_decides(path: Path, index: int, offset: int) -> None:
    number, at = divmod(index * 32 + offset, 320)
    flip(path / "index" / f"{number * 320:020d}", at)
    with DirectoryReader(disk, str(path)) as reader:
        assert reader.header_at(index).index == index
        assert bodies(reader, 0, COUNT) == EXPECTED


def test_without_any_index_the_log_is_walked(path: Path) -> None:
    shutil.rmtree(path / "index")
    with DirectoryReader(disk, str(path)) as reader:
        assert bodies(reader, 0, COUNT, batch_bytes=300) == EXPECTED
        assert bodies(reader, 33, 36) == [row for row in EXPECTED if 33 <= row[0] < 36]


def test_more_segments_than_files_that_may_be_open(tmp_path: Path) -> None:
    config = StoreConfig(segment_bytes=512, index_segment_bytes=96)
    with opened(tmp_path / "n0", config=config) as directory:
        fill(directory, 400)
    with DirectoryReader(disk, str(tmp_path / "n0")) as reader:
        assert len(reader.segments) > 70
        assert bodies(reader, 0, 400) == [(i, body_of(i)) for i in range(1, 400)]
        assert bodies(reader, 0, 400) == [(i, body_of(i)) for i in range(1, 400)]
