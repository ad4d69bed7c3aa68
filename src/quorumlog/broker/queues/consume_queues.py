"""ConsumeQueues: `ROOT/consumequeue/TOPIC/QUEUE/`, opened once and by name."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from quorumlog.broker.commit_log.file_lists import open_file_list
from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.queues.consume_queue import ConsumeQueue
from quorumlog.broker.queues.open_files import OpenFiles
from quorumlog.broker.queues.queue_ends import QueueEnd, QueueEnds
from quorumlog.errors import StoreFailure
from quorumlog.store.disk import Disk, refusal
from quorumlog.store.recovery import SetAside
from quorumlog.store.segments import SegmentList

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
        """`log_begin`: of the commit log; what lies below it is not shown. `sizes_are_known`: see
        `open_file_list`. Raises StoreFailure, ConfigError."""
        self._sizes_are_known = sizes_are_known
        self.path = f"{root}/{QUEUES_NAME}"
        self._disk = disk = OpenFiles(disk)
        self._config = config
        self._set_aside = set_aside
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._log_begin = log_begin
        self.begins_anywhere = False
        """A queue of which nothing is known may begin with any number: the commit log no longer has what
        was before."""
        self._floors: dict[QueueKey, int] = {}
        """What is known of queues that are derived anew, should the log hold no message of them."""
        self.last_position = -1
        """Behind the last record that any queue shows."""
        self._ends = QueueEnds(disk, root)
        self._known: list[QueueEnd] | None = self._ends.load()
        """What was there before this start; None: it is all there, or derived anew. Until then nothing
        is recorded over it, or what was lost would be forgotten."""
        self.alive_from = {
            QueueKey(end.topic, end.queue_id): end.alive_from for end in self._known if end.alive_from
        }
        """Records of a queue below this position of the commit log are of a topic of this name that was
        deleted. Also of queues that there are not."""
        self._ends_lock = threading.Lock()
        self.lost = ""
        """Why they are to be derived anew; empty: nothing of them is known to be lost."""
        unsure = {QueueKey(end.topic, end.queue_id) for end in self._known or [] if end.log_begin < 0}
        for topic in disk.list(self.path):
            for name in disk.list(f"{self.path}/{topic}"):
                if name.isascii() and name.isdigit():
                    key = QueueKey(topic, int(name))
                    try:
                        queue = self._open(key, writable)
                        queue.show_from(log_begin)
                        queue.begin_is_known &= key not in unsure
                    except StoreFailure as failure:
                        self.lost = str(failure)
                        files = SegmentList(disk, f"{self.path}/{topic}/{name}", 20, 0)
                        queue = self._queues[key] = ConsumeQueue(disk, files)
                    self.last_position = max(self.last_position, queue.last_position)

    def _open(self, key: QueueKey, writable: bool) -> ConsumeQueue:
        folder = f"{self.path}/{key.topic}/{key.queue_id}"
        size = self._config.mapped_file_size_consume_queue
        files = open_file_list(
            self._disk,
            folder,
            size,
            option="mapped_file_size_consume_queue",
            set_aside=self._set_aside,
            writable=writable,
            sizes_are_known=self._sizes_are_known,
        )
        queue = self._queues[key] = ConsumeQueue(self._disk, files)
        return queue

    def get(self, key: QueueKey) -> ConsumeQueue | None:
        return self._queues.get(key)

    def items(self) -> list[tuple[QueueKey, ConsumeQueue]]:
        return sorted(self._queues.copy().items())

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
        try:
            self._disk.make_directory(folder)
            self._disk.sync_directory(topic_folder)
            self._disk.sync_directory(self.path)
        except OSError as error:
            raise StoreFailure(refusal(folder, "created", error)) from error
        files = SegmentList(self._disk, folder, self._config.mapped_file_size_consume_queue, 0)
        queue = self._queues[key] = ConsumeQueue(self._disk, files)
        self.record_ends()
        return queue

    def missing(self) -> str:
        """What is known to have been there and is not; empty: nothing."""
        for known in self._known or []:
            queue = self._queues.get(QueueKey(known.topic, known.queue_id))
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
        """They are what the log says: what comes from now on may be recorded. Who derives them anew at
        each start never says so, and has no use for it."""
        self._known = None

    def record_ends(self) -> None:
        """Of what is on disk: without this file of ours a queue that is lost would begin again at 0.
        Also before messages in front are deleted; not before `settle`. Raises StoreFailure."""
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
            self.queue_of(key).begin_at(begin)
        for queue in self.all:
            queue.begin_is_known = False  # whoever said it may know of too few itself
        self.flush(0)
        self.record_ends()

    def hide(self, alive_from: Mapping[QueueKey, int], dispatched_offset: int) -> int:
        """What another broker knows of topics that were deleted. A queue that begins with what is dead
        begins anew; returns from where on the log, which is dispatched up to `dispatched_offset`, is to
        be dispatched for it. Raises StoreFailure."""
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
        """Numbers with which queues go on of which the log holds no message any more, by what was noted
        and by what is left of them."""
        floors = {
            QueueKey(each.topic, each.queue_id): self._floor_of(each) for each in self._known or []
        }
        for key, queue in self.items():
            if queue.min_offset == queue.max_offset:  # all that it had is in the log no more
                floors[key] = max(floors.get(key, 0), queue.max_offset)
        return floors

    def derive_anew(self) -> None:
        """Delete them all, but what is known of their begins; then the log is dispatched from its begin
        on, and `derived` called. Raises DiskFull, StoreFailure."""
        known = {QueueKey(each.topic, each.queue_id): each for each in self._known or []}
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

    def derived(self) -> None:
        """Queues without a message in the log go on where they were known to be. Raises DiskFull,
        StoreFailure."""
        floors, self._floors = self._floors, {}
        for key, floor in floors.items():
            queue = self._queues.get(key)
            if floor and (queue is None or not queue.begin_is_known):
                self.queue_of(key).begin_at(floor)

    def clear(self) -> None:
        """Delete them all. Raises StoreFailure."""
        for queue in self.all:
            queue.close()
            try:
                for name in self._disk.list(queue.files.directory):
                    self._disk.unlink(f"{queue.files.directory}/{name}")
                self._disk.sync_directory(queue.files.directory)
            except OSError as error:
                raise StoreFailure(refusal(queue.files.directory, "deleted", error)) from error
        self._queues.clear()
        self.last_position = -1

    def flush(self, least_pages: int) -> None:
        for queue in self.all:
            queue.flush(least_pages)

    def close(self) -> None:
        for queue in self.all:
            queue.close()
