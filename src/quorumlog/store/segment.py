"""Segment: one file of the data or of the index, of fixed length. Positions are absolute, as in file
names.

Ours writes with `pwrite` and reads with `pread`: a page that is not in memory then costs a thread an I/O
without the interpreter's lock, and one that the disk cannot read raises an error instead of a signal.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Self

from quorumlog.entry_header import Buffer
from quorumlog.errors import StoreFailure
from quorumlog.figures import now
from quorumlog.store.disk import ClosedFile, Disk, DiskFile, disk_work, is_lack_of_space, refusal

PAGE_BYTES = 4096
_ZEROS = memoryview(bytes(1 << 20))


class Segment:
    """Bytes `base_position` .. `end_position - 1` of a list.

    A user of the file outside the store's own thread brackets it with `acquire` and `release`.
    The list that holds it is one, too: it is closed once the last is gone, so that a closed descriptor's
    number is never synced or read as another file.
    """

    def __init__(self, path: str, file: DiskFile, base_position: int, size_bytes: int) -> None:
        self.path = path
        self.base_position = base_position
        self.size_bytes = size_bytes
        self.end_position = base_position + size_bytes
        self._file = file
        self._users = 1  # the list that holds it
        self._is_parked = False
        self._users_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._sync_failure = ""

    @classmethod
    def create(cls, disk: Disk, path: str, base_position: int, size_bytes: int) -> Self:
        """Full length at once, all zeros, neither synced. Raises DiskFull, and then no file is left;
        StoreFailure."""
        with disk_work(path, "created", f"no space to create {path}"):
            file = disk.open(path, create=True)
            try:
                file.set_size(size_bytes)
            except OSError:
                file.close()
                disk.unlink(path)
                raise
        return cls(path, file, base_position, size_bytes)

    @classmethod
    def open(
        cls, disk: Disk, path: str, base_position: int, size_bytes: int, *, writable: bool = True
    ) -> Self:
        """Raises OSError."""
        return cls(path, disk.open(path, writable=writable), base_position, size_bytes)

    # ---------------------------------------------------------------- users

    def acquire(self) -> bool:
        """False: the file is gone and must not be used."""
        with self._users_lock:
            if self._users == 0:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        with self._users_lock:
            assert self._users > 0, self.path
            self._users -= 1
            if self._users == 0:
                self._file.close()

    def park(self, disk: Disk) -> bool:
        """Give its descriptor back, for good; everything is synced. False: it is in use, or has none.
        The store's own thread."""
        with self._users_lock:
            if self._users != 1 or self._is_parked:
                return False
            self._is_parked = True
            self._file.close()
            self._file = ClosedFile(disk, self.path)
            return True

    # ---------------------------------------------------------------- bytes

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Raises OSError."""
        return self._file.pread(size_bytes, position - self.base_position)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        return self._file.pread_into(buffer, position - self.base_position)

    def space_bytes(self) -> int:
        """Raises OSError."""
        return self._file.space_bytes()

    def next_data(self, position: int) -> int:
        """The first position from here on that lies in no hole, or where the segment ends."""
        offset = position - self.base_position
        found = self._file.next_data(offset)  # its size before that, if it is short
        return self.base_position + found if offset <= found < self.size_bytes else self.end_position

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Raises StoreFailure: space was reserved, so any error means that the disk fails."""
        try:
            self._file.pwritev(buffers, position - self.base_position)
        except OSError as error:
            raise StoreFailure(refusal(self.path, f"written at {position}", error)) from error

    def zero(self, first_position: int, stop_position: int) -> None:
        """Write zeros over a range; not synced."""
        assert self.base_position <= first_position <= stop_position <= self.end_position, (
            self.path,
            first_position,
            stop_position,
        )
        while first_position < stop_position:
            # Pieces end with a page: one that the disk cannot read can be written as a whole only.
            size = len(_ZEROS) - (first_position - self.base_position) % PAGE_BYTES
            piece = _ZEROS[: min(size, stop_position - first_position)]
            self.write([piece], first_position)
            first_position += len(piece)

    def make_writable(self, position: int, low: int, high: int) -> None:
        """A page that the disk cannot read cannot be written in part: zero it, unless it reaches beyond
        `low` .. `high`, where other bytes count."""
        offset = (position - self.base_position) // PAGE_BYTES * PAGE_BYTES
        first = self.base_position + offset
        stop = min(first + PAGE_BYTES, self.end_position)
        if low <= first and stop <= high:
            try:
                self.pread(stop - first, first)
            except OSError:
                self.zero(first, stop)

    def discard_from(self, position: int, reserved_stop: int = 0, low: int | None = None) -> None:
        """Make everything from `position` on zeros, on disk and in the cache; not synced.

        The file is cut and grown again: that costs the same for a gigabyte as for a page, and does not
        trust the cache, which after a failed sync may show zeros, marked clean, over old bytes. Up to
        `reserved_stop` zeros are written instead, which keep the space. `low`: from here on no bytes
        count (None: `position`). The pages in which the zeros and the file are cut may be unreadable,
        and are written as a whole then.
        """
        cut = max(position, reserved_stop)
        if (position - self.base_position) % PAGE_BYTES:
            self.make_writable(position, position if low is None else low, self.end_position)
        # Whole pages at the other end, where nothing counts: a part of one might have to be read.
        page_stop = self.base_position - (self.base_position - cut) // PAGE_BYTES * PAGE_BYTES
        page_stop = min(page_stop, self.end_position)
        # Without space a page that is a hole takes no zeros, and needs none.
        if position < reserved_stop or self.next_data(position) < page_stop:
            self.zero(position, page_stop)
        with disk_work(self.path, f"cut at {position}"):
            self._file.set_size(cut - self.base_position)
            self._file.set_size(self.size_bytes)

    def reserve(self, first_position: int, stop_position: int) -> None:
        """Space for a range, synced: a write there cannot fail for lack of it. Any thread. Raises
        DiskFull, StoreFailure."""
        size = stop_position - first_position
        full = f"no space for more of {self.path}{now(f'{size} bytes')}"
        with disk_work(self.path, "given space", full):
            self._file.allocate(first_position - self.base_position, size)
        self.sync()

    def reserve_what_fits(self, first_position: int, stop_position: int) -> int:
        """Up to where space for a range is reserved already or can be; not synced.

        A full disk does not say how far a file has its space: pages are tried.
        """
        if first_position == stop_position:
            return stop_position
        low = first_position // PAGE_BYTES  # has its space up to here
        high = -(-stop_position // PAGE_BYTES)
        tried = high
        while low < high:
            stop = min(tried * PAGE_BYTES, stop_position)
            try:
                self._file.allocate(first_position - self.base_position, stop - first_position)
            except OSError as error:
                if not is_lack_of_space(error):
                    raise StoreFailure(refusal(self.path, "given space", error)) from error
                high = tried - 1
            else:
                low = tried
            tried = (low + high + 1) // 2
        return min(max(low * PAGE_BYTES, first_position), stop_position)

    def uncache(self, first_position: int, stop_position: int) -> None:
        """Any thread."""
        self._file.uncache(first_position - self.base_position, stop_position - first_position)

    def sync(self) -> None:
        """fdatasync; any thread. Raises StoreFailure, and then for ever.

        The kernel reports a failed write-back once per open file. One thread may sync for a reservation
        while another syncs for an acknowledgement: were each to ask by itself, the first would take the
        error and the second would acknowledge bytes that are not there.
        """
        with self._sync_lock:
            if self._sync_failure:
                raise StoreFailure(self._sync_failure)
            try:
                self._file.sync()
            except OSError as error:
                self._sync_failure = refusal(self.path, "synced", error)
                raise StoreFailure(self._sync_failure) from error
