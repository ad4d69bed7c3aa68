"""Snapshots of state machines on disk, snapshots being received, and the entries being applied."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import Annotated

import msgspec
from isal.isal_zlib import crc32
from msgspec import Meta

from quorumlog.entry import SnapshotId
from quorumlog.entry_header import Buffer
from quorumlog.log_state.control_entries import MOST_STEPPED_OVER, fields_to_write
from quorumlog.store.disk import Disk, DiskFile, is_no_damage, reason_of, refusal
from quorumlog.store.state_files import read_readable

# ---------------------------------------------------------------- The files `snapshots/NAME-INDEX`
# The state of a state machine after an entry of the log.
#
#     b"QLSNAP 1", or 2 where `kept_bytes` is not 0
#     size, CRC-32 of the head (4 bytes each, big-endian), then the head:
#         MessagePack: [name, version, [index, term, chain], kept_bytes, left_out]
#     chunks: size (1 byte to 1 MiB), CRC-32 (4 bytes each), so many bytes
#     end: eight zero bytes, then how many bytes the chunks hold (8), and their SHA-256 (32)
#
# Written beside as `.tmp`, synced, renamed, and its name synced: a file of that name is whole, unless
# the disk has damaged it since. Nothing is handed to a machine before the CRC of its chunk was
# compared.

SNAPSHOTS_NAME = "snapshots"
SNAPSHOT_MAGIC = b"QLSNAP 1"
SNAPSHOT_MAGIC_KEPT = b"QLSNAP 2"
"""It begins with results of sessions, which are not the machine's: an older release must not load it."""
CHUNK_BYTES = 1 << 20
SYNC_BYTES = 16 << 20
"""Synced so often while it is written: the log's own syncs wait for less."""
LATE_BYTES = 2 * SYNC_BYTES
"""Writing on without an owed `sync` waits for one here."""
_PAIR = struct.Struct(">II")
_TOTAL = struct.Struct(">Q")
_DIGEST_BYTES = 32
_MOST_HEAD_BYTES = 4096
OVER = "the member ends"
PART_SUFFIX = ".part"
"""Of a partly received snapshot of another member."""
_INDEX_DIGITS = 20


class SnapshotDamaged(ValueError):
    """It is not as it was written."""


class SnapshotsUnavailable(Exception):
    """This process cannot read them just now; their content is unknown. In a sentence."""


LeftOut = tuple[int, int]
"""(index of an entry that a state machine leaves out, index of the STEP_OVER entry that says so)."""


class SnapshotHead(msgspec.Struct, frozen=True, array_like=True):
    name: str
    """Of the machine."""
    version: int
    """As which it acted."""
    point: tuple[int, int, int]
    """(index, term, chain) of the last entry whose effects it holds."""
    kept_bytes: int = 0
    """Bytes before the machine's saved state: results kept for sessions."""
    left_out: tuple[LeftOut, ...] = ()
    """It holds nothing of these, ascending. Where there are none the field is not written, as earlier
    releases know it."""

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(fields_to_write(self, 1))

    @property
    def index(self) -> int:
        return self.point[0]


class SnapshotFileWriter:
    """`StateMachine.save` writes to it; then `finish`, or `abandon`. Raises OSError, and
    SnapshotsUnavailable once `is_over()`."""

    def __init__(self, disk: Disk, path: str, head: SnapshotHead, is_over: Callable[[], bool]) -> None:
        self._disk = disk
        self._is_over = is_over
        self._path = path
        self._temporary = f"{path}.tmp"
        if disk.exists(self._temporary):
            disk.unlink(self._temporary)
        self._file = disk.open(self._temporary, create=True)
        data = head.encode()
        assert len(data) <= _MOST_HEAD_BYTES, head
        self._position = 0
        self._unsynced_bytes = 0
        self._digest = hashlib.sha256()
        self._data_bytes = 0
        self._gathered = bytearray()
        magic = SNAPSHOT_MAGIC_KEPT if head.kept_bytes else SNAPSHOT_MAGIC
        self._put(magic, _PAIR.pack(len(data), crc32(data)), data)

    def write(self, data: Buffer) -> None:
        if self._is_over():
            raise SnapshotsUnavailable(OVER)
        rest = memoryview(data).cast("B")
        while len(self._gathered) + len(rest) >= CHUNK_BYTES:
            taken = CHUNK_BYTES - len(self._gathered)
            self._gathered += rest[:taken]
            rest = rest[taken:]
            self._put_chunk()
        self._gathered += rest

    @property
    def owes_sync(self) -> bool:
        return self._unsynced_bytes >= SYNC_BYTES

    def sync(self) -> None:
        self._unsynced_bytes = 0
        self._file.sync()

    def finish(self) -> None:
        """On disk under its name when this returns."""
        if self._gathered:
            self._put_chunk()
        end = _PAIR.pack(0, 0), _TOTAL.pack(self._data_bytes), self._digest.digest()
        self._put(*end)
        self._file.sync()
        self._file.close()
        self._disk.rename(self._temporary, self._path)
        self._disk.sync_directory(self._path.rpartition("/")[0])

    def abandon(self) -> None:
        """After an error: delete the written part."""
        self._file.close()
        with suppress(OSError):
            self._disk.unlink(self._temporary)

    def _put_chunk(self) -> None:
        chunk, self._gathered = self._gathered, bytearray()
        self._digest.update(chunk)
        self._data_bytes += len(chunk)
        self._put(_PAIR.pack(len(chunk), crc32(chunk)), chunk)
        if self._unsynced_bytes >= LATE_BYTES:
            self.sync()

    def _put(self, *buffers: Buffer) -> None:
        self._file.pwritev(buffers, self._position)
        size_bytes = sum(map(len, buffers))
        self._position += size_bytes
        self._unsynced_bytes += size_bytes


class SnapshotFileReader:
    """`StateMachine.load` reads from it; then `finish`. Raises SnapshotDamaged, also if the disk cannot
    read it; SnapshotsUnavailable where it cannot be opened for another reason, and once `is_over()`."""

    def __init__(self, disk: Disk, path: str, is_over: Callable[[], bool] = lambda: False) -> None:
        self._path = path
        self._is_over = is_over
        try:
            self._file: DiskFile = disk.open(path, writable=False)
        except OSError as error:
            if is_no_damage(error):
                raise SnapshotsUnavailable(refusal(path, "opened", error)) from error
            raise SnapshotDamaged(f"{path} cannot be opened: {reason_of(error)}") from error
        self._position = 0
        self._chunk = memoryview(b"")
        """What was read and is not handed out yet."""
        self._is_ended = False
        self._digest = hashlib.sha256()
        self._data_bytes = 0
        try:
            self.head = self._read_head()
        except BaseException:
            self._file.close()
            raise

    def read(self, size_bytes: int = -1) -> bytes:
        pieces = []
        while size_bytes and (self._chunk or self._next_chunk()):
            piece = self._chunk if size_bytes < 0 else self._chunk[:size_bytes]
            pieces.append(piece)
            self._chunk = self._chunk[len(piece) :]
            if size_bytes > 0:
                size_bytes -= len(piece)
        return b"".join(pieces)

    def skip(self, least_bytes: int) -> bool:
        """Read on, only to see whether it is whole; False once it is at its end."""
        stop_position = self._position + least_bytes
        while self._next_chunk():
            if self._position >= stop_position:
                return True
        return False

    def finish(self) -> None:
        """Unread bytes are compared, too."""
        while self._next_chunk():
            pass

    @property
    def id(self) -> SnapshotId:
        """Once it was read to its end."""
        assert self._is_ended, self._path
        return SnapshotId(self.head.name, self.head.index, self._position, self._digest.digest())

    def close(self) -> None:
        self._file.close()

    def _read_head(self) -> SnapshotHead:
        if self._take(len(SNAPSHOT_MAGIC)) not in (SNAPSHOT_MAGIC, SNAPSHOT_MAGIC_KEPT):
            raise self._damage("it is not a snapshot, or one of another release")
        size_bytes, crc = _PAIR.unpack(self._take(_PAIR.size))
        data = self._take(size_bytes) if size_bytes <= _MOST_HEAD_BYTES else b""
        if not data or crc32(data) != crc:
            raise self._damage("its header is damaged")
        try:
            return msgspec.msgpack.decode(data, type=SnapshotHead)
        except msgspec.MsgspecError as error:
            raise self._damage(f"its header cannot be read: {error}") from error

    def _next_chunk(self) -> bool:
        if self._is_over():
            raise SnapshotsUnavailable(OVER)
        if self._is_ended:
            return False
        size_bytes, crc = _PAIR.unpack(self._take(_PAIR.size))
        if size_bytes == 0:
            total = _TOTAL.unpack(self._take(_TOTAL.size))[0], self._take(_DIGEST_BYTES)
            if crc or total != (self._data_bytes, self._digest.digest()):
                raise self._damage("its digest does not match")
            self._is_ended = True
            return False
        if size_bytes > CHUNK_BYTES:
            raise self._damage(f"a chunk of {size_bytes} bytes")
        chunk = self._take(size_bytes)
        if crc32(chunk) != crc:
            raise self._damage("a chunk is damaged")
        self._digest.update(chunk)
        self._data_bytes += size_bytes
        self._chunk = memoryview(chunk)
        return True

    def _take(self, size_bytes: int) -> bytes:
        try:
            data = self._file.pread(size_bytes, self._position)
        except OSError as error:
            raise self._damage(f"it cannot be read: {reason_of(error)}") from error
        if len(data) < size_bytes:
            raise self._damage("it is cut off")
        self._position += size_bytes
        return data

    def _damage(self, problem: str) -> SnapshotDamaged:
        return SnapshotDamaged(f"{self._path} (position {self._position}): {problem}")


class SnapshotFiles:
    """The folder `snapshots` of a member's directory."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.disk = disk
        self._directory = directory
        self.folder = f"{directory}/{SNAPSHOTS_NAME}"
        self._is_over = False
        self._is_folder_synced = False
        """By this process: the name of an existing folder may never have reached the disk."""

    def end(self) -> None:
        """Any thread: does not wait for a save or load in progress, which fails at the next bytes that
        it writes or reads."""
        self._is_over = True

    def path_of(self, name: str, index: int) -> str:
        return f"{self.folder}/{name}-{index:0{_INDEX_DIGITS}d}"

    def indices_of(self, name: str) -> list[int]:
        """Of the snapshots of a machine, the newest last. Raises SnapshotsUnavailable."""
        return sorted(index for owner, index in self._named() if owner == name)

    def oldest_of_all(self) -> dict[str, int]:
        """Index of the oldest snapshot of each machine. Raises SnapshotsUnavailable."""
        return dict(sorted(self._named(), reverse=True))

    def _named(self) -> list[tuple[str, int]]:
        """(machine, index) of the snapshots; raises SnapshotsUnavailable."""
        parted = [file.rpartition("-") for file in self._names()]
        return [
            (owner, int(digits))
            for owner, _, digits in parted
            if owner and len(digits) == _INDEX_DIGITS and digits.isascii() and digits.isdigit()
        ]

    def create(self, head: SnapshotHead) -> SnapshotFileWriter:
        """Raises OSError."""
        self.make_folder()
        path = self.path_of(head.name, head.index)
        return SnapshotFileWriter(self.disk, path, head, lambda: self._is_over)

    def make_folder(self) -> None:
        """Its name is on disk when this returns. Raises OSError."""
        if not self._is_folder_synced:
            self.disk.make_directory(self.folder)
            self.disk.sync_directory(self._directory)
            self._is_folder_synced = True

    def open(self, name: str, index: int) -> SnapshotFileReader:
        """Raises SnapshotDamaged, also if its head is that of another; SnapshotsUnavailable."""
        path = self.path_of(name, index)
        reader = SnapshotFileReader(self.disk, path, lambda: self._is_over)
        if (reader.head.name, reader.head.index) != (name, index):
            reader.close()
            raise SnapshotDamaged(f"{path} holds {reader.head.name}-{reader.head.index}")
        return reader

    def delete(self, name: str, indices: list[int]) -> None:
        """Raises OSError."""
        for index in indices:
            if self.disk.exists(self.path_of(name, index)):
                self.disk.unlink(self.path_of(name, index))
        if indices:
            self.disk.sync_directory(self.folder)

    def delete_unfinished(self, name: str, up_to_index: int) -> None:
        """Delete files that a crash left of a save of this machine, and parts of received snapshots no
        newer than its own. Raises OSError, SnapshotsUnavailable."""
        for file in self._names():
            if file.endswith(PART_SUFFIX):
                owner, digits = _split_part(file)
                is_useless = owner == name and digits.isdigit() and int(digits) <= up_to_index
            else:
                is_useless = file.endswith(".tmp") and file.rpartition("-")[0] == name
            if is_useless:
                self.disk.unlink(f"{self.folder}/{file}")

    # Snapshots that come from other members: `received_snapshot`.

    def part_path_of(self, wanted: SnapshotId) -> str:
        return f"{self.path_of(wanted.name, wanted.index)}-{wanted.digest.hex()[:16]}{PART_SUFFIX}"

    def delete_other_parts(self, wanted: SnapshotId) -> None:
        """Of this machine. Raises OSError, SnapshotsUnavailable."""
        kept = self.part_path_of(wanted).rpartition("/")[2]
        for file in self._names():
            if file.endswith(PART_SUFFIX) and file != kept and _split_part(file)[0] == wanted.name:
                self.disk.unlink(f"{self.folder}/{file}")

    def read_piece(self, wanted: SnapshotId, offset: int, size_bytes: int) -> bytes | None:
        """Of the very file; None: it is not there, or cannot be read."""
        try:
            with closing(
                self.disk.open(self.path_of(wanted.name, wanted.index), writable=False)
            ) as file:
                end = file.pread(_DIGEST_BYTES + 1, wanted.total_bytes - _DIGEST_BYTES)
                data = file.pread(size_bytes, offset)
                file.uncache(offset, len(data))
                return data if end == wanted.digest else None
        except OSError:
            return None

    def _names(self) -> list[str]:
        """Raises SnapshotsUnavailable."""
        try:
            return self.disk.list(self.folder)
        except OSError as error:
            raise SnapshotsUnavailable(refusal(self.folder, "read", error)) from error


def _split_part(file: str) -> tuple[str, str]:
    """(name of the machine, digits of the index) of `NAME-INDEX-DIGEST.part`."""
    owner, _, digits = file.rpartition("-")[0].rpartition("-")
    return owner, digits


# ---------------------------------------------------------------- ReceivedSnapshot
# A snapshot of another member, piece by piece, until it is one of this member's.
#
#   NAME-INDEX-DIGEST.part    grows at its end; to go on with it later, another process too, asks
#                             for what follows
#   whole                     read again from the disk, every chunk and the digest compared
#   NAME-INDEX                renamed, and the name synced
#
# What a power loss has left of a part may have holes: the comparison finds that, and it is asked for
# anew.

VERIFY_BYTES = 4 << 20
"""Compared so much at once: machines wait for it."""


class ReceivedSnapshot:
    """Any thread, one call at a time. All raise OSError, after which only `drop` may be called;
    SnapshotDamaged or SnapshotsUnavailable only where documented."""

    def __init__(self, files: SnapshotFiles, wanted: SnapshotId) -> None:
        """Raises SnapshotsUnavailable."""
        self.id = wanted
        self._disk: Disk = files.disk
        self._files = files
        self._path = files.path_of(wanted.name, wanted.index)
        self._part_path = files.part_path_of(wanted)
        self._file: DiskFile | None = None
        self._reader: SnapshotFileReader | None = None
        self._unsynced_bytes = 0
        self.size_bytes = 0
        """So much of it has come."""
        self.is_placed = self._disk.exists(self._path) and files.read_piece(wanted, 0, 0) is not None
        """It lies there under its name, if the comparison finds that it does."""
        if self.is_placed:
            self.size_bytes = wanted.total_bytes
            return
        files.make_folder()
        files.delete_other_parts(wanted)
        is_new = not self._disk.exists(self._part_path)
        self._file = self._disk.open(self._part_path, create=is_new)
        self.size_bytes = min(self._file.size(), wanted.total_bytes)

    @property
    def is_whole(self) -> bool:
        return self.size_bytes == self.id.total_bytes

    def write(self, offset: int, data: bytes) -> None:
        """Append received bytes; ignored unless `offset` is the present end."""
        assert self._file is not None, self._part_path
        if offset != self.size_bytes or offset + len(data) > self.id.total_bytes:
            return
        self._file.pwritev([data], offset)
        self.size_bytes += len(data)
        self._unsynced_bytes += len(data)
        if self._unsynced_bytes >= SYNC_BYTES or self.is_whole:
            self._file.sync()
            self._file.uncache(self.size_bytes - self._unsynced_bytes, self._unsynced_bytes)
            self._unsynced_bytes = 0

    def verify(self) -> bool:
        """Compare the next piece; True once it is good, whole, and on disk under its name. Raises
        SnapshotDamaged: it was deleted; SnapshotsUnavailable."""
        if self._reader is None:
            if self._file is not None:
                self._file.sync()  # what an earlier process has written
            self._reader = SnapshotFileReader(
                self._disk, self._path if self.is_placed else self._part_path
            )
        if self._reader.skip(VERIFY_BYTES):
            return False
        if self._reader.id != self.id:
            raise SnapshotDamaged(f"{self._part_path} holds {self._reader.id} instead of {self.id}")
        if not self.is_placed:
            self._disk.rename(self._part_path, self._path)
            self.is_placed = True
        self._disk.sync_directory(self._files.folder)
        self.close()
        return True

    def drop(self) -> None:
        """Delete the received bytes."""
        self.close()
        for path in (self._part_path, self._path if self.is_placed else ""):
            with suppress(OSError):
                if path and self._disk.exists(path):
                    self._disk.unlink(path)

    def close(self) -> None:
        for opened in (self._file, self._reader):
            if opened is not None:
                opened.close()
        self._file = self._reader = None


# ---------------------------------------------------------------- The files `applying/NAME`
# What a state machine was about to apply as its process ended.
#
#     b"QLAPPLY1"
#     size, CRC-32 of what follows (4 bytes each, big-endian), then so many bytes
#         MessagePack: [first_index, stop_index, left_out]
#
# Written in place, before and after each piece that is applied. It is not synced then: the end of a
# process leaves it as it is, and a loss of power may take it. So it is a help only, and where the disk
# refuses it the machine goes on.

APPLYING_NAME = "applying"
APPLYING_MAGIC = b"QLAPPLY1"
_HEAD = struct.Struct(">8sII")


class Applying(msgspec.Struct, frozen=True, array_like=True):
    first_index: int
    stop_index: int
    """Entries of the machine below `first_index` are applied; of those from there up to `stop_index`
    (exclusive) nobody knows. Both are equal where none was under way."""
    left_out: Annotated[tuple[LeftOut, ...], Meta(max_length=MOST_STEPPED_OVER)] = ()
    """Entries that the machine's own state leaves out, ascending."""

    @property
    def is_under_way(self) -> bool:
        return self.first_index < self.stop_index

    def __str__(self) -> str:
        if self.stop_index - self.first_index == 1:
            return f"entry {self.first_index}"
        return f"entries {self.first_index} .. {self.stop_index - 1}"


NOTHING = Applying(0, 0)
_encode = msgspec.msgpack.Encoder().encode


class ApplyingFile:
    """Written on the thread that applies."""

    def __init__(
        self, disk: Disk, directory: str, name: str, opened: Callable[[DiskFile], None]
    ) -> None:
        """`opened` is called with the file, and closes it once nothing is applied any more."""
        self._disk = disk
        self._folder = f"{directory}/{APPLYING_NAME}"
        self._path = f"{self._folder}/{name}"
        self._file: DiskFile | None = None
        self._tell_opened = opened
        self.found = _read(disk, self._path)
        """As it was when this was made."""
        self._range = self.found.first_index, self.found.stop_index
        self.applied_index = self.found.first_index - 1
        """Up to there its entries were applied here, by this run or by the last one, also if it is being
        built anew; -1: not known."""
        self.left_out = self.found.left_out

    def begins(self, first_index: int, stop_index: int) -> None:
        self._range = first_index, stop_index
        self.applied_index = max(self.applied_index, first_index - 1)
        self._write()

    def ended(self, stop_index: int) -> None:
        """The begun entries were applied."""
        self._range = stop_index, stop_index
        self.applied_index = max(self.applied_index, stop_index - 1)
        self._write()

    def leaves_out(self, left_out: Iterable[LeftOut]) -> None:
        """The machine's own state leaves these out from here on. On disk when this returns, unless the
        disk refuses: then the machine is rebuilt at the next start."""
        ordered = tuple(sorted(left_out))
        if ordered != self.left_out:
            self.left_out = ordered
            self._write()
            with suppress(OSError):
                self._opened().sync()

    def _write(self) -> None:
        """Of each piece that is applied: a few microseconds."""
        data = _encode((*self._range, self.left_out))
        record = _HEAD.pack(APPLYING_MAGIC, len(data), crc32(data)) + data
        try:
            (self._file or self._opened()).pwritev([record], 0)
        except OSError:
            return  # it is a help only

    def _opened(self) -> DiskFile:
        if self._file is None:
            self._disk.make_directory(self._folder)
            self._file = self._disk.open(self._path, create=not self._disk.exists(self._path))
            self._tell_opened(self._file)
        return self._file


def _read(disk: Disk, path: str) -> Applying:
    """Nothing where it cannot be read."""
    with suppress(OSError, struct.error, msgspec.MsgspecError):
        content = read_readable(disk, path)[0] or b""
        magic, size_bytes, crc = _HEAD.unpack_from(content)
        data = content[_HEAD.size : _HEAD.size + size_bytes]
        if (magic, crc) == (APPLYING_MAGIC, crc32(data)):
            return msgspec.msgpack.decode(data, type=Applying)
    return NOTHING
