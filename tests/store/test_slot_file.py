"""SlotFile: one good slot is enough, whatever happened to the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from isal.isal_zlib import crc32

from quorumlog.errors import StoreFailure
from quorumlog.store.disk import OsDisk
from quorumlog.store.slot_file import (
    PAYLOAD_BYTES,
    SECTOR_BYTES,
    SLOT_BYTES,
    SLOT_FILE_BYTES,
    SlotFile,
    decode_sector,
    encode_sector,
)
from quorumlog.testing.disk import SimDisk
from tests.store.stopping_disk import StoppingDisk

MAGIC = b"testslot"
disk = OsDisk()


def value_of(path: Path) -> bytes | None:
    slots = SlotFile.open(disk, str(path), MAGIC)
    payload = slots.payload
    slots.close()
    return None if payload is None else payload.rstrip(b"\0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    slots = SlotFile.create(disk, f"{tmp_path}/f", MAGIC, b"first")
    slots.close()
    return tmp_path / "f"


def test_golden_sector() -> None:
    sector = encode_sector(MAGIC, 7, b"value")
    assert len(sector) == SECTOR_BYTES
    assert sector[:16] == b"testslot\0\0\0\0\0\0\0\7"
    assert sector[16:21] == b"value"
    assert sector[21:508] == bytes(487)
    assert sector[508:] == crc32(sector[:508]).to_bytes(4, "big")
    assert decode_sector(MAGIC, sector) == (7, b"value".ljust(PAYLOAD_BYTES, b"\0"))


def test_a_new_file_has_two_good_slots_and_its_full_length(path: Path) -> None:
    data = path.read_bytes()
    assert len(data) == SLOT_FILE_BYTES
    assert data[:SECTOR_BYTES] == encode_sector(MAGIC, 1, b"first")
    assert data[SLOT_BYTES : SLOT_BYTES + SECTOR_BYTES] == encode_sector(MAGIC, 2, b"first")
    assert not any(data[SECTOR_BYTES:SLOT_BYTES])


@pytest.mark.parametrize("slot", [0, 1])
def test_one_good_slot_is_enough_whatever_byte_the_other_tore_at(path: Path, slot: int) -> None:
    slots = SlotFile.open(disk, str(path), MAGIC)
    slots.write_both_synced(b"second")
    slots.close()
    good = path.read_bytes()
    start = slot * SLOT_BYTES
    newer = encode_sector(MAGIC, 99, b"third")
    for torn_at in range(1, SECTOR_BYTES):
        torn = newer[:torn_at] + good[start + torn_at : start + SECTOR_BYTES]
        path.write_bytes(good[:start] + torn + good[start + SECTOR_BYTES :])
        assert value_of(path) in ((b"second",) if torn != newer else (b"third",)), torn_at


def test_every_flipped_byte_of_a_sector_is_noticed() -> None:
    sector = encode_sector(MAGIC, 3, b"payload")
    for at in range(SECTOR_BYTES):
        flipped = bytearray(sector)
        flipped[at] ^= 0x10
        assert decode_sector(MAGIC, bytes(flipped)) is None, at
    assert decode_sector(b"otherone", sector) is None
    assert decode_sector(MAGIC, bytes(SECTOR_BYTES)) is None
    assert decode_sector(MAGIC, sector[:-1]) is None


def test_both_slots_bad_is_unreadable(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    data[SLOT_BYTES + 20] ^= 1
    path.write_bytes(data)
    assert value_of(path) is None
    path.write_bytes(b"")
    assert value_of(path) is None


def test_the_higher_sequence_wins_in_either_slot(path: Path) -> None:
    filler = bytes(SLOT_BYTES - SECTOR_BYTES)
    older, newer = encode_sector(MAGIC, 5, b"older"), encode_sector(MAGIC, 6, b"newer")
    for order in ((older, newer), (newer, older)):
        path.write_bytes(order[0] + filler + order[1] + filler)
        assert value_of(path) == b"newer"


def test_between_two_syncs_only_one_slot_is_rewritten(path: Path) -> None:
    slots = SlotFile.open(disk, str(path), MAGIC)
    slots.write_both_synced(b"base")

    def sectors() -> tuple[bytes, bytes]:
        data = path.read_bytes()
        return data[:SECTOR_BYTES], data[SLOT_BYTES : SLOT_BYTES + SECTOR_BYTES]

    for round_number in range(6):
        before = sectors()
        changed: set[int] = set()
        for i in range(5):
            slots.write(b"%d.%d" % (round_number, i))
            changed |= {slot for slot in (0, 1) if sectors()[slot] != before[slot]}
            assert value_of(path) == b"%d.%d" % (round_number, i)
        assert len(changed) == 1, changed
        slots.sync()
    slots.close()


def test_the_slots_alternate_from_one_sync_to_the_next(path: Path) -> None:
    slots = SlotFile.open(disk, str(path), MAGIC)
    slots.write_both_synced(b"base")
    rewritten = []
    for i in range(4):
        before = path.read_bytes()
        slots.write(b"value %d" % i)
        after = path.read_bytes()
        rewritten.append(0 if before[:SLOT_BYTES] != after[:SLOT_BYTES] else 1)
        slots.sync()
    assert rewritten in ([0, 1, 0, 1], [1, 0, 1, 0])
    slots.close()


def test_after_a_start_nothing_counts_as_synced_until_both_were_written(path: Path) -> None:
    counting = StoppingDisk()
    slots = SlotFile.open(counting, str(path), MAGIC)
    slots.write(b"one")
    assert [what for what, _ in counting.steps] == ["write", "sync", "write", "sync"]
    slots.write(b"two")
    slots.write(b"three")
    slots.sync()
    slots.sync()
    assert [what for what, _ in counting.steps[4:]] == ["write", "write", "sync"]
    slots.close()


def test_after_a_start_with_one_good_slot_the_bad_one_is_written_first(path: Path) -> None:
    for bad in (0, 1):
        slots = SlotFile.open(disk, str(path), MAGIC)
        slots.write_both_synced(b"kept")
        slots.close()
        data = bytearray(path.read_bytes())
        data[bad * SLOT_BYTES + 100] ^= 0xFF
        path.write_bytes(data)
        slots = SlotFile.open(StoppingDisk(stop_at=1), str(path), MAGIC)
        with pytest.raises(BaseException, match="sync"):
            slots.write(b"next")
        slots.close()
        now = path.read_bytes()
        good = 1 - bad
        kept = slice(good * SLOT_BYTES, good * SLOT_BYTES + SLOT_BYTES)
        assert now[kept] == bytes(data[kept])
        assert value_of(path) == b"next"


def test_a_disk_that_refuses_is_a_store_failure(path: Path) -> None:
    def full(what: str, _: str) -> OSError | None:
        return OSError(5, "Input/output error") if what == "sync" else None

    slots = SlotFile.open(StoppingDisk(refuse=full), str(path), MAGIC)
    with pytest.raises(StoreFailure, match="cannot be synced"):
        slots.write_both_synced(b"x")
    slots.close()


@pytest.mark.parametrize("slot", [0, 1])
def test_a_slot_that_becomes_unreadable_while_it_is_in_use_is_written_as_a_whole(slot: int) -> None:
    disk = SimDisk()
    disk.make_directory("/m")
    slots = SlotFile.create(disk, "/m/slots", MAGIC, b"old")
    slots.write_both_synced(b"first")
    disk.lose_page("/m/slots", slot * SLOT_BYTES)
    for value in (b"second", b"third"):
        slots.write(value)
        slots.sync()
    assert disk.unreadable == set()
    again = SlotFile.open(disk, "/m/slots", MAGIC)
    assert again.payload is not None
    assert again.payload.startswith(b"third")


def test_create_replaces_what_was_there(path: Path) -> None:
    path.write_bytes(b"garbage of another length")
    slots = SlotFile.create(disk, str(path), MAGIC, b"new")
    slots.close()
    assert value_of(path) == b"new"
    assert path.stat().st_size == SLOT_FILE_BYTES
