"""The control entries of a log, found by the kinds in its index."""

from __future__ import annotations

from itertools import pairwise

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.entry import EntryKind
from quorumlog.errors import DirectoryDamaged, RangeDamaged
from quorumlog.sim.disk import SimDisk
from quorumlog.store.directory.member_directory import open_member_directory
from quorumlog.store.directory.opened_directory import MemberDirectory
from quorumlog.store.log import log_reader
from quorumlog.store.log.segment_list import INDEX_NAME, segment_name

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


@pytest.mark.parametrize("chunk", [1, 3, 65536])
def test_all_of_a_range_and_no_others(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_UNIT_CHUNK", chunk)
    kinds = [KINDS[number * 7 % len(KINDS)] for number in range(60)]
    directory = written(SimDisk(), kinds)
    for first, stop in ((0, 60), (0, 1), (7, 31), (59, 60)):
        expected = [at for at in range(first, stop) if kinds[at] > EntryKind.NORMAL]
        assert found(directory, first, stop) == expected
    assert all(a < b for a, b in pairwise(found(directory, 0, 60)))
    assert found(directory, 5, 5) == []


@pytest.mark.parametrize(
    ("kind", "lie", "is_told"), [(EntryKind.NORMAL, EntryKind.TIME, True), (EntryKind.TIME, 5, True)]
)
def test_an_index_that_lies_of_a_kind_is_damage(kind: EntryKind, lie: int, is_told: bool) -> None:
    disk = SimDisk()
    directory = written(disk, [EntryKind.NORMAL, kind, EntryKind.NORMAL])
    path = f"/d/{INDEX_NAME}/{segment_name(0)}"
    with_lie = disk.open(path)
    with_lie.pwritev([lie.to_bytes(4, "big")], 32)
    with_lie.close()
    with pytest.raises((DirectoryDamaged, RangeDamaged)):
        found(directory, 0, 3)
