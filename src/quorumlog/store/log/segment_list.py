"""SegmentList: equal segments, named by their first byte, one behind the other as one address space.
What lies in them is not its concern."""

from __future__ import annotations

import threading

from quorumlog.entry_header import Buffer
from quorumlog.errors import DiskFull, StoreFailure
from quorumlog.store.disk import Disk, refusal
from quorumlog.store.ledger_store import SpaceTaken
from quorumlog.store.log.segment import PAGE_BYTES, Segment

DATA_NAME = "data"
INDEX_NAME = "index"
"""The folders of a directory that hold segments."""

NAME_DIGITS = 20


def segment_name(base_position: int) -> str:
    return f"{base_position:0{NAME_DIGITS}d}"


class SegmentList:
    """Only `file_at`, `pread` and `reserve_ahead` may be called off the store's own thread, and `write`
    under a lock that truncation takes as well (rewriting.py)."""

    def __init__(self, disk: Disk, directory: str, segment_bytes: int, first_position: int) -> None:
        """An empty list whose first segment will begin at `first_position`."""
        assert first_position % segment_bytes == 0, (first_position, segment_bytes)
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.first_position = first_position
        self.end_position = first_position
        """Just behind the last segment."""
        self.reserved_position = first_position
        """Up to here writes cannot run out of space; never behind `end_position`."""
        self._disk = disk
        self._files: dict[int, Segment] = {}
        self._growth_lock = threading.Lock()
        """Held while segments come or go and while space is reserved. Who reserves ahead in another
        thread only adds a segment when it is whole, and raises `reserved_position` after that: what the
        store's thread has seen stays as it was, so it reads without the lock."""
        self._is_closed = False

    # ---------------------------------------------------------------- segments

    @property
    def files(self) -> list[Segment]:
        return [self._files[base] for base in sorted(self._files)]

    @property
    def bases(self) -> list[int]:
        return sorted(self._files)

    def base_of(self, position: int) -> int:
        return position // self.segment_bytes * self.segment_bytes

    def stop_of(self, position: int) -> int:
        """Where the segment ends that a byte belongs to."""
        return self.base_of(position) + self.segment_bytes

    def file_at(self, position: int) -> Segment | None:
        """The segment that holds a byte, None if there is none (any more). Any thread."""
        return self._files.get(self.base_of(position))

    def path_of(self, position: int) -> str:
        return f"{self.directory}/{segment_name(self.base_of(position))}"

    def name_of(self, position: int) -> str:
        """Relative to the data directory."""
        return "/".join(self.path_of(position).rsplit("/", 2)[1:])

    def adopt(self, file: Segment) -> None:
        assert file.base_position == self.end_position, (file.base_position, self.end_position)
        assert file.size_bytes == self.segment_bytes, (file.size_bytes, self.segment_bytes)
        self._files[file.base_position] = file
        self.end_position = file.end_position

    def create_next(self) -> Segment:
        """A new last segment without space, its name on disk: for a start. Raises DiskFull,
        StoreFailure."""
        file = self._create_file()
        self._sync_directory()
        self.adopt(file)
        return file

    def _create_file(self) -> Segment:
        path = self.path_of(self.end_position)
        return Segment.create(self._disk, path, self.end_position, self.segment_bytes)

    def drop_after(self, position: int, reserve_stop: int = 0) -> list[Segment]:
        """Delete the segments behind the one that holds `position`, and return them. Segments below
        `reserve_stop` become zeros instead, and keep the space that they have or can get: one that was
        made again may have none. Each step, from the last backwards, is on disk before the next: what a
        crash leaves is contiguous."""
        dropped = []
        with self._growth_lock:
            reserve_stop = min(reserve_stop, self.reserved_position)
            behind = self.base_of(position) + self.segment_bytes
            for file in reversed([file for file in self.files if file.base_position >= behind]):
                if file.base_position < reserve_stop:
                    stop = min(reserve_stop, file.end_position)
                    fits = file.reserve_what_fits(file.base_position, stop)
                    if fits < stop:
                        reserve_stop = fits
                    self.reserved_position = reserve_stop
                    file.discard_from(file.base_position, fits)
                    file.sync()
                    continue
                del self._files[file.base_position]
                self.end_position = file.base_position
                self.reserved_position = min(self.reserved_position, self.end_position)
                self._unlink(file)
                self._sync_directory()
                file.retire()
                dropped.append(file)
        return dropped

    def drop_before(self, position: int) -> list[str]:
        """Let go of the segments below the one that holds `position`; returns their paths, oldest first.
        Whoever reads one meanwhile goes on; deleting them is left to the caller."""
        with self._growth_lock:
            first_position = self.base_of(position)
            below = [file for file in self.files if file.base_position < first_position]
            self.first_position = first_position
            # Index units that are in memory only may lie behind all files.
            self.end_position = max(self.end_position, first_position)
            self.reserved_position = max(self.reserved_position, first_position)
            for file in below:
                del self._files[file.base_position]
                file.retire()
        return [file.path for file in below]

    def discard_from(self, position: int, reserve_stop: int, low: int) -> Segment | None:
        """Zeros from `position` on, for a start; returns the segment that holds it, which is not synced.
        Space up to `reserve_stop` that the segments have is theirs all the while. `low`: see
        `Segment`."""
        self.reserved_position = position
        for file in self.files:
            if file.end_position > position and file.base_position <= self.reserved_position:
                first, stop = max(file.base_position, position), min(file.end_position, reserve_stop)
                if first < stop:
                    self.reserved_position = file.reserve_what_fits(first, stop)
        # The end may be the very first byte of the list; its segment is kept all the same.
        self.drop_after(max(position, self.first_position), reserve_stop)
        file_at_end = self.file_at(position)
        if file_at_end is not None:
            stop = min(self.reserved_position, file_at_end.end_position)
            file_at_end.discard_from(position, stop, low)
        return file_at_end

    def close(self) -> None:
        with self._growth_lock:
            self._is_closed = True
        for file in self._files.values():
            file.retire()
        self._files.clear()

    def _unlink(self, file: Segment) -> None:
        try:
            self._disk.unlink(file.path)
        except OSError as error:
            raise StoreFailure(refusal(file.path, "deleted", error)) from error

    def sync_names(self) -> None:
        """Also of files that a process has made that was killed before it could."""
        self._sync_directory()

    def _sync_directory(self) -> None:
        try:
            self._disk.sync_directory(self.directory)
        except OSError as error:
            raise StoreFailure(refusal(self.directory, "synced", error)) from error

    # ---------------------------------------------------------------- space

    def space_taken(self) -> SpaceTaken:
        """Raises StoreFailure."""
        files = self.files
        try:
            disk_bytes = sum(file.space_bytes() for file in files)
        except OSError as error:
            raise StoreFailure(refusal(self.directory, "measured", error)) from error
        return SpaceTaken(disk_bytes, len(files) * self.segment_bytes)

    def reserve(self, stop_position: int, step_bytes: int) -> None:
        """Have space up to `stop_position`, synced, creating segments as needed, in steps of
        `step_bytes` that end with their segment. Raises DiskFull: what was reserved until then stays,
        and no segment without space is left."""
        if self.reserved_position >= stop_position:
            return  # without the lock: who holds it may be waiting for the disk
        with self._growth_lock:
            while self.reserved_position < stop_position:
                self._reserve_more(stop_position, step_bytes)

    def reserve_ahead(self, reserved_position: int, step_bytes: int) -> None:
        """One more step, unless more or less is reserved by now than `reserved_position`. Any thread.
        Raises as `reserve`."""
        with self._growth_lock:
            if self.reserved_position == reserved_position and not self._is_closed:
                self._reserve_more(reserved_position + step_bytes, 0)

    def _reserve_more(self, stop_position: int, step_bytes: int) -> None:
        """In one segment, and a new one if none is left."""
        first = self.reserved_position
        is_new = first == self.end_position
        file = self._create_file() if is_new else self.file_at(first)
        assert file is not None, (first, self.end_position)
        wanted = min(stop_position, file.end_position)
        reserved = min(max(wanted, first + step_bytes), file.end_position)
        try:
            try:
                file.reserve(first, reserved)
            except DiskFull:
                if reserved == wanted:
                    raise
                reserved = wanted  # the step did not fit; this may
                file.reserve(first, reserved)
            if is_new:
                self._sync_directory()
        except BaseException as error:
            if is_new:
                file.retire()
                if isinstance(error, DiskFull):
                    self._unlink(file)
            raise
        if is_new:
            self.adopt(file)
        self.reserved_position = reserved

    # ---------------------------------------------------------------- bytes

    def write(self, data: Buffer, position: int) -> list[Segment]:
        """Bytes that may run over segment ends (index units do); returns the files written."""
        view = memoryview(data).cast("B")
        files = []
        while len(view):
            file = self.file_at(position)
            assert file is not None, (position, self.end_position)
            piece = view[: file.end_position - position]
            file.write([piece], position)
            files.append(file)
            view = view[len(piece) :]
            position += len(piece)
        return files

    def zero_in_segment(self, first_position: int, stop_position: int) -> None:
        """Zero what lies in the segment that holds `first_position`, if there is one; synced. To the end
        of the last page, behind which nothing was written: one that the disk cannot read can be written
        as a whole only."""
        file = self.file_at(first_position)
        if file is None or stop_position <= first_position:
            # A cut began with its segment, which is gone; or the log ends with that segment although
            # nothing was ever written so far, because a damaged range does.
            return
        stop_position += -(stop_position - file.base_position) % PAGE_BYTES
        stop_position = min(stop_position, file.end_position)
        fits = file.reserve_what_fits(first_position, stop_position)
        if fits == stop_position:
            file.zero(first_position, stop_position)
        else:  # made again by a start that had no space for it
            with self._growth_lock:
                self.reserved_position = min(self.reserved_position, fits)
                file.discard_from(first_position, fits)
        file.sync()

    def make_writable(self, position: int, size_bytes: int) -> None:
        """See `Segment.make_writable`; here no bytes count that cannot be made again."""
        for place in (position, position + size_bytes - 1):
            file = self.file_at(place)
            assert file is not None, (place, self.end_position)
            file.make_writable(place, file.base_position, file.end_position)

    def next_data(self, position: int) -> int:
        """The first position from here on that lies in no hole, or where its segment ends."""
        file = self.file_at(position)
        return self.base_of(position) + self.segment_bytes if file is None else file.next_data(position)

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Up to `size_bytes`, over segment ends; shorter where the list ends. Any thread. Raises
        OSError."""
        pieces = []
        while size_bytes:
            file = self.file_at(position)
            if file is None or not file.acquire():
                break
            try:
                piece = file.pread(min(size_bytes, file.end_position - position), position)
            finally:
                file.release()
            if not piece:
                break
            pieces.append(piece)
            position += len(piece)
            size_bytes -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
