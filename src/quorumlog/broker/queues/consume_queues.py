"""ConsumeQueues: `ROOT/consumequeue/TOPIC/QUEUE/`, opened once and by name."""

from __future__ import annotations

import threading

from quorumlog.broker.commit_log.file_lists import open_file_list
from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.queues.consume_queue import ConsumeQueue
from quorumlog.broker.queues.open_files import OpenFiles
from quorumlog.broker.queues.queue_ends import QueueEnd, QueueEnds
from quorumlog.errors import StoreFailure
from quorumlog.store.disk import Disk, refusal
from quorumlog.store.log.segment_list import SegmentList
from quorumlog.store.repair.set_aside import SetAside

QUEUES_NAME = "consumequeue"


class ConsumeQueues:
    def __init__(
        self,
        disk: Disk,
        root: str,
        config: MessageStoreConfig,
        set_aside: SetAside | None,
        *,
        writable: bool = True,
        sizes_are_known: bool = False,
    ) -> None:
        """`sizes_are_known`: see `open_file_list`. Raises StoreFailure, ConfigError."""
        self._sizes_are_known = sizes_are_known
        self.path = f"{root}/{QUEUES_NAME}"
        self._disk = disk = OpenFiles(disk)
        self._config = config
        self._set_aside = set_aside
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self.last_position = -1
        """Behind the last record that any queue shows."""
        self._ends = QueueEnds(disk, root)
        self._known: list[QueueEnd] | None = self._ends.load()
        """What was there before this start; None: it is all there, or derived anew. Until then nothing
        is recorded over it, or what was lost would be forgotten."""
        self._ends_lock = threading.Lock()
        self.lost = ""
        """Why they are to be derived anew; empty: nothing of them is known to be lost."""
        for topic in disk.list(self.path):
            for name in disk.list(f"{self.path}/{topic}"):
                if name.isascii() and name.isdigit():
                    key = QueueKey(topic, int(name))
                    try:
                        queue = self._open(key, writable)
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
            lost_below = -1
            if queue is None or queue.max_offset < known.end:
                lost_below = known.end
            elif 0 <= known.begin < queue.min_offset:
                lost_below = queue.min_offset
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
                    QueueEnd(key.topic, key.queue_id, queue.flushed_offset, queue.min_offset)
                    for key, queue in self.items()
                ]
            )

    def truncate_to_position(self, position: int) -> None:
        for queue in self.all:
            queue.truncate_to_position(position)

    def clear(self) -> None:
        """Delete them all, to be derived anew. Raises StoreFailure."""
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
