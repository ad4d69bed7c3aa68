"""MessageStore: a commit log, its queues and its index in one directory, and the services between them.

    ROOT/commitlog/ consumequeue/TOPIC/QUEUE/ index/ checkpoint abort lock    as RocketMQ has them
    ROOT/flushed queues set-aside/ replica users admin-bootstrap              ours

`open` recovers; `start` gives the services threads. Without threads, `flush_once`, `reput_once` and the
other steps are called by hand, as a simulation does.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import Protocol

from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.message import BLANK_BYTES
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.commit_log import CommitLog
from quorumlog.broker.store.dispatch import Dispatcher, QueueHole, ReputMessageService
from quorumlog.broker.store.flush import ServiceThread, StoreCheckpoint
from quorumlog.broker.store.index import INDEX_FOLDER_NAME, IndexService
from quorumlog.broker.store.java_store import deleted_topics, first_look, refuse_other_queues
from quorumlog.broker.store.log_files import (
    FLUSHED_NAME,
    FlushedFile,
    LogEnd,
    first_time_ms,
    open_file_list,
    records_below,
    set_aside_of,
    settle_end,
    start_by_position,
    start_by_time,
    walk,
)
from quorumlog.broker.store.queues import QUEUES_NAME, ConsumeQueues
from quorumlog.broker.store.store_reader import StoreReader
from quorumlog.errors import ConfigError, StoreFailure
from quorumlog.store.directory_kind import DirectoryKind, refuse_foreign
from quorumlog.store.disk import Disk, OsDisk, disk_work, kept_descriptors, refusal
from quorumlog.store.member_directory import sync_names_above
from quorumlog.store.segments import SegmentList
from quorumlog.store.state_files import read_file, replace_file

log = logging.getLogger("quorumlog.broker")

COMMIT_LOG_NAME, ABORT_NAME, LOCK_NAME = "commitlog", "abort", "lock"
REPLICA_NAME = "replica"
"""A file of ours in a store that is, or was, a master's or a slave's."""
USERS_NAME = "users"
"""A file of ours in a store whose log is about to have users, or has had some."""
USERS_SOON, USERS_HEARD, USERS_ON = b"soon\n", b"heard\n", b"on\n"
"""By itself; by its master, which may have acknowledged some since; by its log."""
_BY_STRENGTH = (b"", USERS_SOON, USERS_HEARD, USERS_ON)


def _strength(mark: bytes) -> int:
    """One that nobody has written is of a damaged file."""
    return _BY_STRENGTH.index(mark if mark in _BY_STRENGTH else USERS_ON)


def wall_clock_ms() -> float:
    return time.time() * 1000


_HOUR_MS = 3_600_000


class TopicTable(Protocol):
    """Which queues there are."""

    def takes(self, key: QueueKey) -> bool: ...

    def counts(self) -> Mapping[str, int]:
        """Number of queues by topic."""

    def begin(self, key: QueueKey) -> int | None:
        """Nothing below is shown; None: nothing of the queue."""

    def begin_to_read(self, key: QueueKey) -> int | None:
        """The same, for readers of the topic. Raises the LedgerError that refuses it."""

    def check_writes(self, records: RecordBatch) -> None:
        """Raises the LedgerError that refuses it."""


class CleanCommitLogService:
    """Deletes the oldest files of a commit log, by age, hour and disk ratio."""

    def __init__(self, store: MessageStore) -> None:
        self.is_full = False
        """Messages are refused while the disk is above the warning level."""
        self._store = store

    def run_once(self) -> None:
        store, config = self._store, self._store.config
        used = 100 * store.disk.usage(store.root).used_ratio
        if self.is_full != (used > config.disk_space_warning_level_ratio):
            self.is_full = not self.is_full
            log.warning(
                "the disk is %.0f%% full: messages are %s", used, ("taken", "refused")[self.is_full]
            )
        now_ms = store.wall_clock()
        in_time = datetime.fromtimestamp(now_ms / 1000, UTC).hour in config.delete_hours()
        force = used > config.disk_space_clean_forcibly_ratio
        if not (in_time or used > config.disk_max_used_space_ratio):
            return
        commit_log, files = store.commit_log, store.commit_log.files
        reserved_ms = config.file_reserved_time * _HOUR_MS
        keep_from = files.first_position
        # The newest file with records stays, and one that is being flushed or dispatched.
        last = files.base_of(
            min(
                commit_log.flushed_offset,
                commit_log.confirm_offset,
                store.reput.reput_from_offset,
                max(store.holds_from(), files.first_position),
            )
        )
        for base in files.bases[: config.delete_file_batch_max]:
            stop = base + files.segment_bytes
            if stop > last:
                break
            newest_ms = first_time_ms(files, stop)
            if not force and not 0 <= newest_ms < now_ms - reserved_ms:
                break
            keep_from = stop
        if keep_from > files.first_position:
            self.drop_before(keep_from)

    def drop_before(self, position: int) -> None:
        store, files = self._store, self._store.commit_log.files
        behind = store.queues.drop_before(position)
        for path in files.drop_before(position):
            store.disk.unlink(path)
            # Before the next: a loss of power would leave a file before a gap.
            store.disk.sync_directory(files.directory)
            log.info("deleted %s", path)
        for path in behind:
            store.disk.unlink(path)
        store.queues.record_ends()  # there may have been no space for it before
        if store.index is not None:
            store.index.drop_before(files.first_position)


class MessageStore:
    replicated = False
    """Queues show messages up to the offset set by the code that opens it, from slaves'
    acknowledgements."""
    cuts = 0
    """How often the end of the log was cut off since it was opened. Any thread."""

    def __init__(
        self,
        root: str,
        config: MessageStoreConfig | None = None,
        *,
        topics: Mapping[str, int] | None = None,
        disk: Disk | None = None,
        wall_clock: Callable[[], float] = wall_clock_ms,
        clock: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        """Opens and recovers. `topics`: number of queues by name, beside those that the store has; None:
        any is taken. Raises ConfigError, DirectoryDamaged, StoreFailure."""
        self.root = root
        self.config = config or MessageStoreConfig()
        self.disk: Disk = OsDisk() if disk is None else disk
        self.topics = None if topics is None else dict(topics)
        self.holds_from: Callable[[], int] = lambda: sys.maxsize
        """Files of the log from this position on stay, however old they are. Any thread."""
        self.topic_table: TopicTable | None = None
        """A table of topics that overrides the two above. None: none."""
        self.wall_clock = wall_clock
        self.clock = clock
        self._threads: list[ServiceThread] = []
        self._last_queue_flush_ms = 0.0
        self.wakeup_flush: Callable[[], None] = lambda: None
        self.wakeup_reput: Callable[[], None] = lambda: None
        """Both of the threads, where there are any."""
        self.on_failure: Callable[[StoreFailure], None] = lambda failure: None
        self._closing = threading.Lock()
        self.is_closed = False
        try:
            refuse_foreign(self.disk, root, DirectoryKind.BROKER)
            self._was_ours = self.disk.exists(f"{root}/{FLUSHED_NAME}")
            lost = "" if self._was_ours else self._first_look()
            for name in (COMMIT_LOG_NAME, QUEUES_NAME, INDEX_FOLDER_NAME):
                self.disk.make_directory(f"{root}/{name}")
                self.disk.sync_directory(root)  # in this order: queues without a log are refused
            if not self._was_ours:
                sync_names_above(self.disk, root)
            self._lock = self.disk.lock(f"{root}/{LOCK_NAME}")
        except BlockingIOError:
            raise ConfigError(f"{root} is in use by another process") from None
        except FileExistsError as error:
            raise ConfigError(
                f"{error.filename or root} is no directory, or a symbolic link to none: mount or restore"
                " the target"
            ) from None
        except OSError as error:
            raise StoreFailure(refusal(root, "opened", error)) from error
        try:
            self._check_replicated()
            with disk_work(f"{root}/{USERS_NAME}", "read"):
                self.users_mark = read_file(self.disk, f"{root}/{USERS_NAME}") or b""
            if not self.replicated:
                self.leave_master_behind()
            self._recover(lost)
        except BaseException:
            self._lock.release()
            raise

    def begin_of(self, key: QueueKey) -> int | None:
        """First offset that is shown of an existing queue; None: the queue is hidden."""
        return 0 if self.topic_table is None else self.topic_table.begin(key)

    @property
    def shown_topics(self) -> Mapping[str, int] | None:
        """Number of queues by topic, in addition to those in the store; None: any number."""
        return self.topics if self.topic_table is None else self.topic_table.counts()

    @property
    def has_users(self) -> bool:
        return bool(self.users_mark)

    @property
    def has_had_users(self) -> bool:
        """A log without any has lost them."""
        return _strength(self.users_mark) == _strength(USERS_ON)

    def note_users(self, mark: bytes = USERS_SOON) -> None:
        """On disk when this returns, and only then may the log have any. Raises StoreFailure."""
        if _strength(mark) > _strength(self.users_mark):
            path = f"{self.root}/{USERS_NAME}"
            with disk_work(path, "written"):
                replace_file(self.disk, path, mark, synced=True)
            self.users_mark = mark

    def leave_master_behind(self) -> None:
        """Messages it acknowledged may be lost, and users with them. Raises StoreFailure."""
        if self.users_mark == USERS_HEARD:
            self.note_users(USERS_ON)

    # ---------------------------------------------------------------- recovery

    def _check_replicated(self) -> None:
        self._was_replicated = self.disk.exists(f"{self.root}/{REPLICA_NAME}")
        if self._was_replicated and not self.replicated:
            raise ConfigError(
                f"{self.root} is the store of a master or a slave: start it with --role. Messages"
                " written without it would belong to no epoch, and slaves could not detect them."
                f" To leave replication for good, delete {self.root}/{REPLICA_NAME}"
            )

    def _first_look(self) -> str:
        """Why the queues of a store that another software wrote are to be derived anew. Raises
        ConfigError where it is not taken."""
        disk, root, config = self.disk, self.root, self.config
        if not disk.exists(f"{root}/{COMMIT_LOG_NAME}"):
            return ""
        refuse_other_queues(disk, root)
        with ExitStack() as opened:
            folder, file_bytes = f"{root}/{COMMIT_LOG_NAME}", config.mapped_file_size_commit_log
            files = open_file_list(disk, folder, file_bytes, writable=False)
            opened.callback(files.close)
            queues = ConsumeQueues(disk, root, config, None, writable=False)
            opened.callback(queues.close)
            is_clean = not disk.exists(f"{root}/{ABORT_NAME}")
            return queues.lost or first_look(disk, root, files, queues, is_clean=is_clean)

    def _recover(self, lost: str) -> None:
        """`lost`: why queues and index are to be derived anew; empty: nothing is known."""
        disk, root, config = self.disk, self.root, self.config
        is_ours, file_bytes = self._was_ours, config.mapped_file_size_commit_log
        self.set_aside = set_aside_of(disk, root, config.max_set_aside_bytes, file_bytes)
        self.was_clean = not disk.exists(f"{root}/{ABORT_NAME}")
        if lost:  # a start that is killed from here on leaves a store that is ours
            self._make_abort()
            with closing(StoreCheckpoint.open(disk, root)) as checkpoint:
                checkpoint.forget_queues()
        flushed = FlushedFile.open(disk, root, file_bytes, config.mapped_file_size_consume_queue)
        self._make_abort()
        self.checkpoint = StoreCheckpoint.open(disk, root)
        self._torn_from = flushed.load() if is_ours and not self.was_clean else sys.maxsize
        files = open_file_list(
            *(disk, f"{root}/{COMMIT_LOG_NAME}", file_bytes),
            set_aside=self.set_aside,
            sizes_are_known=is_ours,
        )
        with kept_descriptors.parking(files.park):
            self.queues = ConsumeQueues(
                *(disk, root, config, self.set_aside),
                log_begin=files.first_position,
                sizes_are_known=is_ours,
            )
            self.queues.lost = self.queues.lost or lost
            self.index = None
            if config.message_index_enable:
                self.index = IndexService(
                    *(disk, root, config, self.checkpoint, self.wall_clock, self.set_aside),
                    is_clean=self.was_clean,
                )
        stopped_at = flushed.load()
        self._is_as_it_stopped = (
            is_ours and self.was_clean and not any(files.pread(BLANK_BYTES, stopped_at))
        )
        """And nobody else has written to it since: the queues end in zeros, which are on disk."""
        dispatcher = Dispatcher(self.queues, self.index, config.delays_ms())
        # Until all queues of another software's store are on disk for once.
        was_derived = is_ours and self.checkpoint.logics_msg_timestamp > 0
        dispatcher.queues_restart = not was_derived and not self._was_replicated
        if not is_ours:  # later there are topics of which its settings know nothing
            dispatcher.was_deleted = deleted_topics(disk, root)
        self._dispatch_stop = sys.maxsize
        if self._was_replicated:
            # Consumers saw no more: what lies after it may be cut yet.
            self._dispatch_stop = max(self.checkpoint.confirm_phy_offset, self.queues.last_position)
        end = self._derive(files, dispatcher)
        settle_end(files, end, flushed.load(), self.set_aside, flushed.record_synced)
        last_time_ms = max(end.last_time_ms, self.checkpoint.physic_msg_timestamp)
        self.commit_log = CommitLog(self, files, flushed, end.position, last_time_ms)
        ends = {key: queue.max_offset for key, queue in self.queues.items()}
        self.commit_log.next_queue_offsets = ends
        # A slave may have got its log from the middle on, without the first messages of some queues.
        self.queues.begins_anywhere = self.replicated and files.first_position > 0
        dispatcher.queues_restart, dispatcher.was_deleted = False, lambda topic: False
        self._dispatcher = dispatcher
        dispatcher.last_time_ms = end.last_time_ms
        self.reput = ReputMessageService(self.commit_log, dispatcher, self._dispatched)
        if self.replicated:
            self.commit_log.replicated_offset = self._dispatched
        self.cleaner = CleanCommitLogService(self)
        self.reader = StoreReader(
            self.commit_log,
            self.queues,
            self.index,
            self.has_queue,
            self.stored_offset,
            lambda key: 0 if self.topic_table is None else self.topic_table.begin_to_read(key),
        )
        self.queues.settle()
        self.flush_queues(thorough=True)

    def _derive(self, files: SegmentList, dispatcher: Dispatcher) -> LogEnd:
        """Queues and index as the log has it. Raises StoreFailure."""
        if self.was_clean:
            begin = start_by_position(files, self.queues.last_position)
        else:
            begin = start_by_time(files, self.checkpoint.min_timestamp)
        if self.index is not None:
            indexed = self.index.end_position
            begin = min(begin, files.base_of(max(indexed, files.first_position)))
        # Of one that is lost messages may lie before where the walk begins.
        self.queues.begins_anywhere = begin == files.first_position > 0
        lost = self.queues.lost
        if not lost:
            try:
                try:
                    dispatcher.next_offsets = {}
                    end = self._walk_from(files, begin, dispatcher)
                except QueueHole:
                    dispatcher.next_offsets = None
                    end = self._walk_from(files, begin, dispatcher)
                lost = self.queues.missing()
            except QueueHole as hole:
                lost = str(hole)
            if not lost:
                return end
        log.warning("queues and index are derived anew from the commit log: %s", lost)
        self.checkpoint.forget_queues()
        self.queues.derive_anew()
        if self.index is not None:
            self.index.clear()
        try:
            end = self._walk_from(files, files.first_position, dispatcher)
        except QueueHole as hole:
            raise StoreFailure(
                f"{self.root}: the commit log contradicts itself: {hole}. If a slave of an earlier"
                " release became the master, it may have assigned offsets of a queue again: quorumlog"
                f" broker recover {self.root} --given-again makes such queues show the later messages"
            ) from None
        self.queues.derived(self._numbers_behind(files))
        return end

    def _numbers_behind(self, files: SegmentList) -> dict[QueueKey, int]:
        """Of each queue that of its first message which is not dispatched yet."""
        numbers: dict[QueueKey, int] = {}
        begin = self._dispatched
        for found in walk(files, begin, LogEnd(begin), check_bodies=False, torn_from=self._torn_from):
            shown = found.records.shown
            for key, rows in shown.queues:
                numbers.setdefault(key, int(shown.columns.queue_offsets[rows[0]]))
        return numbers

    def _walk_from(self, files: SegmentList, begin: int, dispatcher: Dispatcher) -> LogEnd:
        """What the queues have from there on is compared with the log, or written anew. Raises
        QueueHole, StoreFailure."""
        held = dispatcher.next_offsets
        if held is None:
            self.queues.truncate_to_position(begin)
        end = LogEnd(begin)
        crc = self.config.check_crc_on_recover
        self._dispatched = begin
        for found in walk(files, begin, end, check_bodies=crc, torn_from=self._torn_from):
            part = records_below(found, self._dispatch_stop)
            if part is not None:
                dispatcher.dispatch(part)
                self._dispatched = part.next_position
        # Units of records that the log has not: it was cut there, or loses them now.
        end_in_zeros = self._is_as_it_stopped or held is None
        self.queues.truncate_to_position(end.position, end_in_zeros=end_in_zeros)
        dispatcher.next_offsets = None
        for key, queue in self.queues.items():
            is_more = held is not None and queue.max_offset != held.get(key)
            if is_more and (key in (held or {}) or queue.last_unit[0] >= begin):
                raise QueueHole(key, "it has more than the log")
            if not queue.ends_in_order:
                raise QueueHole(key, "it ends with half a unit")
            if not self.was_clean:
                queue.doubt_from(begin)
        if self.index is not None and self.index.truncate_to_position(end.position):
            # Whole files are deleted: what the log has of them is put into it again.
            again = files.base_of(max(self.index.end_position, files.first_position))
            for found in walk(files, again, LogEnd(again), check_bodies=False):
                part = records_below(found, self._dispatched)
                if part is None:
                    break
                dispatcher.dispatch(part)
        return end

    def _make_abort(self) -> None:
        path = f"{self.root}/{ABORT_NAME}"
        with disk_work(path, "created"):
            if not self.disk.exists(path):
                self.disk.open(path, create=True).close()
                self.disk.sync_directory(self.root)

    def stored_offset(self, key: QueueKey) -> int:
        """Next offset of a queue, after the last message that a client may know of."""
        return self.commit_log.next_queue_offsets.get(key, 0)

    # ---------------------------------------------------------------- services

    def has_queue(self, queue: QueueKey) -> bool:
        """Whether a message may be put into it."""
        return self.exists(queue) if self.topic_table is None else self.topic_table.takes(queue)

    def exists(self, queue: QueueKey) -> bool:
        """Whether the queue exists, by the configuration or by its messages."""
        if self.topics is None:
            return queue.queue_id >= 0
        return 0 <= queue.queue_id < self.queue_count(queue.topic)

    def queue_count(self, topic: str) -> int:
        """0: there is no such topic."""
        configured = 0 if self.topics is None else self.topics.get(topic, 0)
        held = [key.queue_id + 1 for key, _ in self.queues.items() if key.topic == topic]
        return max([configured, *held])

    def start(self) -> None:
        """Threads for the services."""
        flush = self.commit_log.flush_service
        flusher = self._thread("flush", self.flush_once, flush.interval_ms)
        reput = self._thread("reput", self.reput_once, self.reput.interval_ms)
        self._thread("flush-queues", self.flush_queues, self.config.flush_interval_consume_queue)
        self._thread("clean", self.cleaner.run_once, self.config.clean_resource_interval)
        self.wakeup_flush, self.wakeup_reput = flusher.wakeup, reput.wakeup
        for thread in self._threads:
            thread.start()

    def _thread(self, name: str, run_once: Callable[[], None], interval_ms: float) -> ServiceThread:
        thread = ServiceThread(f"broker-{name}", run_once, interval_ms, self.commit_log.fail)
        self._threads.append(thread)
        return thread

    def has_failed(self, failure: StoreFailure) -> None:
        """Nothing more is written; `on_failure` gets the reason."""
        log.error("the store stops: %s", failure)
        self.on_failure(failure)

    @property
    def failure(self) -> StoreFailure | None:
        return self.commit_log.failure

    def flush_once(self) -> None:
        """The flush service's step. Raises StoreFailure."""
        before = self.commit_log.confirm_offset
        try:
            self.commit_log.flush_service.run_once(self.clock())
        except StoreFailure as failure:
            self.commit_log.fail(failure)
            raise
        if self.commit_log.confirm_offset > before:
            self.wakeup_reput()

    def reput_once(self) -> None:
        """Dispatch newly stored messages to queues and index. Raises StoreFailure."""
        try:
            self.reput.run_once()
        except QueueHole as hole:
            raise StoreFailure(f"a queue contradicts the commit log: {hole}") from hole

    def flush_queues(self, *, thorough: bool = False) -> None:
        """Queues and index, and then their checkpoint. Raises StoreFailure."""
        now = self.clock()
        config = self.config
        thorough |= now >= self._last_queue_flush_ms + config.flush_consume_queue_thorough_interval
        least_pages = 0 if thorough else config.flush_consume_queue_least_pages
        time_ms = self._dispatcher.last_time_ms
        if self.replicated:
            # Not below what consumers may have seen: a crash may leave this and not the units.
            self.checkpoint.confirm_phy_offset = self.commit_log.confirm_offset
        self.queues.flush(least_pages)
        if thorough:
            self._last_queue_flush_ms = now
            if self.index is not None:
                self.index.flush()
            self.queues.record_ends()
            self.checkpoint.logics_msg_timestamp = max(self.checkpoint.logics_msg_timestamp, time_ms)
        self.checkpoint.flush()

    # ---------------------------------------------------------------- the end

    def close(self) -> None:
        """Everything written is flushed, dispatched and noted; `abort` goes. Idempotent."""
        with self._closing:
            if self.is_closed:
                return
            self.is_closed = True
            for thread in self._threads:
                thread.stop()
            try:
                if self.failure is None:
                    self.commit_log.flush(0)
                    self.commit_log.flush_service.run_once(self.clock())
                    self.reput_once()
                    self.flush_queues(thorough=True)
                    if self.reput.behind_bytes == 0:
                        self.disk.unlink(f"{self.root}/{ABORT_NAME}")
                        self.disk.sync_directory(self.root)
            finally:
                self.commit_log.close()
                self.queues.close()
                if self.index is not None:
                    self.index.close()
                self.checkpoint.close()
                self._lock.release()
