"""GroupExtension: topics, consumer groups, delayed messages and sessions of a broker on the replicated
log. What is promised is replicated; the master adds what may be lost with it: who is in a group just
now, which requests wait."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.broker.dledger.broker_role import RoleState
from quorumlog.broker.errors import (
    ConsumerGroupExists,
    StaleGeneration,
    TopicExists,
    UnknownGroupMember,
    UnknownTopic,
)
from quorumlog.broker.groups.allocation import Subscriptions, allocate
from quorumlog.broker.groups.delay_scheduler import DelayScheduler
from quorumlog.broker.groups.group_machine import MACHINE_NAME, GroupFeed, GroupMachine
from quorumlog.broker.groups.group_members import MEMBER_TIMEOUT_MS, GroupMembers
from quorumlog.broker.groups.group_sessions import GroupSessions
from quorumlog.broker.groups.group_state import GroupState, group_of
from quorumlog.broker.groups.offset_commits import COMMIT_INTERVAL_MS, OffsetCommits
from quorumlog.broker.groups.topic_retention import LOOK_INTERVAL_MS, TopicRetention
from quorumlog.broker.groups.topic_table import CheckedPuts, GroupTopics
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.wire.broker_framing import records_of
from quorumlog.broker.wire.broker_messages import AnyBrokerMessage
from quorumlog.broker.wire.group_commands import (
    FROM_CLIENTS,
    Assign,
    Command,
    CommitOffsets,
    CreateGroup,
    CreateTopic,
    UpdateTopic,
    decode_command,
    encode,
    read_answer,
)
from quorumlog.broker.wire.group_messages import (
    AssignmentResponse,
    CommitRequest,
    DoneResponse,
    GroupAnswer,
    GroupCommandRequest,
    GroupQuestionRequest,
    HeartbeatRequest,
    LeaveRequest,
    OpenSessionRequest,
    SessionSendRequest,
    TopicRouteRequest,
    TopicRouteResponse,
)
from quorumlog.broker.wire.group_names import (
    DELAY_LEVELS,
    check_group_name,
    check_topic_name,
    delays_ms,
    dlq_topic,
    retry_topic,
)
from quorumlog.entry import AppendReceipt
from quorumlog.errors import (
    BadRequest,
    LeaderNotReady,
    LedgerError,
    PendingFull,
    ResultUnknown,
)
from quorumlog.node import AppendOutcome, MachineFactory
from quorumlog.node.applying.machine_driver import Answer
from quorumlog.wire.framing import Frame

if TYPE_CHECKING:
    from quorumlog.broker.dledger.dledger_broker import DLedgerBroker
    from quorumlog.broker.serving.broker_session import BrokerSession

TIMEOUT_MS = 5_000
MOST_PARKED = 10_000
MOST_WAIT_MS = 30_000
RETRY_MS = 20
FIRST_TOPICS_RETRY_MS = 1_000.0
Done = Callable[[bytes | LedgerError], None]


def _wall_ms() -> float:
    return time.time() * 1000


@dataclass(frozen=True, slots=True)
class GroupOptions:
    message_delay_level: str = DELAY_LEVELS
    """Delays of the levels 1 to 18, as RocketMQ's messageDelayLevel."""
    first_topics: Mapping[str, int] = field(default_factory=dict)
    """Made by the master, with so many queues, where there are none of the name."""
    auto_create_queues: int = 0
    """A topic that somebody asks for is made, with so many queues; 0: it is not."""
    member_timeout_ms: float = MEMBER_TIMEOUT_MS
    """A member of a group that was not heard of for so long is gone."""
    commit_interval_ms: float = COMMIT_INTERVAL_MS
    """At most one entry of offsets a group in this time."""
    retention_interval_ms: float = LOOK_INTERVAL_MS

    def __post_init__(self) -> None:
        """Raises BadRequest."""
        delays_ms(self.message_delay_level)


class _Parked(NamedTuple):
    """A heartbeat that waits for another generation."""

    session: BrokerSession
    request: HeartbeatRequest
    deadline_ms: float


class GroupExtension:
    """A `BrokerExtension`, and the table of topics of its broker."""

    def __init__(
        self,
        options: GroupOptions | None = None,
        *,
        wall_ms: Callable[[], float] = _wall_ms,
        token: Callable[[], bytes] = lambda: os.urandom(16),
    ) -> None:
        self.options = options or GroupOptions()
        self.feed = GroupFeed()
        self.topics = GroupTopics(self.feed)
        self._wall_ms = wall_ms
        self._token = token
        self.members = GroupMembers(self.options.member_timeout_ms)
        self.commits = OffsetCommits(self._propose_commit, self.options.commit_interval_ms)
        self.scheduler: DelayScheduler
        self._retention: TopicRetention
        self._sessions: GroupSessions
        self._broker: DLedgerBroker
        self._is_master = False
        self._now_ms = 0.0
        self._parked: list[_Parked] = []
        self._assigning: set[str] = set()
        self._first_topics_at_ms = 0.0
        """When to look whether `first_topics` stand."""
        self._settled: tuple[GroupState | None, int] = (None, -1)
        """(state, changes of members) for which every group's assignment was looked at."""

    # ---------------------------------------------------------------- BrokerExtension

    @property
    def machines(self) -> Mapping[str, MachineFactory]:
        return {MACHINE_NAME: lambda: GroupMachine(self.feed)}

    def open(self, broker: DLedgerBroker) -> None:
        self._broker = broker
        broker.topics_table = self.topics
        broker.puts = CheckedPuts(broker.puts, self.topics)
        self._sessions = GroupSessions(broker)
        propose = self._propose_quietly
        delays = delays_ms(self.options.message_delay_level)
        self.scheduler = DelayScheduler(
            broker,
            delays,
            self._wall_ms,
            self._token,
            propose,
            lambda level: self.feed.state.delayed.get(level, 0),
        )
        self._retention = TopicRetention(
            broker, self._wall_ms, propose, self.options.retention_interval_ms
        )

    def role_changed(self, state: RoleState) -> None:
        was_master, self._is_master = self._is_master, state.is_master
        self.scheduler.lead(state.is_master)
        self._assigning.clear()
        self._settled = (None, -1)
        if state.is_master:
            self.members.begin(self.feed.state, self._now_ms)
        elif was_master:
            self.members.end()
            self.commits.end(self._not_master())
            parked, self._parked = self._parked, []
            for each in parked:
                each.session.refuse(each.request.request_id, self._not_master())

    def tick(self, now_ms: float) -> None:
        self._now_ms = now_ms
        if not self._is_master or not self._broker.member.is_up:
            return
        self._make_first_topics(now_ms)
        self.members.expire(now_ms)
        self.commits.tick(now_ms)
        self._settle()
        self._answer_parked()
        self.scheduler.tick()
        self._retention.tick(self.feed.state, now_ms)

    def lost(self, session: BrokerSession) -> None:
        self._parked = [each for each in self._parked if each.session is not session]

    def close(self) -> None:
        self._parked.clear()

    def request(self, session: BrokerSession, message: AnyBrokerMessage, frame: Frame) -> bool:
        try:
            return self._request(session, message, frame)
        except LedgerError as error:
            session.refuse(message.request_id, error)
            return True

    def _request(self, session: BrokerSession, message: AnyBrokerMessage, frame: Frame) -> bool:
        if isinstance(message, SessionSendRequest):
            records = records_of(frame)
            self.topics.check_writes(records)
            self._sessions.send(session, message, records)
        elif isinstance(message, OpenSessionRequest):
            self._sessions.open(session, message)
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
            self.members.left(message.group, message.member)
            self._settle()
            session.answer(DoneResponse(request_id=message.request_id))
        else:
            return False
        return True

    # ---------------------------------------------------------------- the master

    def _not_master(self) -> LedgerError:
        broker = self._broker
        if broker.member.is_up and (refusal := broker.member.refusal_unless_leading()) is not None:
            return broker.refusal_of(refusal)
        return LeaderNotReady(
            "the broker becomes master once all that came before is dispatched", retry_after_ms=RETRY_MS
        )

    def _check_master(self) -> None:
        """Raises NotLeader, LeaderNotReady."""
        if not self._is_master:
            raise self._not_master()

    def _propose(self, command: Command, done: Done) -> None:
        """`done` gets what the machine answers, or the refusal of the log."""

        def told(outcome: AppendOutcome) -> None:
            if isinstance(outcome, AppendReceipt):
                (result,) = outcome.results
                done(
                    result if result is not None else ResultUnknown("committed, and no answer is known")
                )
            else:
                done(self._broker.refusal_of(outcome))

        def append() -> None:
            batch = EntryBatch.from_bodies([encode(command)])
            self._broker.member.append(batch, MACHINE_NAME, TIMEOUT_MS, told, self)

        self._broker.member.enter(append)

    def _propose_quietly(self, command: Command) -> None:
        """Whatever came of it: there is a next time."""
        self._propose(command, lambda outcome: None)

    def _propose_commit(
        self, command: CommitOffsets, done: Callable[[LedgerError | None], None]
    ) -> None:
        def told(outcome: bytes | LedgerError) -> None:
            done(_refusal_in(outcome))

        self._propose(command, told)

    # ---------------------------------------------------------------- topics and groups

    def _ask(self, session: BrokerSession, message: GroupQuestionRequest) -> None:
        def answered(answer: Answer) -> None:
            if isinstance(answer, LedgerError):
                session.refuse(message.request_id, self._broker.refusal_of(answer))
            else:
                session.answer(GroupAnswer(request_id=message.request_id, body=answer[0]))

        member = self._broker.member
        member.enter(lambda: member.ask(MACHINE_NAME, message.body, TIMEOUT_MS, answered, session))

    def _command(self, session: BrokerSession, message: GroupCommandRequest) -> None:
        try:
            command = decode_command(message.body)
        except msgspec.DecodeError as error:
            raise BadRequest(f"no command of topics and groups: {error}") from None
        if not isinstance(command, FROM_CLIENTS):
            raise BadRequest(f"{type(command).__name__} is for the master to say")

        def told(outcome: bytes | LedgerError) -> None:
            if isinstance(outcome, LedgerError):
                session.refuse(message.request_id, outcome)
            else:
                session.answer(GroupAnswer(request_id=message.request_id, body=outcome))

        group = getattr(command, "group", "")
        self.commits.flush(group, self._now_ms)  # in front of what may end its generation
        self._propose(self._with_ends(command), told)

    def _with_ends(self, command: Command) -> Command:
        """A queue that is made anew begins behind all that was ever sent to one of its name."""
        ends = self._broker.filler.next_offsets

        def of(topic: str, count: int) -> tuple[int, ...]:
            return tuple(ends.get(QueueKey(topic, queue_id), 0) for queue_id in range(count))

        if isinstance(command, CreateTopic | UpdateTopic):
            return msgspec.structs.replace(command, begins=of(command.topic, command.queues or 0))
        if isinstance(command, CreateGroup):
            begins = of(retry_topic(command.group), 1) + of(dlq_topic(command.group), 1)
            return msgspec.structs.replace(command, begins=begins)
        return command

    def _route(self, session: BrokerSession, message: TopicRouteRequest) -> None:
        topic = self.feed.state.topics.get(message.topic)
        if topic is not None:
            session.answer(
                TopicRouteResponse(request_id=message.request_id, queues=topic.queues, perm=topic.perm)
            )
            return

        def made(refusal: LedgerError | None) -> None:
            if refusal is None and message.topic in self.feed.state.topics:
                self._route(session, message)
            else:
                unknown = UnknownTopic(f"there is no topic {message.topic}")
                session.refuse(message.request_id, refusal or unknown)

        self._make_topic(message.topic, made)

    def _make_topic(self, name: str, done: Callable[[LedgerError | None], None]) -> None:
        """Raises UnknownTopic, BadRequest."""
        if not self.options.auto_create_queues:
            raise UnknownTopic(f"there is no topic {name}: quorumlog broker topic create {name}")
        check_topic_name(name)
        command = self._with_ends(CreateTopic(name, self.options.auto_create_queues))
        self._propose(command, lambda outcome: done(_refusal_in(outcome)))

    def _make_first_topics(self, now_ms: float) -> None:
        topics = self.feed.state.topics
        lacking = {name: n for name, n in self.options.first_topics.items() if name not in topics}
        if lacking and now_ms >= self._first_topics_at_ms:
            self._first_topics_at_ms = now_ms + FIRST_TOPICS_RETRY_MS
            for name, queues in lacking.items():
                self._propose_quietly(self._with_ends(CreateTopic(name, queues)))

    # ---------------------------------------------------------------- members

    def _heartbeat(self, session: BrokerSession, message: HeartbeatRequest) -> None:
        check_group_name(message.group)
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
        if message.group not in state.groups:
            command = self._with_ends(CreateGroup(message.group))
            self._propose(command, lambda outcome: made(_refusal_in(outcome)))
            return
        wanted: Subscriptions = tuple(sorted({*message.topics, (retry_topic(message.group), "*")}))
        if not self.members.heard(message.group, message.member, wanted, self._now_ms):
            raise PendingFull(
                f"group {message.group} has as many members as it may", retry_after_ms=1000
            )
        self._settle()
        wait_ms = min(message.wait_ms, MOST_WAIT_MS) if len(self._parked) < MOST_PARKED else 0
        self._parked.append(_Parked(session, message, self._now_ms + wait_ms))
        self._answer_parked()

    def _again(self, session: BrokerSession, message: HeartbeatRequest) -> None:
        try:
            self._check_master()
            self._heartbeat(session, message)
        except LedgerError as error:
            session.refuse(message.request_id, error)

    def _answer_parked(self) -> None:
        state, waiting = self.feed.state, []
        for each in self._parked:
            group = state.groups.get(each.request.group)
            own = [m for m in group.members if m.member == each.request.member] if group else []
            is_new = bool(own) and group is not None and group.generation != each.request.generation
            if not is_new and self._now_ms < each.deadline_ms:
                waiting.append(each)
                continue
            queues = [
                (topic, queue_id, group.offsets.get((topic, queue_id), -1))
                for member in own
                for topic, queue_id in member.queues
                if group is not None
            ]
            generation = group.generation if own and group is not None else -1
            each.session.answer(
                AssignmentResponse(
                    request_id=each.request.request_id, generation=generation, queues=queues
                )
            )
        self._parked = waiting

    def _settle(self) -> None:
        """Hand queues out anew in groups whose members, or whose topics, are others than before."""
        state = self.feed.state
        if self._settled[0] is state and self._settled[1] == self.members.changes:
            return
        self._settled = (state, self.members.changes)
        counts = {name: topic.queues for name, topic in state.topics.items()}
        for name, group in state.groups.items():
            if name in self._assigning:
                continue
            members = allocate(self.members.wants(name), counts, group.members)
            if members != group.members:
                self._assign(Assign(name, group.generation + 1, members))

    def _assign(self, command: Assign) -> None:
        self._assigning.add(command.group)
        self.commits.flush(command.group, self._now_ms)  # what was read by the generation that ends

        def told(outcome: bytes | LedgerError) -> None:
            self._assigning.discard(command.group)
            self._settled = (None, -1)
            if self._is_master and not isinstance(outcome, LedgerError):
                self._settle()
                self._answer_parked()

        self._propose(command, told)

    # ---------------------------------------------------------------- offsets

    def _commit(self, session: BrokerSession, message: CommitRequest) -> None:
        state = self.feed.state
        group = group_of(state, message.group)
        generation = message.generation
        if generation == -1 and not message.member:
            generation = group.generation
        if generation != group.generation:
            raise StaleGeneration(
                f"generation {group.generation} of group {message.group} stands, not {generation}"
            )
        owned = {
            queue for each in group.members if each.member == message.member for queue in each.queues
        }
        for topic, queue_id, offset in message.offsets:
            if group.members and (topic, queue_id) not in owned:
                raise UnknownGroupMember(
                    f"{message.member or 'a consumer without a name'} does not read queue {queue_id} of"
                    f" topic {topic} in group {message.group}, which has members"
                )
            end = self._broker.log.stored_offset(QueueKey(topic, queue_id))
            if not 0 <= offset <= end:
                raise BadRequest(f"queue {queue_id} of topic {topic} ends at {end}, below {offset}")

        def done(refusal: LedgerError | None) -> None:
            if refusal is None:
                session.answer(DoneResponse(request_id=message.request_id))
            else:
                session.refuse(message.request_id, refusal)

        rows = tuple(message.offsets)
        self.commits.add(message.group, generation, message.member, rows, done, self._now_ms)


def _refusal_in(outcome: bytes | LedgerError) -> LedgerError | None:
    if isinstance(outcome, LedgerError):
        return outcome
    try:
        read_answer(outcome, object)
    except LedgerError as refusal:
        return refusal
    return None
