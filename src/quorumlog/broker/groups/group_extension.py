"""RaftGroupLog: topics and groups as a state machine of the replicated log, and releases of delayed
messages in producers' sessions of it.

A level has a session in which a message's number is its offset in the level's queue. So the log itself
knows how far each level is released, and a master that takes over, or does not know what came of its
last append, releases nothing twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.broker.broker_port import QueueTable, Reads
from quorumlog.broker.dledger.dledger_broker import RoleState
from quorumlog.broker.dledger.message_machine import entries_of, records_of
from quorumlog.broker.errors import ConsumerGroupExists, NeedsReplicatedRole, TopicExists, UnknownTopic
from quorumlog.broker.group_commands import (
    FROM_CLIENTS,
    SYSTEM_PREFIX,
    Assignment,
    Command,
    CreateGroup,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    OffsetRow,
    Offsets,
    ResetOffsets,
    SkipDelayed,
    Stand,
    UpdateTopic,
    check_group_name,
    check_new_topic_name,
    check_topic_name,
    decode_command,
    encode,
    refusal_in,
)
from quorumlog.broker.groups.delays import LOOK_INTERVAL_MS, DelayScheduler, TopicRetention
from quorumlog.broker.groups.group_state import GROUPS, CheckedPuts, GroupFeed, GroupMachine, GroupTopics
from quorumlog.broker.groups.rebalancer import (
    MEMBER_TIMEOUT_MS,
    GroupLog,
    GroupMembers,
    OffsetCommits,
    Proposals,
    Rebalancer,
    Told,
    ToldDone,
    ToldOffset,
)
from quorumlog.broker.offline.old_log import OldState
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.dispatch import MESSAGES
from quorumlog.broker.store.store_reader import StoreReader
from quorumlog.broker.wire import (
    AnyBrokerMessage,
    CommitRequest,
    DoneResponse,
    GroupAnswer,
    GroupCommandRequest,
    GroupQuestionRequest,
    HeartbeatRequest,
    LeaveRequest,
    OpenSessionRequest,
    OpenSessionResponse,
    SessionSendRequest,
    SessionSendResponse,
    TopicRouteRequest,
    TopicRouteResponse,
)
from quorumlog.broker.wire import records_of as frame_records
from quorumlog.entry import AppendReceipt
from quorumlog.errors import BadRequest, LeaderNotReady, LedgerError, ProducerExpired, ResultUnknown
from quorumlog.log_state.control_entries import Epoch
from quorumlog.net.frame import Frame
from quorumlog.node import AppendOutcome, MachineFactory
from quorumlog.node.applying.machine_driver import Answer
from quorumlog.node.pending_appends import SessionPlace
from quorumlog.node.producer_sessions import Connected, KnownProducer
from quorumlog.wire.field_names import named_reason

if TYPE_CHECKING:
    from quorumlog.broker.broker_port import BrokerSession
    from quorumlog.broker.dledger.dledger_broker import DLedgerBroker
TIMEOUT_MS = 5_000
RETRY_MS = 20


def session_of(level: int, begin: int) -> str:
    """`begin`: offset from which its numbers count."""
    return f"{SYSTEM_PREFIX}SCHEDULE%{level}@{begin}"


class RaftGroupLog:
    """On the loop."""

    def __init__(
        self,
        broker: DLedgerBroker,
        wall_ms: Callable[[], float],
        token: Callable[[], bytes],
        begin_of: Callable[[int], int],
    ) -> None:
        """`begin_of`: where a delay level begins by the replicated state."""
        self._broker = broker
        self._wall_ms = wall_ms
        self.releases = SessionReleases(self, broker, token, begin_of)

    @property
    def queues(self) -> QueueTable:
        return self._broker.queues

    @property
    def reader(self) -> StoreReader:
        return self._broker.reader

    @property
    def reads(self) -> Reads:
        return self._broker.reads

    @property
    def is_up(self) -> bool:
        return self._broker.member.is_up

    def propose(self, command: Callable[[], Command], told: Told) -> None:
        def appended(outcome: AppendOutcome) -> None:
            if isinstance(outcome, AppendReceipt):
                (result,) = outcome.results
                unknown = ResultUnknown("it is committed, and what came of it is not known")
                told(unknown if result is None else result)
            else:
                told(self.refusal_of(outcome))

        def append() -> None:
            batch = EntryBatch.from_bodies([encode(command())])
            self._broker.member.append(batch, GROUPS, TIMEOUT_MS, appended, self)

        self._broker.member.enter(append)

    def ask(self, question: bytes, told: Told, session: BrokerSession) -> None:
        def answered(answer: Answer) -> None:
            told(self.refusal_of(answer) if isinstance(answer, LedgerError) else answer[0])

        member = self._broker.member
        member.enter(lambda: member.ask(GROUPS, question, TIMEOUT_MS, answered, session), session)

    def confirm(self, told: ToldDone, session: BrokerSession) -> None:
        self.ask(encode(Stand()), lambda answer: told(refusal_in(answer)), session)

    def end_of(self, key: QueueKey) -> int:
        return self._broker.filler.next_offsets.get(key, 0)

    def stored_offset(self, key: QueueKey) -> int:
        return self._broker.log.stored_offset(key)

    def standing_queues(self, topic: str) -> int:
        return 0

    def due_clock_ms(self) -> float:
        """A time that the clocks of a quorum have reached, and this one: one alone may jump. All of them
        may, too, which the log finds out. -1: too few have told theirs."""
        log_ms = self.age_clock_ms()
        if log_ms >= 0 or not self.is_up:
            return log_ms
        return min(self._wall_ms(), self._broker.member.node().raft.quorum_clock_ms)

    def age_clock_ms(self) -> float:
        """The same for ages, for which it is not known either while the log does not believe it."""
        member = self._broker.member
        return min(self._wall_ms(), member.node().log_clock_ms) if member.is_up else -1.0

    def refusal_of(self, error: LedgerError) -> LedgerError:
        return self._broker.refusal_of(error)

    def not_master(self) -> LedgerError:
        member = self._broker.member
        if member.is_up and (refusal := member.refusal_unless_leading()) is not None:
            return self.refusal_of(refusal)
        return LeaderNotReady(
            "the broker becomes master once all that came before is dispatched", retry_after_ms=RETRY_MS
        )


class SessionReleases:
    def __init__(
        self,
        log: RaftGroupLog,
        broker: DLedgerBroker,
        token: Callable[[], bytes],
        begin_of: Callable[[int], int],
    ) -> None:
        self._begin_of = begin_of
        self._log = log
        self._broker = broker
        self._token = token
        self._epochs: dict[int, Epoch] = {}

    def lead(self) -> None:
        self._epochs.clear()

    def begin_of(self, level: int) -> int:
        return self._begin_of(level)

    def ask(self, level: int, begin: int, told: ToldOffset) -> None:
        def shown(answer: KnownProducer | LedgerError) -> None:
            if isinstance(answer, KnownProducer):
                told(begin + answer.session.last_sequence + 1)
            elif isinstance(answer, ProducerExpired):
                told(begin)  # nothing was ever released
            else:
                told(answer)

        member = self._broker.member
        member.enter(lambda: member.node().sessions.show(session_of(level, begin), shown, self))

    def open(self, level: int, begin: int, told: ToldOffset) -> None:
        self._broker.member.enter(lambda: self._connect(level, begin, None, told))

    def _connect(self, level: int, begin: int, ends: Epoch | None, told: ToldOffset) -> None:
        """The session's numbers are certain then: it ends whatever an earlier one had on its way."""

        def connected(answer: Connected | LedgerError) -> None:
            if isinstance(answer, LedgerError):
                told(answer)
            elif not answer.opened:
                self._connect(level, begin, answer.epoch, told)
            else:
                self._epochs[level] = answer.epoch
                told(begin + answer.last_sequence + 1)

        node = self._broker.member.node()
        deadline_ms = node.deadline_ms(TIMEOUT_MS)
        session = session_of(level, begin)
        node.sessions.connect(session, self._token(), ends, deadline_ms, connected, self)

    def release(self, level: int, begin: int, offset: int, records: RecordBatch, done: ToldDone) -> None:
        place = SessionPlace(session_of(level, begin), self._epochs[level], offset - begin)

        def appended(outcome: AppendOutcome) -> None:
            done(None if isinstance(outcome, AppendReceipt) else outcome)

        def append() -> None:
            self._broker.member.append(
                *(entries_of(records), MESSAGES, TIMEOUT_MS, appended, self),
                place=place,
                awaits_results=False,
            )

        self._broker.member.enter(append)

    def skip(self, level: int, begin: int, to_offset: int) -> None:
        self._log.propose(lambda: SkipDelayed(level, begin, to_offset), lambda outcome: None)


# ---------------------------------------------------------------- GroupSessions
# Sends of a producer's session are in the log once, however often they come.

MOST_BYTES = 1 << 24


def check_producer(producer: str) -> None:
    """Raises BadRequest: a client in such a session could have delayed messages taken for released."""
    if producer.startswith(SYSTEM_PREFIX):
        raise BadRequest(f"sessions that begin with {SYSTEM_PREFIX!r} are the broker's own: {producer}")


class GroupSessions:
    """On the loop."""

    def __init__(self, broker: DLedgerBroker) -> None:
        self._broker = broker

    def open(self, session: BrokerSession, request: OpenSessionRequest) -> None:
        """Raises BadRequest."""
        check_producer(request.producer)

        def told(answer: Connected | LedgerError) -> None:
            if isinstance(answer, LedgerError):
                session.refuse(request.request_id, self._broker.refusal_of(answer))
                return
            session.answer(
                OpenSessionResponse(
                    request_id=request.request_id,
                    opened=answer.opened,
                    epoch=(answer.epoch.index, answer.epoch.term),
                    last_sequence=answer.last_sequence,
                )
            )

        def connect() -> None:
            node = self._broker.member.node()
            ends = None if request.ends is None else Epoch(*request.ends)
            deadline_ms = node.deadline_ms(TIMEOUT_MS)
            node.sessions.connect(request.producer, request.token, ends, deadline_ms, told, session)

        self._broker.member.enter(connect, session)

    def send(self, session: BrokerSession, request: SessionSendRequest, records: RecordBatch) -> None:
        """Raises BadRequest."""
        check_producer(request.producer)
        if not len(records):
            session.refuse(request.request_id, BadRequest("a send has one message at least"))
            return

        def done(outcome: AppendOutcome) -> None:
            if isinstance(outcome, LedgerError):
                session.refuse(request.request_id, self._broker.refusal_of(outcome))
                return
            stored = self._stored(outcome)
            at = None if stored is None else stored.columns
            session.answer(
                SessionSendResponse(
                    request_id=request.request_id,
                    queue_offsets=b"" if at is None else at.queue_offsets.astype(">i8").tobytes(),
                    positions=b"" if at is None else at.physical_offsets.astype(">i8").tobytes(),
                    store_time_ms=-1 if at is None else int(at.store_times_ms[0]),
                    store_host=self._broker.store_host,
                )
            )

        def append() -> None:
            place = SessionPlace(request.producer, Epoch(*request.epoch), request.sequence)
            self._broker.member.append(
                entries_of(records),
                MESSAGES,
                TIMEOUT_MS,
                done,
                session,
                place=place,
                awaits_results=False,
            )

        self._broker.member.enter(append, session)

    def _stored(self, receipt: AppendReceipt) -> RecordBatch | None:
        """The messages as they stand in the log, whoever appended them, and when; None: they would have
        to be read from the disk."""
        node = self._broker.member.node()
        found: list[RecordBatch] = []
        for part in receipt.parts:
            index, stop = part.first_index, part.first_index + part.count
            while index < stop:
                try:
                    entries = node.readable_range(index, stop, MOST_BYTES)
                except LedgerError:
                    return None
                if not isinstance(entries, EntryBatch):
                    return None
                found.append(records_of(entries))
                index += entries.count
        if len(found) == 1:
            return found[0]
        joined = [each.joined() for each in found]
        sizes = np.concatenate([each.sizes for each in joined])
        return RecordBatch.contiguous(b"".join(bytes(each.buffer) for each in joined), sizes)


# ---------------------------------------------------------------- GroupExtension
# Topics, consumer groups, delayed messages and sessions of a broker on the replicated log. What is
# promised is replicated; the master adds what may be lost with it: who is in a group just now, which
# requests wait.

_T = TypeVar("_T")
FIRST_TOPICS_RETRY_MS = 1_000.0


def _wall_ms() -> float:
    return time.time() * 1000


@dataclass(frozen=True, slots=True)
class GroupOptions:
    first_topics: Mapping[str, int] = field(default_factory=dict)
    """Made by the master, with so many queues, where there are none of the name."""
    auto_create_queues: int = 0
    """A topic that somebody asks for is made, with so many queues; 0: it is not."""
    member_timeout_ms: float = MEMBER_TIMEOUT_MS
    """A member of a group that was not heard of for so long is gone."""
    retention_interval_ms: float = LOOK_INTERVAL_MS


class GroupExtension:
    """A `BrokerExtension`, and the table of topics of its broker."""

    def __init__(
        self,
        options: GroupOptions | None = None,
        old: OldState | None = None,
        *,
        wall_ms: Callable[[], float] = _wall_ms,
        token: Callable[[], bytes] = lambda: os.urandom(16),
    ) -> None:
        """`old`: of a store that the log has taken over. `wall_ms`: since 1970. `token`: 16 random
        bytes."""
        self.options = options or GroupOptions()
        self.feed = GroupFeed(old)
        self.topics: GroupTopics = GroupTopics(self.feed)
        self._wall_ms = wall_ms
        self._token = token
        self.scheduler: DelayScheduler
        self._proposals: Proposals
        self._commits: OffsetCommits
        self._rebalancer: Rebalancer
        self._retention: TopicRetention
        self._sessions: GroupSessions | None
        self._log: GroupLog
        self._is_master = False
        self._now_ms = 0.0
        self._first_topics_at_ms = 0.0
        """When to look whether `first_topics` stand."""

    # ---------------------------------------------------------------- BrokerExtension

    @property
    def machines(self) -> Mapping[str, MachineFactory]:
        return {GROUPS: lambda: GroupMachine(self.feed)}

    def open(self, broker: DLedgerBroker) -> None:
        broker.topics_table = self.topics
        broker.puts = CheckedPuts(broker.puts, self.topics)
        log = RaftGroupLog(
            broker, self._wall_ms, self._token, lambda level: self.feed.state.delayed.get(level, 0)
        )
        self.open_on(log, broker.config.delays_ms(), GroupSessions(broker))

    def open_on(self, log: GroupLog, delays_ms: Sequence[int], sessions: GroupSessions | None) -> None:
        """`sessions`: None where the log has none."""
        options = self.options
        self._log = log
        self._sessions = sessions
        self._proposals = Proposals(log, lambda: self.feed.state)
        self._commits = OffsetCommits(self._proposals.commit)
        members = GroupMembers(options.member_timeout_ms)
        self._rebalancer = Rebalancer(self.feed, members, self._commits, self._proposals)
        self.scheduler = DelayScheduler(log, self.topics, delays_ms)
        self._retention = TopicRetention(log, self._proposals.quietly, options.retention_interval_ms)

    def role_changed(self, state: RoleState) -> None:
        was_master, self._is_master = self._is_master, state.is_master
        self.scheduler.lead(state.is_master)
        if was_master:
            self._commits.end(self._log.not_master())
            self._rebalancer.end(self._log.not_master())
        if state.is_master:
            self._rebalancer.begin(self._now_ms)

    def tick(self, now_ms: float) -> None:
        self._now_ms = now_ms
        if not self._is_master or not self._log.is_up:
            return
        self._make_first_topics(now_ms)
        self._rebalancer.tick(now_ms)
        self.scheduler.tick(now_ms)
        self._retention.tick(self.feed.state, now_ms)

    def lost(self, session: BrokerSession) -> None:
        self._rebalancer.lost(session)

    def close(self) -> None:
        """Nothing of it is open."""

    def request(self, session: BrokerSession, message: AnyBrokerMessage, frame: Frame) -> bool:
        try:
            return self._request(session, message, frame)
        except LedgerError as error:
            session.refuse(message.request_id, error)
            return True

    def _request(self, session: BrokerSession, message: AnyBrokerMessage, frame: Frame) -> bool:
        if isinstance(message, SessionSendRequest):
            records = frame_records(frame)
            self.topics.check_writes(records)
            self._needed_sessions().send(session, message, records)
        elif isinstance(message, OpenSessionRequest):
            self._needed_sessions().open(session, message)
        elif isinstance(message, GroupQuestionRequest):
            self._ask(session, message)
        elif isinstance(message, GroupCommandRequest):
            self._check_master()
            self._command(session, message)
        elif isinstance(message, HeartbeatRequest):
            self._check_master()
            self._heartbeat(session, message)
        elif isinstance(message, CommitRequest):
            self._check_master()
            self._commit(session, message)
        elif isinstance(message, TopicRouteRequest):
            self._check_master()
            self._route(session, message)
        elif isinstance(message, LeaveRequest):
            self._check_master()
            self._rebalancer.left(message.group, message.member)
            session.answer(DoneResponse(request_id=message.request_id))
        else:
            return False
        return True

    # ---------------------------------------------------------------- the master

    def _needed_sessions(self) -> GroupSessions:
        """Raises NeedsReplicatedRole."""
        if self._sessions is None:
            raise NeedsReplicatedRole(
                "sessions of producers (idempotent, producer_id) need brokers with --role dledger: their"
                " log knows each session"
            )
        return self._sessions

    def _check_master(self) -> None:
        """Raises NotLeader, LeaderNotReady."""
        if not self._is_master:
            raise self._log.not_master()

    # ---------------------------------------------------------------- topics and groups

    def _ask(self, session: BrokerSession, message: GroupQuestionRequest) -> None:
        def answered(answer: bytes | LedgerError) -> None:
            if isinstance(answer, LedgerError):
                session.refuse(message.request_id, answer)
            else:
                session.answer(GroupAnswer(request_id=message.request_id, body=answer))

        self._log.ask(message.body, answered, session)

    def _command(self, session: BrokerSession, message: GroupCommandRequest) -> None:
        try:
            command = decode_command(message.body)
        except msgspec.DecodeError as error:
            reason = named_reason(error, message.body, Command)
            raise BadRequest(f"no command of topics and groups: {reason}") from None
        if not isinstance(command, FROM_CLIENTS):
            raise BadRequest(f"{type(command).__name__} is for the master to say")

        def told(outcome: bytes | LedgerError) -> None:
            if isinstance(outcome, LedgerError):
                session.refuse(message.request_id, outcome)
            else:
                session.answer(GroupAnswer(request_id=message.request_id, body=outcome))

        def propose() -> None:
            if isinstance(command, ResetOffsets):
                self._check_ends(command.offsets)
            if isinstance(command, ResetOffsets | DeleteGroup):
                self._commits.flush(command.group)  # in front of what ends its generation
            self._proposals.propose(command, told)

        if isinstance(command, CreateTopic) and not self._log.standing_queues(command.topic):
            # Not where it is applied: an entry of an earlier release may name a longer one.
            check_new_topic_name(command.topic)
        named: set[str] = set()
        if isinstance(command, CreateTopic | UpdateTopic | DeleteTopic):
            named = {command.topic}
        elif isinstance(command, ResetOffsets):
            named = {topic for topic, _, _ in command.offsets}
        self._with_topics(named, session, message, propose)

    def _route(self, session: BrokerSession, message: TopicRouteRequest) -> None:
        topic = self.feed.state.topics.get(message.topic)
        if topic is not None:
            route = TopicRouteResponse(
                request_id=message.request_id, queues=topic.queues, perm=topic.perm
            )
            session.answer(route)
            return

        def made(refusal: LedgerError | None) -> None:
            if refusal is None and message.topic in self.feed.state.topics:
                self._route(session, message)
            else:
                unknown = UnknownTopic(f"there is no topic {message.topic}")
                session.refuse(message.request_id, refusal or unknown)

        self._make_topic(message.topic, made)

    def _with_topics(
        self,
        named: Collection[str],
        session: BrokerSession,
        message: AnyBrokerMessage,
        then: Callable[[], None],
    ) -> None:
        """Once those of them that the broker has beside the state are in it. Raises what `then` does."""

        def made(refusal: LedgerError | None) -> None:
            try:
                if refusal is not None:
                    raise refusal
                self._check_master()
                self._with_topics(named, session, message, then)
            except LedgerError as error:
                session.refuse(message.request_id, error)

        topics = self.feed.state.topics
        for name in sorted(named):
            if name not in topics and self._log.standing_queues(name):
                self._make_topic(name, made)
                return
        then()

    def _make_topic(self, name: str, done: Callable[[LedgerError | None], None]) -> None:
        """Raises UnknownTopic, BadRequest."""
        queues = self._log.standing_queues(name) or self.options.auto_create_queues
        if not queues:
            raise UnknownTopic(f"there is no topic {name}: quorumlog broker topic create {name}")
        check_topic_name(name)
        if not self._log.standing_queues(name):
            check_new_topic_name(name)
        command = CreateTopic(name, queues)
        self._proposals.propose(command, lambda outcome: done(refusal_in(outcome)))

    def _make_first_topics(self, now_ms: float) -> None:
        topics = self.feed.state.topics
        lacking = {name: n for name, n in self.options.first_topics.items() if name not in topics}
        if lacking and now_ms >= self._first_topics_at_ms:
            self._first_topics_at_ms = now_ms + FIRST_TOPICS_RETRY_MS
            for name, queues in lacking.items():
                self._proposals.quietly(CreateTopic(name, queues))

    # ---------------------------------------------------------------- members

    def _heartbeat(self, session: BrokerSession, message: HeartbeatRequest) -> None:
        """Makes the group, and in `dev` its topics, if they are not there."""
        check_group_name(message.group)
        _checked((message.member, message.topics, ()), Assignment, "a heartbeat")
        state = self.feed.state

        def made(refusal: LedgerError | None) -> None:
            if refusal is None or isinstance(refusal, ConsumerGroupExists | TopicExists):
                self._again(session, message)
            else:
                session.refuse(message.request_id, refusal)

        for topic, _ in message.topics:
            if topic not in state.topics:
                self._make_topic(topic, made)
                return
        if message.group in state.groups and message.is_orderly:
            # What it is told lets it work on its queues for a while: nobody else may say otherwise yet.
            def confirmed(refusal: LedgerError | None) -> None:
                try:
                    if refusal is not None:
                        raise refusal
                    self._check_master()
                    self._rebalancer.heard(session, message)
                except LedgerError as error:
                    session.refuse(message.request_id, error)

            self._log.confirm(confirmed, session)
        elif message.group in state.groups:
            self._rebalancer.heard(session, message)
        else:
            command = CreateGroup(message.group)
            self._proposals.propose(command, lambda outcome: made(refusal_in(outcome)))

    def _again(self, session: BrokerSession, message: HeartbeatRequest) -> None:
        try:
            self._check_master()
            self._heartbeat(session, message)
        except LedgerError as error:
            session.refuse(message.request_id, error)

    def _commit(self, session: BrokerSession, message: CommitRequest) -> None:
        rows = _checked(message.offsets, Offsets, "a commit")

        def done(refusal: LedgerError | None) -> None:
            if refusal is None:
                session.answer(DoneResponse(request_id=message.request_id))
            else:
                session.refuse(message.request_id, refusal)

        def commit() -> None:
            generation = self._rebalancer.check_commit(message)
            self._check_ends(rows)
            self._commits.add(message.group, generation, message.member, rows, done)

        self._with_topics({topic for topic, _, _ in rows}, session, message, commit)

    def _check_ends(self, rows: Sequence[OffsetRow]) -> None:
        """Whoever begins behind a queue's end would miss what comes there first. Raises BadRequest."""
        for topic, queue_id, offset in rows:
            end = self._log.stored_offset(QueueKey(topic, queue_id))
            if offset > end:
                raise BadRequest(f"queue {queue_id} of topic {topic} ends at {end}, below {offset}")


def _checked(said: object, kind: type[_T], what: str) -> _T:
    """What is to be an entry, or part of one: each member decodes it again. Raises BadRequest."""
    try:
        return msgspec.convert(said, kind)
    except msgspec.ValidationError as error:
        reason = named_reason(error, msgspec.msgpack.encode(said), kind)
        raise BadRequest(f"{what} makes no sense: {reason}") from None
