"""The control entries of a log, found by the headers of its entries."""

from __future__ import annotations

from itertools import pairwise

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import RangeDamaged
from quorumlog.store import log_reader
from quorumlog.store.member_directory import MemberDirectory, open_member_directory
from quorumlog.store.segments import DATA_NAME, INDEX_NAME, segment_name
from quorumlog.testing.disk import SimDisk

SMALL = StoreConfig(segment_bytes=2048, index_segment_bytes=64 * 1024, reserve_step_bytes=1024)
KINDS = [EntryKind.NORMAL, EntryKind.NOOP, EntryKind.TIME, EntryKind.READER, EntryKind.KEEP]


def opened(disk: SimDisk) -> MemberDirectory:
    return open_member_directory(disk, "/d", group="g", member_id="n0", config=SMALL, group_size=1)


def written(disk: SimDisk, kinds: list[EntryKind]) -> MemberDirectory:
    directory = opened(disk)
    store = directory.store
    for number, kind in enumerate(kinds):
        batch = EntryBatch.control(
            kind, b"body %d of %d" % (number, kind) if kind != EntryKind.NOOP else b""
        )
        batch.stamp(number, 0, store.plan(batch.sizes), store.end.chain)
        store.append(batch)
    directory.close(clean=True)
    return opened(disk)


def found(directory: MemberDirectory, first_index: int, stop_index: int) -> list[int]:
    batches = directory.store.control_batches(first_index, stop_index)
    return [at for batch in batches for at in range(batch.first_index, batch.last_index + 1)]


@pytest.mark.parametrize("chunk", [1, 200, 1 << 20])
def test_all_of_a_range_and_no_others(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_LOOK_BYTES", chunk)
    kinds = [KINDS[number * 7 % len(KINDS)] for number in range(60)]
    directory = written(SimDisk(), kinds)
    for first, stop in ((0, 60), (0, 1), (7, 31), (59, 60)):
        expected = [at for at in range(first, stop) if kinds[at] > EntryKind.NORMAL]
        assert found(directory, first, stop) == expected
    assert all(a < b for a, b in pairwise(found(directory, 0, 60)))
    assert found(directory, 5, 5) == []


@pytest.mark.parametrize("kind", [EntryKind.NORMAL, EntryKind.NOOP, EntryKind.TIME])
@pytest.mark.parametrize("lie", [EntryKind.NORMAL, EntryKind.NOOP, EntryKind.TIME])
def test_an_index_that_lies_of_a_kind_hides_nothing(kind: EntryKind, lie: EntryKind) -> None:
    disk = SimDisk()
    directory = written(disk, [EntryKind.NORMAL, kind, EntryKind.NORMAL])
    path = f"/d/{INDEX_NAME}/{segment_name(0)}"
    with_lie = disk.open(path)
    with_lie.pwritev([lie.to_bytes(4, "big")], 32)
    with_lie.close()
    assert found(directory, 0, 3) == ([] if kind is EntryKind.NORMAL else [1])


def test_damage_that_may_hide_one_is_told_and_other_damage_is_not() -> None:
    for kind in (EntryKind.NORMAL, EntryKind.NOOP, EntryKind.TIME):
        disk = SimDisk()
        directory = written(disk, [EntryKind.NORMAL, kind, EntryKind.NORMAL, EntryKind.KEEP])
        store = directory.store
        position = store.range_of(1, 2, 1).position
        disk.flip(f"/d/{DATA_NAME}/{segment_name(0)}", position + HEADER_BYTES - 10, 1)
        store.settle(store.examine(0, 4))
        assert [each.first_index for each in store.damaged] == [1]
        if kind is EntryKind.TIME:
            with pytest.raises(RangeDamaged):
                found(directory, 0, 4)
        else:
            assert found(directory, 0, 4) == ([3] if kind is EntryKind.NORMAL else [1, 3])
