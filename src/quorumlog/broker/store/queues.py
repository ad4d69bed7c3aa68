"""The messages of each queue in their order, as they follow from the commit log."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from quorumlog.broker.config import QUEUE_UNIT_BYTES, MessageStoreConfig
from quorumlog.broker.record_batch import Int64Array, QueueKey
from quorumlog.broker.store.log_files import delete_files, open_file_list, sync_files
from quorumlog.entry_header import Buffer
from quorumlog.errors import StoreFailure
from quorumlog.store.disk import Disk, DiskFile, disk_work, is_lack_of_space, refusal
from quorumlog.store.recovery import SetAside
from quorumlog.store.segment import PAGE_BYTES
from quorumlog.store.segments import SegmentList, segment_name
from quorumlog.store.state_files import read_readable, replace_file

# ---------------------------------------------------------------- QueueEnds
# From where to where each queue was known to reach (`ROOT/queues`, a file of ours).

QUEUE_ENDS_NAME = "queues"


class QueueEnd(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    queue_id: int
    end: int
    begin: int = -1
    """Of its first message; -1: an older release did not say it."""
    log_begin: int = -1
    """Where the commit log began, or was about to begin, when `begin` was noted; -1: as above, or more
    messages than `begin` may have been before it."""
    alive_from: int = 0
    """See `ConsumeQueues`."""

    @property
    def key(self) -> QueueKey:
        return QueueKey(self.topic, self.queue_id)


class QueueEnds:
    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._path = f"{root}/{QUEUE_ENDS_NAME}"
        self._saved: list[QueueEnd] | None = None

    def load(self) -> list[QueueEnd]:
        """Empty where it is missing or damaged: then nothing is known."""
        data, _ = read_readable(self._disk, self._path)
        try:
            return msgspec.json.decode(data or b"[]", type=list[QueueEnd])
        except msgspec.MsgspecError:
            return []

    def save(self, ends: Sequence[QueueEnd]) -> None:
        """On disk when this returns; does nothing if unchanged since the last save. Raises StoreFailure.

        On a full disk the old ones stay, which are true as well, until there is space: a store without
        space refuses messages, and does not stop."""
        if ends == self._saved:
            return
        try:
            replace_file(self._disk, self._path, msgspec.json.encode(ends), synced=True)
        except OSError as error:
            if is_lack_of_space(error):
                return
            raise StoreFailure(refusal(self._path, "written", error)) from error
        self._saved = list(ends)


# ---------------------------------------------------------------- OpenFiles
# A disk whose files are open while they are used, and so many of them at most: a store has a file for
# each of its queues at least, and a process has a thousand descriptors.
#
# A file that is closed to make room is not synced before: what it was given is in the cache of the
# operating system, and the sync of the file that is opened for it later reports what went wrong since.

MOST_OPEN_FILES = 256


class OpenFiles:
    """A `Disk`. Any thread."""

    def __init__(self, disk: Disk, most: int = MOST_OPEN_FILES) -> None:
        self._disk = disk
        self._most = most
        self._lock = threading.Lock()
        self._open: OrderedDict[PooledFile, DiskFile] = OrderedDict()
        """The one that was used last comes last."""
        self._closed: set[PooledFile] = set()
        """To make room for others."""

    @property
    def has_room(self) -> bool:
        """For one more without closing another; and none has to be opened again, for which others would
        wait."""
        return not self._closed and len(self._open) < self._most

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> DiskFile:
        opened = self._disk.open(path, writable=writable, create=create)
        file = PooledFile(self, path, writable)
        with self._lock:
            self._open[file] = opened
            self._make_room()
        return cast(DiskFile, file)

    @contextmanager
    def use(self, file: PooledFile) -> Iterator[DiskFile]:
        """Raises OSError."""
        with self._lock:
            opened = self._open.get(file)
            if opened is None:
                opened = self._open[file] = self._disk.open(file.path, writable=file.writable)
                self._closed.discard(file)
            self._open.move_to_end(file)
            file.users += 1
            self._make_room()
        try:
            yield opened
        finally:
            with self._lock:
                file.users -= 1

    def _make_room(self) -> None:
        excess = len(self._open) - self._most
        if excess > 0:
            idle = [file for file in self._open if not file.users][:excess]
            for file in idle:
                self._closed.add(file)
                try:
                    self._open.pop(file).close()
                except OSError as error:  # of what it was given, and no matter of who needs the room
                    file.failure = error

    def forget(self, file: PooledFile) -> None:
        """It is not in use (any more)."""
        with self._lock:
            self._closed.discard(file)
            opened = self._open.pop(file, None)
        if opened is not None:
            opened.close()

    def __getattr__(self, name: str) -> Any:
        """The rest is as the disk has it."""
        return getattr(self._disk, name)


class PooledFile:
    """A `DiskFile`."""

    def __init__(self, pool: OpenFiles, path: str, writable: bool) -> None:
        self.path = path
        self.writable = writable
        self._pool = pool
        self.users = 0
        """Threads that use it just now: it stays open."""
        self.failure: OSError | None = None
        """Of a lost write, reported when closing it to make room."""

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Empty once retention has deleted it."""
        try:
            with self._pool.use(self) as file:
                return file.pread(size_bytes, position)
        except FileNotFoundError:
            return b""

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        with self._pool.use(self) as file:
            file.pwritev(buffers, position)

    def sync(self) -> None:
        if self.failure is not None:
            raise self.failure
        with self._pool.use(self) as file:
            file.sync()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            with self._pool.use(self) as file:
                return getattr(file, name)(*args)

        return called

    def close(self) -> None:
        self._pool.forget(self)


# ---------------------------------------------------------------- ConsumeQueue
# The messages of one queue in order, 20 bytes each.
#
#     offset  bytes  field (big-endian)
#          0      8  position of the record in the commit log
#          8      4  its size
#         12      8  tagsCode: Java's hash of its tags; of a delayed message when it is due
#
# Unit n lies at byte 20 n of the queue, whose files are named by their first byte.

UNIT = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert UNIT.itemsize == QUEUE_UNIT_BYTES
Units = npt.NDArray[np.void]

FILLER_SIZE = 0x7FFFFFFF
"""Of units before the first message that there is, in a file that begins before it."""
RESERVE_STEP_BYTES = 1 << 20
_LOOK_UNITS = 1 << 12


def units_of(positions: npt.ArrayLike, sizes: npt.ArrayLike, tags_codes: npt.ArrayLike) -> Units:
    position_array = np.asarray(positions)
    units: Units = np.empty(len(position_array), UNIT)
    units["position"], units["size"], units["tags_code"] = position_array, sizes, tags_codes
    return units


class ConsumeQueue:
    """`append` from one thread; reads from any."""

    def __init__(self, disk: Disk, files: SegmentList) -> None:
        """Raises StoreFailure."""
        self._disk = disk
        self.files = files
        self.min_offset = files.first_position // QUEUE_UNIT_BYTES
        self.max_offset = self._find_end()
        self.flushed_offset = self.max_offset
        fillers = self.units(self.min_offset, self.max_offset)["size"] == FILLER_SIZE
        self.min_offset += len(fillers) if fillers.all() else int(np.argmin(fillers))
        self.begin_is_known = self.max_offset > 0
        """Its first message has this number and no other."""

    def _find_end(self) -> int:
        """After the last unit that was written, file by file from the first on."""
        end = self.files.first_position // QUEUE_UNIT_BYTES
        last = self.files.end_position // QUEUE_UNIT_BYTES
        while end < last:  # a file of a queue has room for 300,000, and many have few
            data = self._units(end, min(end + _LOOK_UNITS, last))
            bad = np.flatnonzero((data["size"] <= 0) | (data["position"] < 0))
            if len(bad):
                return end + int(bad[0])
            end += len(data)
        return end

    # ---------------------------------------------------------------- reading

    def units(self, first: int, stop: int) -> Units:
        """Those that there are. Any thread."""
        first, stop = max(first, self.min_offset), min(stop, self.max_offset)
        return self._units(first, stop) if first < stop else np.empty(0, UNIT)

    def _units(self, first: int, stop: int) -> Units:
        size_bytes = (stop - first) * QUEUE_UNIT_BYTES
        try:
            data = self.files.pread(size_bytes, first * QUEUE_UNIT_BYTES).ljust(size_bytes, b"\0")
        except OSError as error:
            raise StoreFailure(refusal(self.files.directory, "read", error)) from error
        return np.frombuffer(data, UNIT)

    def names(
        self,
        first: int,
        positions: Int64Array,
        sizes: Int64Array,
        tags_codes: Int64Array | None = None,
    ) -> bool:
        """Its units from this number on are those of the records at these positions. `tags_codes`: None
        where they are of no matter."""
        held = self.units(first, first + len(positions))
        return (
            len(held) == len(positions)
            and bool((held["position"] == positions).all() and (held["size"] == sizes).all())
            and (tags_codes is None or bool((held["tags_code"] == tags_codes).all()))
        )

    @property
    def last_unit(self) -> tuple[int, int]:
        """Position and size of its last message; (-1, 0) of an empty queue."""
        last = self.units(self.max_offset - 1, self.max_offset)
        return (int(last["position"][0]), int(last["size"][0])) if len(last) else (-1, 0)

    @property
    def ends_in_order(self) -> bool:
        """Of a unit that lay over two pages a loss of power may have left the size alone: it then names
        a message before the one before it."""
        last = self.units(self.max_offset - 2, self.max_offset)["position"]
        return len(last) < 2 or bool(last[0] < last[1])

    @property
    def first_position(self) -> int:
        """Of the record of its first message; -1 of an empty queue."""
        first = self.units(self.min_offset, self.min_offset + 1)
        return int(first["position"][0]) if len(first) else -1

    @property
    def last_position(self) -> int:
        """After the record of its last message; -1 of an empty queue."""
        return sum(self.last_unit)

    # ---------------------------------------------------------------- writing

    def begin_at(self, offset: int) -> None:
        """An empty queue whose first message has this number: those before it are fillers, and a file
        exists for it though empty. Raises DiskFull, StoreFailure."""
        assert self.max_offset == self.min_offset, (self.min_offset, self.max_offset)
        if offset == self.max_offset:
            self.begin_is_known = True
            return
        base = self.files.base_of(offset * QUEUE_UNIT_BYTES)
        if base != self.files.first_position:
            self._begin_files_at(base)
        first = base // QUEUE_UNIT_BYTES
        self.min_offset = self.max_offset = self.flushed_offset = first
        self.files.reserve(base + QUEUE_UNIT_BYTES, RESERVE_STEP_BYTES)
        if offset > first:
            fillers = units_of(np.zeros(offset - first), FILLER_SIZE, 0)
            self.append(fillers)
            self.min_offset = offset
        self.begin_is_known = True  # not before: another thread may note where it begins

    def restart(self) -> None:
        """Empty, and 0 is next. Raises StoreFailure."""
        self._begin_files_at(0)
        self.min_offset = self.max_offset = self.flushed_offset = 0

    def _begin_files_at(self, base: int) -> None:
        """Those of before would leave a gap before it."""
        names = [segment_name(first) for first in self.files.bases]
        self.files.close()
        delete_files(self._disk, self.files.directory, names)
        self.files = SegmentList(self._disk, self.files.directory, self.files.segment_bytes, base)

    def append(self, units: Units) -> None:
        """Raises DiskFull, StoreFailure."""
        position = self.max_offset * QUEUE_UNIT_BYTES
        stop = position + len(units) * QUEUE_UNIT_BYTES
        self.files.reserve(stop, RESERVE_STEP_BYTES)
        self.files.write(units.tobytes(), position)
        self.max_offset += len(units)

    def flush(self, least_pages: int) -> None:
        """Raises StoreFailure."""
        end = self.max_offset
        first, stop = self.flushed_offset * QUEUE_UNIT_BYTES, end * QUEUE_UNIT_BYTES
        if first == stop or stop // PAGE_BYTES - first // PAGE_BYTES < least_pages:
            return
        sync_files(self.files, first, stop)
        self.flushed_offset = max(self.flushed_offset, end)  # retention flushes, too

    def truncate_to_position(self, position: int, *, ends_in_zeros: bool = False) -> None:
        """Without the messages from this position of the commit log on; on disk when this returns.
        `ends_in_zeros`: its files do after its end, on disk."""
        offset = self.offset_at(position)
        if offset < self.max_offset or not ends_in_zeros:
            self.truncate(offset)

    def truncate(self, offset: int) -> None:
        self.max_offset = max(offset, self.min_offset)
        stop = self.max_offset * QUEUE_UNIT_BYTES
        if stop < self.files.end_position:
            file = self.files.discard_from(stop, stop, stop)
            if file is not None:
                file.sync()
        self.flushed_offset = self.max_offset

    def doubt_from(self, position: int) -> None:
        """Its messages from this position of the commit log on may be in the cache alone, but for those
        in its last file, which is synced."""
        offset = self.offset_at(position)
        if self.files.base_of(offset * QUEUE_UNIT_BYTES) < self.files.base_of(
            self.max_offset * QUEUE_UNIT_BYTES
        ):
            self.flushed_offset = offset

    def show_from(self, position: int) -> None:
        """Messages below this position of the commit log are there no more."""
        self.min_offset = self.offset_at(position)

    def drop_before(self, position: int) -> list[str]:
        """Forget messages below this position of the commit log; returns the paths of files that may be
        deleted."""
        self.show_from(position)
        last_kept = min(self.min_offset, max(self.max_offset - 1, 0)) * QUEUE_UNIT_BYTES
        return self.files.drop_before(last_kept)

    def offset_at(self, position: int) -> int:
        """Of the first message from this position of the commit log on: positions rise within a
        queue. Any thread."""

        def position_of(offset: int) -> int:
            return int(self._units(offset, offset + 1)["position"][0])

        low, high = self.min_offset, self.max_offset
        if low == high or position_of(low) >= position:
            return low
        return low + bisect_left(range(low, high), position, key=position_of)

    def close(self) -> None:
        self.files.close()


# ---------------------------------------------------------------- ConsumeQueues
# `ROOT/consumequeue/TOPIC/QUEUE/`, opened once and by name.

QUEUES_NAME = "consumequeue"


class ConsumeQueues:
    def __init__(
        self,
        disk: Disk,
        root: str,
        config: MessageStoreConfig,
        set_aside: SetAside | None,
        *,
        log_begin: int = 0,
        writable: bool = True,
        sizes_are_known: bool = False,
    ) -> None:
        """`log_begin`: of the commit log; earlier messages are not shown. `sizes_are_known`: see
        `open_file_list`. Raises StoreFailure, ConfigError."""
        self.path = f"{root}/{QUEUES_NAME}"
        self._disk = disk = cast(Disk, OpenFiles(disk))
        self._file_bytes = config.mapped_file_size_consume_queue
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._log_begin = log_begin
        self.begins_anywhere = False
        """An unknown queue may begin with any number: the commit log no longer has earlier messages."""
        self._floors: dict[QueueKey, int] = {}
        """What is known of queues that are derived anew, should the log hold no message of them."""
        self.last_position = -1
        """After the last record that any queue shows."""
        self._ends = QueueEnds(disk, root)
        self._known: list[QueueEnd] | None = self._ends.load()
        """What was there before this start; None: it is all there, or derived anew. Until then nothing
        is recorded over it, or what was lost would be forgotten."""
        self.alive_from = {end.key: end.alive_from for end in self._known if end.alive_from}
        """Records of a queue below this position of the commit log are of a topic of this name that was
        deleted. Also of queues that there are not."""
        self._ends_lock = threading.Lock()
        self.lost = ""
        """Why they are to be derived anew; empty: nothing of them is known to be lost."""
        unsure = {end.key for end in self._known if end.log_begin < 0}
        for topic in disk.list(self.path):
            for name in disk.list(f"{self.path}/{topic}"):
                if name.isascii() and name.isdigit():
                    key, folder = QueueKey(topic, int(name)), f"{self.path}/{topic}/{int(name)}"
                    try:
                        files = open_file_list(
                            *(disk, folder, self._file_bytes),
                            option="mapped_file_size_consume_queue",
                            set_aside=set_aside,
                            writable=writable,
                            sizes_are_known=sizes_are_known,
                        )
                        queue = ConsumeQueue(disk, files)
                        queue.show_from(log_begin)
                        queue.begin_is_known &= key not in unsure
                    except StoreFailure as failure:
                        self.lost = str(failure)
                        queue = ConsumeQueue(disk, SegmentList(disk, folder, QUEUE_UNIT_BYTES, 0))
                    self._queues[key] = queue
                    self.last_position = max(self.last_position, queue.last_position)

    def get(self, key: QueueKey) -> ConsumeQueue | None:
        return self._queues.get(key)

    def items(self) -> list[tuple[QueueKey, ConsumeQueue]]:
        return sorted(self._queues.copy().items())

    def has_room(self, key: QueueKey, units: int) -> bool:
        """So many go into a queue and its open file as they are."""
        queue, disk = self._queues.get(key), cast(OpenFiles, self._disk)
        return (
            queue is not None
            and disk.has_room
            and queue.files.reserved_position >= (queue.max_offset + units) * QUEUE_UNIT_BYTES
        )

    @property
    def all(self) -> list[ConsumeQueue]:
        return [queue for _, queue in self.items()]

    def queue_of(self, key: QueueKey) -> ConsumeQueue:
        """Made if it is not there, with its names on disk. Raises StoreFailure."""
        queue = self._queues.get(key)
        if queue is not None:
            return queue
        topic_folder = f"{self.path}/{key.topic}"
        folder = f"{topic_folder}/{key.queue_id}"
        with disk_work(folder, "created"):
            self._disk.make_directory(folder)
            self._disk.sync_directory(topic_folder)
            self._disk.sync_directory(self.path)
        files = SegmentList(self._disk, folder, self._file_bytes, 0)
        queue = self._queues[key] = ConsumeQueue(self._disk, files)
        self.record_ends()
        return queue

    def missing(self) -> str:
        """Known messages that are missing now, in a sentence; empty: none."""
        for known in self._known or []:
            queue = self._queues.get(known.key)
            begin, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
            lost_below = -1
            if end < known.end:
                lost_below = known.end
            elif 0 <= known.begin < begin and max(known.log_begin, 0) == self._log_begin:
                lost_below = begin
            if lost_below >= 0:
                return (
                    f"queue {known.queue_id} of topic {known.topic} has lost messages below {lost_below}"
                )
        return ""

    def settle(self) -> None:
        """They match the log: later changes may be recorded. Not called where they are derived anew at
        each start."""
        self._known = None

    def record_ends(self) -> None:
        """Of the queues on disk: without this file a lost queue would begin again at 0. Also before
        earlier messages are deleted; not before `settle`. Raises StoreFailure."""
        if self._known is not None:
            return
        with self._ends_lock:  # threads that dispatch, flush and delete do this
            self._ends.save(
                [
                    QueueEnd(
                        key.topic,
                        key.queue_id,
                        queue.flushed_offset,
                        queue.min_offset,
                        self._log_begin if queue.begin_is_known else -1,
                        self.alive_from.get(key, 0),
                    )
                    for key, queue in self.items()
                ]
                + [
                    QueueEnd(*key, 0, alive_from=position)
                    for key, position in sorted(self.alive_from.items())
                    if key not in self._queues
                ]
            )

    def drop_before(self, position: int) -> list[str]:
        """The commit log is about to begin there: how far each queue is is on disk when this returns.
        Returns the paths of files to be deleted once the log's are. Raises StoreFailure."""
        self.flush(0)
        with self._ends_lock:
            self._log_begin = max(position, self._log_begin)
            dropped = [path for queue in self.all for path in queue.drop_before(position)]
        self.record_ends()
        return dropped

    def begins(self) -> tuple[int, dict[QueueKey, int]]:
        """Where the log begins, or is about to, and the number of the first message of each queue from
        there on, or of its next one. Any thread."""
        with self._ends_lock:
            return self._log_begin, {key: queue.min_offset for key, queue in self.items()}

    def begin_anew(self, begins: Mapping[QueueKey, int] | None) -> None:
        """All messages of the log are dropped. `begins`: of each queue the next one; None: it is not
        known. Raises DiskFull, StoreFailure."""
        self.begins_anywhere = True
        for key, begin in (begins or {}).items():
            queue = self.queue_of(key)
            if begin < queue.max_offset:
                queue.restart()
            queue.begin_at(begin)
        for queue in self.all:
            queue.begin_is_known = False  # the broker that said it may know of too few itself
        self.flush(0)
        self.record_ends()

    def begin_with_log(self) -> None:
        """The log holds nothing, and all of it is to come from its first byte on. Raises
        StoreFailure."""
        self.begins_anywhere = True
        for queue in self.all:
            queue.restart()
            queue.begin_is_known = False
        self.record_ends()

    def hide(self, alive_from: Mapping[QueueKey, int], dispatched_offset: int) -> int:
        """Hide messages of topics that another broker reports as deleted. A queue that begins with such
        messages begins anew; returns from where on the log, which is dispatched up to
        `dispatched_offset`, is to be dispatched for it. Raises StoreFailure."""
        again = dispatched_offset
        for key, position in alive_from.items():
            queue = self._queues.get(key)
            if queue is None or self.alive_from.get(key) == position:
                continue
            first = queue.first_position
            if first < position and (first >= 0 or dispatched_offset <= position):
                queue.restart()
                again = min(again, position)
        self.alive_from |= alive_from
        self.record_ends()
        return again

    def truncate_to_position(self, position: int, *, end_in_zeros: bool = False) -> None:
        for queue in self.all:
            queue.truncate_to_position(position, ends_in_zeros=end_in_zeros)

    def _floor_of(self, known: QueueEnd | None) -> int:
        if known is None:
            return 0
        return known.begin if known.log_begin > self._log_begin else known.end

    def floors(self) -> dict[QueueKey, int]:
        """Next numbers of queues without a message left in the log, from the recorded ends and the
        remaining files."""
        floors = {each.key: self._floor_of(each) for each in self._known or []}
        for key, queue in self.items():
            if queue.min_offset == queue.max_offset:  # all that it had is in the log no more
                floors[key] = max(floors.get(key, 0), queue.max_offset)
        return floors

    def derive_anew(self) -> None:
        """Delete them all, except the record of their begins; then the log is dispatched from its begin
        on, and `derived` called. Raises DiskFull, StoreFailure."""
        known = {each.key: each for each in self._known or []}
        begins = {key: each.begin for key, each in known.items() if each.log_begin == self._log_begin}
        floors = self.floors()
        noted = dict(known)
        for key, queue in self.items():
            if queue.min_offset == queue.max_offset > self._floor_of(known.get(key)):
                alive_from = self.alive_from.get(key, 0)
                noted[key] = QueueEnd(*key, queue.max_offset, alive_from=alive_from)
        if noted != known:  # a store of another software tells it by their files only
            self._ends.save(list(noted.values()))
        self.clear()
        self.begins_anywhere = True
        for key, begin in begins.items():
            self.queue_of(key).begin_at(begin)
        self._floors = floors

    def derived(self, behind: Mapping[QueueKey, int]) -> None:
        """Queues without a message in the log continue at their recorded numbers. `behind`: the numbers
        of first messages in the log that are not dispatched yet. Raises DiskFull, StoreFailure."""
        floors, self._floors = self._floors, {}
        for key, floor in floors.items():
            queue = self._queues.get(key)
            begin = behind.get(key, floor)
            if begin and (queue is None or not queue.begin_is_known):
                self.queue_of(key).begin_at(begin)

    def clear(self) -> None:
        """Delete them all. Raises StoreFailure."""
        for queue in self.all:
            queue.close()
            delete_files(self._disk, queue.files.directory)
        self._queues.clear()
        self.last_position = -1

    def flush(self, least_pages: int) -> None:
        for queue in self.all:
            queue.flush(least_pages)

    def close(self) -> None:
        for queue in self.all:
            queue.close()
