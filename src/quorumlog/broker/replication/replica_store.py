"""ReplicaStore: a message store whose log may be a copy, and may be cut."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from quorumlog.broker.message import BLANK_BYTES
from quorumlog.broker.record_batch import QueueKey
from quorumlog.broker.store.log_files import BrokerRole, LogEnd, records_below, settle_end, walk
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.errors import StoreFailure
from quorumlog.store.disk import refusal

log = logging.getLogger("quorumlog.broker")


class ReplicaStore(MessageStore):
    """No writes and no replicated bytes while one of the calls below runs; readers continue."""

    replicated = True

    def cut(self, position: int) -> str:
        """The log ends there, at the end of a record; the rest is set aside, in the file that is
        returned. Queues and index follow. Raises StoreFailure."""
        log.warning("%s: the log is cut at %d, from %d", self.root, position, self.commit_log.max_offset)
        with self._paused():
            # First what is known of the queues: with an end behind the cut they would wait there.
            stop = min(self.reput.reput_from_offset, position)
            self.queues.truncate_to_position(stop)
            self.queues.record_ends()
            files = self.commit_log.files
            synced = self.commit_log.record_synced
            target = settle_end(files, LogEnd(position), 0, self.set_aside, synced)
            self.commit_log.cut(position)
            begin = stop
            if self.index is not None and self.index.end_position >= position:
                self.index.truncate_to_position(position)
                begin = files.base_of(max(min(begin, self.index.end_position), files.first_position))
            for found in walk(files, begin, LogEnd(begin), check_bodies=False):
                part = records_below(found, stop)
                if part is None:
                    break
                self._dispatcher.dispatch(part)
            self.reput.reput_from_offset = stop
            self.cuts += 1
        return target

    def begin_anew_at(self, position: int, begins: Mapping[QueueKey, int] | None = None) -> None:
        """The log begins and ends there, at the begin of a file, above its former end: its master has
        nothing older any more. `begins`: of each of its queues the next message then; None: not sent.
        Raises DiskFull, StoreFailure."""
        log.warning("%s: everything below %d goes, as at the master", self.root, position)
        with self._paused():
            assert position >= self.commit_log.max_offset, (position, self.commit_log.max_offset)
            self.commit_log.record_synced(0)  # a start before the next flush may find no file at all
            self.cleaner.drop_before(position)
            self.queues.begin_anew(begins)
            self.commit_log.cut(position)
            self.commit_log.replicated_offset = position
            self.reput.reput_from_offset = position
            if begins is None:
                log.warning(
                    "%s: the master does not send the next numbers of queues without messages:"
                    " as a master this broker would begin them at 0",
                    self.root,
                )

    def begin_with_log(self) -> None:
        """As `ConsumeQueues.begin_with_log`."""
        if any(queue.max_offset for queue in self.queues.all):
            with self._paused():
                self.queues.begin_with_log()

    def hide(self, alive_from: Mapping[QueueKey, int]) -> None:
        """As `ConsumeQueues.hide`."""
        if alive_from.items() - self.queues.alive_from.items():
            with self._paused():
                again = self.queues.hide(alive_from, self.reput.reput_from_offset)
                self.reput.reput_from_offset = max(again, self.commit_log.min_offset)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        ran = bool(self._threads)
        for thread in self._threads:
            thread.stop()
        self._threads.clear()
        try:
            yield
        except OSError as error:
            raise StoreFailure(refusal(self.root, "cut", error)) from error
        finally:
            if ran and not self.is_closed:
                self.start()

    def last_record(self) -> tuple[int, bytes] | None:
        """Where the last one begins that is dispatched, and its bytes, with the head of a blank after
        it; None: there is none (any more)."""
        last = max((queue.last_unit for queue in self.queues.all), default=(-1, 0))
        if last[0] < self.commit_log.min_offset:
            return None
        return last[0], self.commit_log.read_bytes(last[0], last[1] + BLANK_BYTES)

    def count_queues(self) -> None:
        """The next number of each queue, unconfirmed messages included: before the first put of a
        master."""
        position = self.reput.reput_from_offset
        ends = {key: queue.max_offset for key, queue in self.queues.items()}
        while (found := self.commit_log.read(position, self.commit_log.max_offset)) is not None:
            shown = found.records.shown
            for key, rows in shown.queues:
                if shown.starts[rows[-1]] + found.position >= self.queues.alive_from.get(key, 0):
                    last = int(shown.columns.queue_offsets[rows[-1]])
                    ends[key] = max(ends.get(key, 0), last + 1)
            position = found.next_position
        self.commit_log.next_queue_offsets = ends

    def stored_offset(self, key: QueueKey) -> int:
        if self.commit_log.role is BrokerRole.SLAVE:
            return sys.maxsize  # its master may have more than it
        return super().stored_offset(key)
