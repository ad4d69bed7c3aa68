"""StateFollower: applies the commands in a classic store to topics and groups, on its master and its
slaves alike.

The topic %GROUPS% has two queues: commands, and snapshots of the state. Retention of the commit log
takes the oldest commands, but never the newest snapshot and later ones.

    COMMANDS   8 bytes, drawn by the proposer; one command
    SNAPSHOTS  [next command, position, part, parts, bytes]: commands below the next one are in it, and
               the others lie in the commit log from the position on; -1: from where the snapshot lies;
               -2: the same, and earlier commands are void
"""

from __future__ import annotations

import logging
import os
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from quorumlog.broker.broker_port import BrokerSession, Puts, ReadPool, refusal_of_put
from quorumlog.broker.errors import NeedsReplicatedRole, QueueOffsetOutOfRange, TopicNotPermitted
from quorumlog.broker.group_commands import (
    COMMANDS_QUEUE,
    GROUPS_TOPIC,
    LEVELS,
    READ,
    SNAPSHOTS_QUEUE,
    WRITE,
    Command,
    ReleaseDelayed,
    encode,
    is_system_topic,
    refusal_in,
)
from quorumlog.broker.groups.group_service import GroupService
from quorumlog.broker.groups.group_state import (
    CheckedPuts,
    GroupFeed,
    GroupMachine,
    GroupState,
    GroupTopics,
    Topic,
    loaded_state,
    saved_bytes,
)
from quorumlog.broker.groups.rebalancer import DoneCallback, OffsetCallback, ResultCallback
from quorumlog.broker.message import (
    SCHEDULE_TOPIC,
    Message,
    StoredMessage,
    encode_records,
)
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.replication.replica import BrokerReplica
from quorumlog.broker.store.java_store import read_java_config
from quorumlog.broker.store.log_files import BrokerRole, PutOutcome
from quorumlog.broker.store.message_store import MessageStore, wall_clock_ms
from quorumlog.broker.store.store_reader import StoreReader
from quorumlog.broker.wire import AnyBrokerMessage, OpenSessionRequest, SessionSendRequest, records_of
from quorumlog.errors import (
    ConfigError,
    LeaderNotReady,
    LedgerError,
    OutcomeUnknown,
    ProtocolViolation,
    StoreFailure,
)
from quorumlog.log_state.users import Users
from quorumlog.net.frame import Frame

log = logging.getLogger("quorumlog.broker")

COMMANDS = QueueKey(GROUPS_TOPIC, COMMANDS_QUEUE)
SNAPSHOTS = QueueKey(GROUPS_TOPIC, SNAPSHOTS_QUEUE)
TOKEN_BYTES = 8
MOST_MESSAGES, MOST_BYTES = 1_024, 1 << 20
_FROM_HERE, _ANEW = -1, -2
"""Positions of a snapshot."""
_Part = tuple[int, int, int, int, bytes]
_part = msgspec.msgpack.Decoder(_Part)


class Snapshot(NamedTuple):
    next_command: int
    position: int
    """The commit log is needed from there on."""
    data: bytes


class News(NamedTuple):
    """Read from the store, to be taken in their order."""

    snapshot: Snapshot | None
    """To begin with anew; None: nothing is missing."""
    commands: list[StoredMessage]
    next_command: int
    needed_position: int
    """None of the commit log below is needed; -1: nothing of it is."""
    snapshots_end: int
    snapshot_bytes: int
    """Of the newest one."""
    is_anew: bool
    """Earlier commands are void."""
    cuts: int
    """As often the log was cut before any of it was read."""
    is_whole: bool = True
    """No command is missing; else it begins anew with the next snapshot."""


class StateFollower:
    """`read` on one thread, which may wait for the disk; the rest on the loop."""

    def __init__(
        self, reader: StoreReader, feed: GroupFeed, cuts: Callable[[], int] = lambda: 0
    ) -> None:
        """`reader` hides no topic. `cuts`: how often the log was cut; with --unsafe applied commands may
        be cut, and others get their numbers."""
        self._reader = reader
        self._count_cuts = cuts
        self._cuts = cuts()
        self._feed = feed
        self.machine = GroupMachine(feed, has_users=True)
        self.next_command: int | None = None
        """None: nothing was read yet."""
        self.needed_position = -1
        self.since_snapshot = 0
        """Commands that no snapshot has."""
        self.snapshot_bytes = 0
        """Of the newest one."""
        self.last_position = -1
        """Of the last command that was carried out; -1: none was, since a snapshot."""
        self.is_whole = True
        """No command is missing. A slave that begins in the middle of a log may be shown those after a
        snapshot first."""
        self.snapshots_end = 0

    def read(self) -> News:
        """The commands shown since. Raises MessageDamaged, StoreFailure."""
        cuts = self._count_cuts()
        _, snapshots_end = self._bounds(SNAPSHOTS)
        is_anew = self.next_command is None or cuts != self._cuts
        if not is_anew and snapshots_end != self.snapshots_end:
            is_anew = not self.is_whole or self._is_begun_anew(snapshots_end)
        snapshot, at = None, None if is_anew else self.next_command
        needed, is_whole = -1 if is_anew else self.needed_position, is_anew or self.is_whole
        size_bytes = self.snapshot_bytes
        if at is None or snapshots_end != self.snapshots_end:
            newest = self.newest_snapshot()
            if newest is not None:
                needed, size_bytes = newest.position, len(newest.data)
            if at is None:
                snapshot, at = newest, 0 if newest is None else newest.next_command
        try:
            pulled = self._reader.pull(COMMANDS, at, MOST_MESSAGES, MOST_BYTES)
        except QueueOffsetOutOfRange as error:
            if at > error.max_offset:  # a member that is behind: it is shown yet
                told = (snapshots_end, size_bytes, is_anew, cuts, is_whole)
                return News(snapshot, [], at, needed, *told)
            snapshot = self.newest_snapshot()
            at = error.min_offset
            is_whole = snapshot is not None and error.min_offset <= snapshot.next_command
            if snapshot is not None and is_whole:
                at = snapshot.next_command
            else:
                log.error("%s: commands up to %d are missing, and no snapshot has them", COMMANDS, at)
            pulled = self._reader.pull(COMMANDS, at, MOST_MESSAGES, MOST_BYTES)
        commands = pulled.records.messages()
        if needed < 0 and commands:
            needed = commands[0].physical_offset
        told = (snapshots_end, size_bytes, is_anew, cuts, is_whole)
        return News(snapshot, commands, pulled.next_offset, needed, *told)

    def _is_begun_anew(self, snapshots_end: int) -> bool:
        """By a snapshot that has come since."""
        low = max(self._bounds(SNAPSHOTS)[0], self.snapshots_end)
        return any(self._part_at(at)[1] == _ANEW for at in range(low, snapshots_end))

    def newest_snapshot(self) -> Snapshot | None:
        """The newest that is there as a whole."""
        low, stop = self._bounds(SNAPSHOTS)
        while stop > low:
            last = self._part_at(stop - 1)
            first = stop - 1 - last[2]
            if last[2] == last[3] - 1 and first >= low:
                parts = [self._part_at(at) for at in range(first, stop)]
                if all(each[:2] == last[:2] and each[2] == at for at, each in enumerate(parts)):
                    own = self._message_at(first).physical_offset
                    position = own if last[1] < 0 else min(own, last[1])
                    return Snapshot(last[0], position, b"".join(each[4] for each in parts))
            stop -= 1
        return None

    def _bounds(self, key: QueueKey) -> tuple[int, int]:
        queue = self._reader.queue(key)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    def _message_at(self, offset: int) -> StoredMessage:
        (message,) = self._reader.pull(SNAPSHOTS, offset, 1).records.messages()
        return message

    def _part_at(self, offset: int) -> _Part:
        part: _Part = _part.decode(self._message_at(offset).body)
        return part

    # ---------------------------------------------------------------- on the loop

    def take(self, news: News) -> list[tuple[bytes, bytes]]:
        """The token of each command, and its answer. Raises ProtocolViolation."""
        if news.is_anew:
            self.machine.state = self._feed.begun
        if news.snapshot is not None:
            self.machine.state = loaded_state(news.snapshot.data)
        if news.is_anew or news.snapshot is not None:
            self.since_snapshot, self.last_position = 0, -1
        self._cuts, self.is_whole = news.cuts, news.is_whole
        if news.snapshots_end != self.snapshots_end:
            self.since_snapshot = 0
        outcomes = []
        for message in news.commands:
            token, command = message.body[:TOKEN_BYTES], message.body[TOKEN_BYTES:]
            outcomes.append((token, self.machine.carry_out(command)))
            self.last_position = message.physical_offset
            self.since_snapshot += 1
        self.needed_position = news.needed_position
        self.next_command = news.next_command  # after the position: see `holds_from`
        self.snapshots_end, self.snapshot_bytes = news.snapshots_end, news.snapshot_bytes
        self._feed.state = self.machine.state
        return outcomes

    def state_to_keep(
        self, commands_end: int, part_bytes: int, only_users: Users | None = None
    ) -> list[bytes]:
        """As messages of SNAPSHOTS. `commands_end`: of the whole log, with those on their way to it.
        `only_users`: with these every broker begins anew; all commands are carried out."""
        assert self.next_command is not None
        state, position = self.machine.state, _FROM_HERE
        if only_users is not None:
            state, position = replace(state, users=only_users), _ANEW
        data = saved_bytes(state)
        if self.next_command != commands_end:
            assert only_users is None
            # Whatever is on its way was written behind the last one that was carried out.
            position = self.last_position if self.last_position >= 0 else self.needed_position
        pieces = [data[at : at + part_bytes] for at in range(0, len(data), part_bytes)]
        head = self.next_command, position
        return [
            msgspec.msgpack.encode((*head, part, len(pieces), piece))
            for part, piece in enumerate(pieces)
        ]

    @property
    def is_of_the_log(self) -> bool:
        """The applied commands are still in it."""
        return self._cuts == self._count_cuts()

    @property
    def holds_from(self) -> int:
        """Retention must keep the commit log from there on. Any thread."""
        # Before the position, which is set first.
        at, snapshots_end = self.next_command, self.snapshots_end
        if at is None:
            return 0
        if self.needed_position >= 0:
            return self.needed_position
        # What is shown, and was not read yet, may lie anywhere; what is shown later lies behind what
        # retention deletes now.
        is_read = self._bounds(COMMANDS)[1] <= at and self._bounds(SNAPSHOTS)[1] <= snapshots_end
        return sys.maxsize if is_read else 0


# ---------------------------------------------------------------- ClassicGroupLog
# Topics and groups of a classic broker: commands are messages of a topic of its own, acknowledged,
# replicated and shown like all others, and each broker carries out what it is shown.
#
# A broker that becomes master answers once it has carried out all that its log holds: whatever the
# earlier master acknowledged is among it.


RETRY_MS = 50
SNAPSHOT_COMMANDS = 10_000
"""A snapshot is due after so many commands, and once a file of the log, and four times the size of a
snapshot, are no longer needed: so retention is never held for long."""
SNAPSHOT_PART_BYTES = 1 << 20
OWN_TOPICS = GROUPS_TOPIC.encode(), SCHEDULE_TOPIC.encode()


class ClassicTopics(GroupTopics):
    """Those of the state, and those that the broker was started with or holds: these exist until changed
    or deleted."""

    def __init__(self, feed: GroupFeed, store: MessageStore, before_delayed: Callable[[], None]) -> None:
        """`before_delayed` is called before a delayed message is put."""
        super().__init__(feed)
        self._store = store
        self._before_delayed = before_delayed

    def _exists(self, topic: str) -> bool:
        state = self._feed.state
        return topic not in state.topics and topic not in state.ended and topic != GROUPS_TOPIC

    def existing_queues(self, topic: str) -> int:
        if not self._exists(topic) or is_system_topic(topic):
            return 0
        return self._store.queue_count(topic)

    def takes(self, key: QueueKey) -> bool:
        if key.topic == GROUPS_TOPIC:
            return True
        return self._store.exists(key) if self._exists(key.topic) else super().takes(key)

    def existing(self) -> dict[str, int]:
        names = {key.topic for key, _ in self._store.queues.items()} | (self._store.topics or {}).keys()
        counts = {name: self.existing_queues(name) for name in names}
        return {name: count for name, count in counts.items() if count}

    def counts(self) -> Mapping[str, int]:
        return {**self.existing(), **super().counts()}

    def begin(self, key: QueueKey) -> int | None:
        return 0 if self._exists(key.topic) else super().begin(key)

    def check_writes(self, records: RecordBatch) -> None:
        super().check_writes(records)
        # Every send is looked at. All of its messages are for one queue, or it is refused.
        first = bytes(records.buffer[: int(records.sizes[:1].sum())])
        if not any(topic in first for topic in OWN_TOPICS) or not records.columns.good.all():
            return
        names = {key.topic for key, _ in records.queues}
        if GROUPS_TOPIC in names:
            raise TopicNotPermitted(f"topic {GROUPS_TOPIC} is the broker's own: it takes no messages")
        if SCHEDULE_TOPIC in names:
            self._before_delayed()


class ClassicGroupLog:
    """The `GroupLog` of a classic broker. On the loop, but for `grown`."""

    def __init__(
        self,
        store: MessageStore,
        groups: GroupService,
        replica: BrokerReplica | None = None,
        *,
        wall_ms: Callable[[], float] = wall_clock_ms,
    ) -> None:
        """`replica`: None for a single broker."""
        self._store = store
        self._groups = groups
        self._replica = replica
        self._wall_ms = wall_ms
        self._feed = groups.feed
        reader = StoreReader(
            store.commit_log, store.queues, store.index, lambda key: True, lambda key: 0
        )
        self.follower = StateFollower(reader, groups.feed, lambda: store.cuts)
        self.reader = reader
        """Of the broker itself: it also reads topics that clients may not read."""
        self.queues = store.queues
        self.topics = ClassicTopics(groups.feed, store, self._activate)
        groups.topics = self.topics
        store.topic_table = self.topics
        store.holds_from = lambda: self.follower.holds_from
        self.releases = ClassicReleases(self)
        self._puts: Puts
        self.reads: ReadPool
        self._loop: AbstractEventLoop
        self._waiting: dict[bytes, ResultCallback] = {}
        """By token: what is on its way."""
        self._is_reading = self._has_grown = self._is_saving = self._has_failed = False
        self._is_activating = False
        self._target: int | None = None
        """Commands that a master has to carry out before it answers; None: this broker is a slave."""
        self._epoch = 0
        self.is_master = False
        self.taken: Callable[[], None] = lambda: None
        """Called when commands were carried out, before their answers are sent."""

    @property
    def state(self) -> GroupState:
        return self._feed.state

    def open(self, puts: Puts, reads: ReadPool, loop: AbstractEventLoop) -> Puts:
        self._puts, self.reads, self._loop = puts, reads, loop
        self._groups.open(self, self._store.config.delays_ms())
        self._read_on()
        return CheckedPuts(puts, self.topics)

    def grown(self, keys: list[QueueKey]) -> None:
        if any(key.topic == GROUPS_TOPIC for key in keys):
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._read_on)

    def tick(self, now_ms: float) -> None:
        if self._has_failed or not self.follower.is_of_the_log:
            self._read_on()
        self.look()
        self._groups.tick(now_ms)
        self._save_if_due()

    def request(self, session: BrokerSession, message: AnyBrokerMessage, frame: Frame) -> bool:
        if not isinstance(message, OpenSessionRequest | SessionSendRequest):
            return self._groups.request(session, message)
        if isinstance(message, SessionSendRequest):
            self.topics.check_writes(records_of(frame))
        raise NeedsReplicatedRole(
            "sessions of producers (idempotent, producer_id) need brokers with --role dledger: their log"
            " knows each session"
        )

    def lost(self, session: BrokerSession) -> None:
        self._groups.lost(session)

    @property
    def led_in(self) -> int | None:
        """The epoch in which it is the master, and has carried out all that came before."""
        return self._epoch if self.is_master else None

    def look(self) -> None:
        replica = self._replica
        leads = self._store.commit_log.role is not BrokerRole.SLAVE
        leads = leads and (replica is None or replica.takes_messages)
        epoch = 0 if replica is None else replica.epoch
        if not leads:
            self._target = None
        elif self._target is None or epoch != self._epoch:
            self._target, self._epoch = self.end_of(COMMANDS), epoch
        at = self.follower.next_command if self.follower.is_of_the_log else None
        is_master = self._target is not None and at is not None and at >= self._target
        if is_master == self.is_master:
            return
        self.is_master = is_master
        if not is_master:
            waiting, self._waiting = self._waiting, {}
            for told in waiting.values():
                told(OutcomeUnknown("this broker is no longer the master: it may or may not be done"))
        self._groups.lead(is_master)

    # ---------------------------------------------------------------- what is shown is carried out

    def _read_on(self) -> None:
        if self._is_reading:
            self._has_grown = True
            return
        self._is_reading, self._has_grown = True, False
        self.reads.submit(self.follower.read, self._came)

    def _came(self, news: News | LedgerError | StoreFailure) -> None:
        self._is_reading = False
        if isinstance(news, StoreFailure):
            self._store.on_failure(news)
            return
        if isinstance(news, LedgerError):
            if not self._has_failed:
                log.error("topics and groups are not updated: %s", news)
            self._has_failed = True  # it may be read a moment later
            return
        self._has_failed = False
        try:
            outcomes = self.follower.take(news)
        except ProtocolViolation as violation:
            self._store.on_failure(StoreFailure(f"{self._store.root}: {violation}"))
            return
        self.taken()
        for token, answer in outcomes:
            told = self._waiting.pop(token, None)
            if told is not None:
                told(answer)
        if self._has_grown or news.commands:
            self._read_on()
        self.look()

    def _save_if_due(self) -> None:
        follower, commit_log = self.follower, self._store.commit_log
        if not self.is_master or self._is_saving or follower.needed_position < 0:
            return
        if not follower.is_whole:
            return  # what is missing would be taken for what never was
        behind_bytes = commit_log.max_offset - follower.needed_position
        is_far = behind_bytes > commit_log.files.segment_bytes + 4 * follower.snapshot_bytes
        if is_far or follower.since_snapshot >= SNAPSHOT_COMMANDS:
            self._save()

    @property
    def lacks_commands(self) -> bool:
        """It is the master, and its log has neither all commands nor a snapshot of those it lacks."""
        is_read = self.follower.snapshots_end == self.end_of(SNAPSHOTS)
        return self.is_master and is_read and not self.follower.is_whole

    def begin_anew(self, users: Users) -> None:
        """If commands are missing: the known topics and groups are the whole state from here on, with
        these users, at every broker. Takes effect soon, when `lacks_commands` becomes false."""
        if self.lacks_commands and not self._is_saving and self.follower.next_command == self._told_end:
            self._save(users)

    @property
    def _told_end(self) -> int:
        """A command that waits may be written before a snapshot, and has no number yet."""
        return self.end_of(COMMANDS) + len(self._waiting)

    def _save(self, only_users: Users | None = None) -> None:
        part_bytes = min(SNAPSHOT_PART_BYTES, self._store.commit_log.files.segment_bytes // 4)
        parts = self.follower.state_to_keep(self._told_end, part_bytes, only_users)
        self._is_saving = True

        def saved(refusal: LedgerError | None) -> None:
            self._is_saving = False

        answered = once_all_are_put(len(parts), saved)
        for part in parts:
            self._put(SNAPSHOTS, part, answered)

    # ---------------------------------------------------------------- GroupLog

    @property
    def is_up(self) -> bool:
        return self._store.failure is None

    def propose(self, command: Callable[[], Command], told: ResultCallback) -> None:
        self._activate()
        self._propose(command(), told)

    def _propose(self, command: Command, told: ResultCallback) -> None:
        token = os.urandom(TOKEN_BYTES)
        self._waiting[token] = told

        def answered(outcome: PutOutcome) -> None:
            # What one answers that is acknowledged is told once it is carried out.
            refusal = refusal_of_put(outcome)
            if refusal is not None and self._waiting.pop(token, None) is not None:
                told(refusal)

        self._put(COMMANDS, token + encode(command), answered)

    def _put(self, key: QueueKey, body: bytes, answered: Callable[[PutOutcome], None]) -> None:
        message = Message(key.topic, body)
        try:
            encoded = encode_records([message], key.queue_id, int(self._wall_ms()))
        except LedgerError as error:  # it is too large
            self._loop.call_soon(answered, error)
            return
        self._puts.add(RecordBatch.contiguous(*encoded), True, answered)

    def _activate(self) -> None:
        """The first command of a store: of the delayed messages that it held before those are released
        that a Java broker says it has not delivered; without its word none are."""
        if self._is_activating or self.end_of(COMMANDS):
            return
        self._is_activating = True
        ends = {n: self.end_of(QueueKey(SCHEDULE_TOPIC, n - 1)) for n in range(1, LEVELS + 1)}
        delivered = self._delivered() if any(ends.values()) else None
        if delivered is not None:
            ends = {level: min(end, delivered.get(level, 0)) for level, end in ends.items()}

        def told(outcome: bytes | LedgerError) -> None:
            self._is_activating = False

        self._propose(ReleaseDelayed(tuple(ends.items())), told)

    def _delivered(self) -> dict[int, int] | None:
        try:
            return read_java_config(self._store.disk, self._store.root).delayed
        except (ConfigError, StoreFailure) as error:
            log.warning("delayed messages that the store holds are not released: %s", error)
            return None

    def ask(self, question: bytes, told: ResultCallback, session: BrokerSession) -> None:
        if not self.is_master:
            told(self.not_master())
            return
        machine = GroupMachine()
        state, existing = self._feed.state, self.topics.existing()
        topics = {name: Topic(READ | WRITE, 0, (0,) * count) for name, count in existing.items()}
        machine.state = replace(state, topics={**topics, **state.topics})
        told(machine.query(question))

    def confirm(self, told: DoneCallback, session: BrokerSession) -> None:
        # A command that changes nothing: a master that is none any more gets none acknowledged.
        self.propose(lambda: ReleaseDelayed(()), lambda outcome: told(refusal_in(outcome)))

    def end_of(self, key: QueueKey) -> int:
        return self._store.commit_log.next_queue_offsets.get(key, 0)

    stored_offset = end_of

    def existing_queues(self, topic: str) -> int:
        return self.topics.existing_queues(topic)

    def due_clock_ms(self) -> float:
        return self._wall_ms()

    age_clock_ms = due_clock_ms

    def not_master(self) -> LedgerError:
        if (refusal := self._store.commit_log.replication.refuses()) is not None:
            return refusal
        return LeaderNotReady(
            "topics and groups are available once the broker has read them from its log",
            retry_after_ms=RETRY_MS,
        )

    def put(self, records: RecordBatch, answered: Callable[[PutOutcome], None]) -> None:
        """Of one queue."""
        owned = RecordBatch.contiguous(bytearray(records.joined().buffer), records.sizes)
        self._puts.add(owned, True, answered)


def once_all_are_put(count: int, done: DoneCallback) -> Callable[[PutOutcome], None]:
    """Gets the outcomes of so many puts; `done` the first refusal among them."""
    refusals: list[LedgerError | None] = []

    def answered(outcome: PutOutcome) -> None:
        refusals.append(refusal_of_put(outcome))
        if len(refusals) == count:
            done(next(filter(None, refusals), None))

    return answered


class ClassicReleases:
    """A batch is put, and then the command that says so: where a broker is lost, or an outcome is not
    known, in between, the next master releases that batch again, as RocketMQ does."""

    def __init__(self, group_log: ClassicGroupLog) -> None:
        self._log = group_log

    def lead(self) -> None:
        """The state records the released messages."""

    def begin_of(self, level: int) -> int:
        return 0

    def ask(self, level: int, begin: int, told: OffsetCallback) -> None:
        if self._log.follower.next_command:
            told(self._log.state.delayed.get(level, 0))
        else:
            told(LeaderNotReady("nothing was delayed here yet", retry_after_ms=RETRY_MS))

    open = ask

    def release(
        self, level: int, begin: int, offset: int, records: RecordBatch, done: DoneCallback
    ) -> None:
        def put(refusal: LedgerError | None) -> None:
            if refusal is None:
                self._note(level, offset + len(records), done)
            else:
                done(refusal)

        answered = once_all_are_put(len(records.queues), put)
        for _, rows in records.queues:
            self._log.put(records.select(rows), answered)

    def skip(self, level: int, begin: int, to_offset: int) -> None:
        self._note(level, to_offset, lambda error: None)

    def _note(self, level: int, offset: int, done: DoneCallback) -> None:
        command = ReleaseDelayed(((level, offset),))
        self._log.propose(lambda: command, lambda outcome: done(refusal_in(outcome)))
