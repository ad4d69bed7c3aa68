"""SlotFile: a small value that must survive a crash at any moment, in two slots of one file.

    position  bytes  field
           0      8  magic      which kind of file, and its version
           8      8  sequence   the higher good one wins
          16    492  payload    zeros after it
         508      4  CRC-32 of the 508 bytes before it
         512   3584  zeros
        4096   4096  the second slot, laid out the same

All integers big-endian. A slot is one 512-byte sector, which a disk writes whole or not at all, on a
page of its own, so that writing one slot never touches the sectors of the other. A file whose values
are longer has longer slots, of whole pages and laid out alike; a torn one is a bad one. The rule that
makes a loss impossible: **between two syncs of the file only one slot is rewritten, the other stays as
it was synced.** The file is created at full length, so that a change needs no free space.
"""

from __future__ import annotations

import errno
import struct
from contextlib import ExitStack, closing
from typing import NamedTuple, Self

from isal.isal_zlib import crc32

from quorumlog.errors import StoreFailure
from quorumlog.store.disk import Disk, DiskFile, disk_work, reason_of, refusal

SLOT_BYTES = 4096
SECTOR_BYTES = 512
SLOT_FILE_BYTES = 2 * SLOT_BYTES
PAYLOAD_BYTES = SECTOR_BYTES - 16 - 4

_HEAD = struct.Struct(">8sQ")
_CRC = struct.Struct(">I")


class Slot(NamedTuple):
    number: int
    sequence: int
    payload: bytes
    """With zeros after it."""


def payload_bytes_of(sector_bytes: int) -> int:
    return sector_bytes - _HEAD.size - _CRC.size


def encode_sector(
    magic: bytes, sequence: int, payload: bytes, sector_bytes: int = SECTOR_BYTES
) -> bytes:
    room_bytes = payload_bytes_of(sector_bytes)
    assert len(magic) == 8, magic
    assert len(payload) <= room_bytes, (len(payload), room_bytes)
    head = _HEAD.pack(magic, sequence) + payload.ljust(room_bytes, b"\0")
    return head + _CRC.pack(crc32(head))


def decode_sector(
    magic: bytes, sector: bytes, sector_bytes: int = SECTOR_BYTES
) -> tuple[int, bytes] | None:
    """(sequence, payload) of a sector, or None if it is not a whole good one of this kind."""
    if len(sector) != sector_bytes or sector[:8] != magic:
        return None
    if _CRC.unpack_from(sector, sector_bytes - 4)[0] != crc32(sector[:-4]):
        return None
    return _HEAD.unpack_from(sector)[1], sector[16:-4]


def read_slots(file: DiskFile, magic: bytes, sector_bytes: int = SECTOR_BYTES) -> list[Slot]:
    """The good slots of a file, the winning one first; a slot that cannot be read is a bad one."""
    slots = []
    for number in (0, 1):
        try:
            sector = file.pread(sector_bytes, number * max(SLOT_BYTES, sector_bytes))
        except OSError:
            continue  # a sector that the disk no longer reads; the other slot is enough
        decoded = decode_sector(magic, sector, sector_bytes)
        if decoded is not None:
            slots.append(Slot(number, *decoded))
    return sorted(slots, key=lambda slot: -slot.sequence)


def read_payload(disk: Disk, path: str, magic: bytes, sector_bytes: int = SECTOR_BYTES) -> bytes | None:
    """Of the winning slot, None if neither is good. Raises FileNotFoundError."""
    with closing(disk.open(path, writable=False)) as file:
        slots = read_slots(file, magic, sector_bytes)
    return slots[0].payload if slots else None


def unreadable_slots(disk: Disk, path: str, sector_bytes: int = SECTOR_BYTES) -> list[tuple[int, str]]:
    """(position, problem) of those that the disk cannot read. Raises OSError."""
    try:
        file = disk.open(path, writable=False)
    except FileNotFoundError:
        return []
    found = []
    with closing(file):
        for position in (0, max(SLOT_BYTES, sector_bytes)):
            try:
                file.pread(sector_bytes, position)
            except OSError as error:
                found.append((position, f"cannot be read: {reason_of(error)}"))
    return found


class SlotFile:
    """Not thread-safe. Raises StoreFailure where the disk refuses a write or a sync."""

    def __init__(
        self, file: DiskFile, magic: bytes, slots: list[Slot], sector_bytes: int = SECTOR_BYTES
    ) -> None:
        self._file = file
        self._sector_bytes = sector_bytes
        self._slot_bytes = max(SLOT_BYTES, sector_bytes)
        self._magic = magic
        self._payload = slots[0].payload if slots else None
        self._sequence = slots[0].sequence if slots else 0
        # What was read may be page cache only (a killed process, a failed sync), so neither slot
        # counts as synced until this process has synced both. It begins with the slot that can be
        # spared: the bad one, or the newer one, because the older was synced before it.
        self._next_slot = 1 - slots[0].number if len(slots) == 1 else slots[0].number if slots else 0
        self._both_known = False
        self._dirty = False

    @classmethod
    def create(
        cls, disk: Disk, path: str, magic: bytes, payload: bytes, sector_bytes: int = SECTOR_BYTES
    ) -> Self:
        """A new file with `payload` in both slots, synced; replaces an old one. The caller syncs the
        directory."""
        with disk_work(path, "created"), ExitStack() as opened:
            if disk.exists(path):
                disk.unlink(path)
            file = disk.open(path, create=True)
            opened.callback(file.close)
            slots = cls(file, magic, [], sector_bytes)
            # Written with zeros, not only reserved: the first write into a reserved block would change
            # the file's metadata, which every later sync would have to write as well.
            file.allocate(0, 2 * slots._slot_bytes)
            file.pwritev([bytes(2 * slots._slot_bytes)], 0)
            slots.write_both_synced(payload)
            opened.pop_all()
        return slots

    @classmethod
    def open(cls, disk: Disk, path: str, magic: bytes, sector_bytes: int = SECTOR_BYTES) -> Self:
        """Open an existing file, with any content. Raises FileNotFoundError."""
        file = disk.open(path)
        return cls(file, magic, read_slots(file, magic, sector_bytes), sector_bytes)

    @property
    def payload(self) -> bytes | None:
        """The payload of the winning slot, with zeros after it; None if neither slot is good."""
        return self._payload

    def write(self, payload: bytes) -> None:
        """Into one slot, without a sync: the same slot until `sync` has returned."""
        if not self._both_known:
            self.write_both_synced(payload)
            return
        self._write_slot(payload)
        self._dirty = True

    def sync(self) -> None:
        if self._dirty:
            self._sync_file()
            self._dirty = False
            self._next_slot = 1 - self._next_slot

    def write_both_synced(self, payload: bytes) -> None:
        """Into one slot, synced, then into the other, synced: no older value can win any more."""
        for _ in (0, 1):
            # If a slot is dirty it is this one, so that the synced one is still the last to go.
            self._write_slot(payload)
            self._sync_file()
            self._next_slot = 1 - self._next_slot
        self._dirty = False
        self._both_known = True

    def _write_slot(self, payload: bytes) -> None:
        sector = encode_sector(self._magic, self._sequence + 1, payload, self._sector_bytes)
        position = self._next_slot * self._slot_bytes
        try:
            try:
                self._file.pwritev([sector], position)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                # A page that the disk cannot read can be written as a whole only.
                self._file.pwritev([sector.ljust(self._slot_bytes, b"\0")], position)
        except OSError as error:
            raise StoreFailure(refusal(self._file.path, "written", error)) from error
        self._sequence += 1
        self._payload = payload.ljust(payload_bytes_of(self._sector_bytes), b"\0")

    def _sync_file(self) -> None:
        try:
            self._file.sync()
        except OSError as error:
            raise StoreFailure(refusal(self._file.path, "synced", error)) from error

    def close(self) -> None:
        self._file.close()
