"""The file `start`."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import msgspec
import pytest
from isal.isal_zlib import crc32

from quorumlog.errors import DirectoryDamaged, DiskFull, StoreFailure
from quorumlog.store.disk import OsDisk, OsFile
from quorumlog.store.log_points import LogPoint, LogStart
from quorumlog.store.state_files import (
    START_NAME,
    START_SECTOR_BYTES,
    MemberRecord,
    decode_member,
    decode_start,
    encode_member,
    encode_start,
    load_start,
    save_start,
)
from tests.store.losing_disk import LosingDisk
from tests.store.stopping_disk import Stopped, StoppingDisk

disk = OsDisk()
OLD = LogStart(LogPoint(3, 1, 77, 1024), b"old state")
NEW = LogStart(LogPoint(7, 2, 88, 2048), b"new state" * 1000, replaces=True)


def test_there_and_back(tmp_path: Path) -> None:
    assert load_start(disk, str(tmp_path)) is None
    for start in (OLD, NEW):
        save_start(disk, str(tmp_path), start)
        assert load_start(disk, str(tmp_path)) == start
    assert (tmp_path / START_NAME).stat().st_size == 2 * START_SECTOR_BYTES


def test_golden_payload() -> None:
    payload = encode_start(LogStart(LogPoint(3, 1, 77, 1024), b"s"))
    assert payload.hex(" ") == "00 00 00 0d 94 94 03 01 4d cd 04 00 c4 01 73 c2 ff"
    assert decode_start(payload + bytes(100)) == LogStart(LogPoint(3, 1, 77, 1024), b"s")


@pytest.mark.parametrize("old", [None, OLD])
def test_a_longer_record_has_longer_slots(tmp_path: Path, old: LogStart | None) -> None:
    long = LogStart(OLD.point, bytes(3 * START_SECTOR_BYTES))
    if old is not None:
        save_start(disk, str(tmp_path), old)
    for start in (long, NEW, OLD, long):
        save_start(disk, str(tmp_path), start)
        assert load_start(disk, str(tmp_path)) == start
        assert (tmp_path / START_NAME).stat().st_size == 8 * START_SECTOR_BYTES
    path = tmp_path / START_NAME
    data = bytearray(path.read_bytes())
    data[4 * START_SECTOR_BYTES + 1000] ^= 1
    path.write_bytes(data)
    assert load_start(disk, str(tmp_path)) == long


def test_a_start_that_no_log_can_have_is_refused(tmp_path: Path) -> None:
    save_start(disk, str(tmp_path), LogStart(LogPoint(-3, 1, 77, 1024), b"s"))
    with pytest.raises(DirectoryDamaged, match="start cannot be used: no entry can be"):
        load_start(disk, str(tmp_path))


def full_at_sync(times: int) -> StoppingDisk:
    """Where space is given only as bytes reach the disk: so many syncs of the file find none."""
    left = [times]

    def refuse(what: str, path: str) -> OSError | None:
        if what == "sync" and path.endswith(START_NAME) and left[0]:
            left[0] -= 1
            return OSError(errno.ENOSPC, "No space left on device", path)
        return None

    return StoppingDisk(refuse=refuse)


def test_where_a_slot_is_not_synced_for_lack_of_space_the_old_start_is_brought_back(
    tmp_path: Path,
) -> None:
    save_start(disk, str(tmp_path), OLD)
    with pytest.raises(DiskFull, match="no space to drop the first entries"):
        save_start(full_at_sync(1), str(tmp_path), NEW)
    assert load_start(disk, str(tmp_path)) == OLD
    path = tmp_path / START_NAME
    for slot in (0, 1):  # each by itself says so
        data = bytearray(path.read_bytes())
        data[slot * START_SECTOR_BYTES + 1000] ^= 1
        (tmp_path / "one").mkdir(exist_ok=True)
        (tmp_path / "one" / START_NAME).write_bytes(data)
        assert load_start(disk, str(tmp_path / "one")) == OLD


def test_where_nobody_knows_which_start_counts_the_member_stops(tmp_path: Path) -> None:
    save_start(disk, str(tmp_path), OLD)
    with pytest.raises(StoreFailure, match="start cannot be synced"):
        save_start(full_at_sync(2), str(tmp_path), NEW)
    assert load_start(disk, str(tmp_path)) in (OLD, NEW)


@pytest.mark.parametrize("what", ["create", "allocate", "write", "sync", "rename"])
def test_without_space_for_the_first_one_nothing_is_left(tmp_path: Path, what: str) -> None:
    def refuse(step: str, path: str) -> OSError | None:
        is_start = START_NAME in path and step == what
        return OSError(errno.ENOSPC, "No space left on device", path) if is_start else None

    with pytest.raises(DiskFull):
        save_start(StoppingDisk(refuse=refuse), str(tmp_path), NEW)
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_of_the_system_is_a_sentence(tmp_path: Path) -> None:
    save_start(disk, str(tmp_path), OLD)

    class Exhausted(OsDisk):
        def open(self, path: str, *, writable: bool = True, create: bool = False) -> OsFile:
            raise OSError(errno.EMFILE, "Too many open files", path)

    for act in (
        lambda: load_start(Exhausted(), str(tmp_path)),
        lambda: save_start(Exhausted(), str(tmp_path), NEW),
    ):
        with pytest.raises(StoreFailure, match="raise the limit of open files") as refused:
            act()
        assert not isinstance(refused.value, DirectoryDamaged)
    assert load_start(disk, str(tmp_path)) == OLD


@pytest.mark.parametrize("slot", [0, 1])
def test_either_slot_is_enough(tmp_path: Path, slot: int) -> None:
    save_start(disk, str(tmp_path), OLD)
    save_start(disk, str(tmp_path), NEW)
    path = tmp_path / START_NAME
    data = bytearray(path.read_bytes())
    data[slot * START_SECTOR_BYTES + 1000] ^= 1
    path.write_bytes(data)
    assert load_start(disk, str(tmp_path)) == NEW
    data[(1 - slot) * START_SECTOR_BYTES + 1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(DirectoryDamaged, match=rf"{path} cannot be used: neither slot is good"):
        load_start(disk, str(tmp_path))


@pytest.mark.parametrize("old", [None, OLD])
def test_killed_at_any_step_it_is_the_old_start_or_the_new(tmp_path: Path, old: LogStart | None) -> None:
    seen = []
    for stop_at in range(100):
        path = tmp_path / str(stop_at)
        path.mkdir()
        if old is not None:
            save_start(disk, str(path), old)
        stopping = StoppingDisk(stop_at)
        try:
            save_start(stopping, str(path), NEW)
        except Stopped:
            seen.append(load_start(disk, str(path)))
            save_start(disk, str(path), NEW)  # whatever was left behind
            assert load_start(disk, str(path)) == NEW
        else:
            break
    assert seen[0] == old and seen[-1] == NEW
    assert seen == sorted(seen, key=lambda start: start == NEW)


@pytest.mark.parametrize("old", [None, OLD])
def test_without_power_at_any_step_it_is_the_old_start_or_the_new(old: LogStart | None) -> None:
    for seed in range(3):
        for stop_at in range(100):
            losing = LosingDisk()
            if old is not None:
                save_start(losing, "m", old)
            losing.steps_left = stop_at
            try:
                save_start(losing, "m", NEW)
                whole = True
            except Stopped:
                whole = False
            losing.steps_left = -1
            losing.lose_power(Random(seed))
            found = load_start(losing, "m")
            assert found in ((NEW,) if whole else (old, NEW)), (seed, stop_at)
            if whole:
                break


def test_an_older_release_refuses_a_directory_with_a_start_by_name() -> None:
    """Its reader, as it was."""

    class Stored(msgspec.Struct):
        version: int
        group: str
        member_id: str
        directory_id: str
        segment_bytes: int
        index_segment_bytes: int
        checked: bool
        pending: tuple[tuple[str, str], ...]
        founding: tuple[tuple[str, str], ...]
        cluster_id: str

    def read_as_before(data: bytes) -> str:
        line, _, rest = data.partition(b"\n")
        assert rest == f"crc32={crc32(line):08x}\n".encode()
        stored = msgspec.json.decode(line, type=Stored)
        if stored.version != 1:
            return f"its version is {stored.version}, this software knows 1"
        return ""

    record = MemberRecord(
        group="g", member_id="n0", directory_id="aa", segment_bytes=1024, index_segment_bytes=320
    )
    with_start = msgspec.structs.replace(record, version=3)
    assert read_as_before(encode_member(record)) == ""
    assert read_as_before(encode_member(with_start)) == "its version is 3, this software knows 1"
    assert decode_member(encode_member(with_start)) == with_start
    with pytest.raises(ValueError, match="its version is 7, this software knows 1 to 6"):
        decode_member(encode_member(msgspec.structs.replace(record, version=7)))
