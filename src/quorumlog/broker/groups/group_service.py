"""GroupService: topics, consumer groups and delayed messages of a broker, on either log.

Acknowledged state is replicated; the master alone has the group members and waiting requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

import msgspec

from quorumlog.broker import group_commands as commands
from quorumlog.broker import wire
from quorumlog.broker.errors import ConsumerGroupExists, TopicExists, UnknownTopic
from quorumlog.broker.group_commands import (
    FROM_CLIENTS,
    check_group_name,
    check_new_topic_name,
    check_topic_name,
    command_of_client,
)
from quorumlog.broker.groups.delays import LOOK_INTERVAL_MS, DelayScheduler, TopicRetention
from quorumlog.broker.groups.group_state import GROUPS, GroupFeed, GroupMachines, GroupTopics
from quorumlog.broker.groups.rebalancer import (
    MEMBER_TIMEOUT_MS,
    DoneCallback,
    GroupLog,
    GroupMembers,
    OffsetCommits,
    Proposals,
    Rebalancer,
)
from quorumlog.broker.offline.old_log import OldState
from quorumlog.broker.record_batch import QueueKey
from quorumlog.errors import BadRequest, LedgerError
from quorumlog.node import MachineFactory
from quorumlog.wire.field_names import UNREADABLE, named_reason

if TYPE_CHECKING:
    from quorumlog.broker.broker_port import BrokerSession
_T = TypeVar("_T")
FIRST_TOPICS_RETRY_MS = 1_000.0


@dataclass(frozen=True, slots=True)
class GroupOptions:
    first_topics: Mapping[str, int] = field(default_factory=dict)
    """Made by the master, with so many queues, where there are none of the name."""
    auto_create_queues: int = 0
    """A topic that somebody asks for is made, with so many queues; 0: it is not."""
    member_timeout_ms: float = MEMBER_TIMEOUT_MS
    """A member of a group that was not heard of for so long is gone."""
    retention_interval_ms: float = LOOK_INTERVAL_MS


class GroupService:
    """On the loop."""

    def __init__(self, options: GroupOptions | None = None, old: OldState | None = None) -> None:
        """`old`: of a store that the log has taken over."""
        self.options = options or GroupOptions()
        self.feed = GroupFeed(old)
        self.topics: GroupTopics = GroupTopics(self.feed)
        self.scheduler: DelayScheduler
        self._proposals: Proposals
        self._commits: OffsetCommits
        self._rebalancer: Rebalancer
        self._retention: TopicRetention
        self._log: GroupLog
        self._is_master = False
        self._now_ms = 0.0
        self._first_topics_at_ms = 0.0
        """When to look whether `first_topics` stand."""

    @property
    def machines(self) -> Mapping[str, MachineFactory]:
        return {GROUPS: GroupMachines(self.feed)}

    def open(self, log: GroupLog, delays_ms: Sequence[int]) -> None:
        self._log = log
        self._proposals = Proposals(log, lambda: self.feed.state)
        self._commits = OffsetCommits(self._proposals.carry_out)
        members = GroupMembers(self.options.member_timeout_ms)
        self._rebalancer = Rebalancer(self.feed, members, self._commits, self._proposals)
        self.scheduler = DelayScheduler(log, self.topics, delays_ms)
        self._retention = TopicRetention(
            log, self._proposals.quietly, self.options.retention_interval_ms
        )

    def lead(self, is_master: bool) -> None:
        """Called once all earlier messages are dispatched and all earlier commands applied here."""
        was_master, self._is_master = self._is_master, is_master
        self.scheduler.lead(is_master)
        if was_master:
            self._commits.end(self._log.not_master())
            self._rebalancer.end(self._log.not_master())
        if is_master:
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

    def request(self, session: BrokerSession, message: wire.AnyBrokerMessage) -> bool:
        """False: it is none of these. Raises the refusal."""
        handler = self._HANDLERS.get(type(message))
        if handler is None:
            return False
        if not isinstance(message, wire.GroupQuestionRequest):
            self._check_master()
        handler(self, session, message)
        return True

    def _leave(self, session: BrokerSession, message: wire.LeaveRequest) -> None:
        self._rebalancer.left(message.group, message.member)
        session.answer(wire.DoneResponse(request_id=message.request_id))

    def _check_master(self) -> None:
        """Raises NotLeader, LeaderNotReady."""
        if not self._is_master:
            raise self._log.not_master()

    def _after(
        self, session: BrokerSession, message: wire.AnyBrokerMessage, step: Callable[[], None]
    ) -> DoneCallback:
        """Continues with `step` once what a request waits for is done, if this is the master still."""

        def done(refusal: LedgerError | None) -> None:
            if refusal is not None:
                raise refusal
            self._check_master()
            step()

        return lambda refusal: session.proceed(message.request_id, partial(done, refusal))

    # ---------------------------------------------------------------- topics and groups

    def _ask(self, session: BrokerSession, message: wire.GroupQuestionRequest) -> None:
        self._log.ask(message.body, partial(_tell, session, message), session)

    def _command(self, session: BrokerSession, message: wire.GroupCommandRequest) -> None:
        try:
            command = command_of_client(message.body)
        except UNREADABLE as error:
            reason = named_reason(error, message.body, commands.Command)
            raise BadRequest(f"no command of topics and groups: {reason}") from None
        if not isinstance(command, FROM_CLIENTS):
            raise BadRequest(f"{type(command).__name__} is for the master to send")

        def propose() -> None:
            if isinstance(command, commands.ResetOffsets):
                self._check_ends(command.offsets)
            if isinstance(command, commands.ResetOffsets | commands.DeleteGroup):
                self._commits.flush(command.group)  # before what ends its generation
            self._proposals.propose(command, partial(_tell, session, message))

        if isinstance(command, commands.CreateTopic) and not self._log.existing_queues(command.topic):
            # Not where it is applied: an entry of an earlier release may name a longer one.
            check_new_topic_name(command.topic)
        named: set[str] = set()
        if isinstance(command, commands.CreateTopic | commands.UpdateTopic | commands.DeleteTopic):
            named = {command.topic}
        elif isinstance(command, commands.ResetOffsets):
            named = {topic for topic, _, _ in command.offsets}
        self._with_topics(named, session, message, propose)

    def _route(self, session: BrokerSession, message: wire.TopicRouteRequest) -> None:
        topic = self.feed.state.topics.get(message.topic)
        if topic is None:
            again = partial(self._route, session, message)
            self._make_topic(message.topic, self._after(session, message, again))
            return
        session.answer(
            wire.TopicRouteResponse(request_id=message.request_id, queues=topic.queues, perm=topic.perm)
        )

    def _with_topics(
        self,
        named: Collection[str],
        session: BrokerSession,
        message: wire.AnyBrokerMessage,
        then: Callable[[], None],
    ) -> None:
        """Once those of them that the broker has beside the state are in it. Raises what `then` does."""
        topics = self.feed.state.topics
        for name in sorted(named):
            if name not in topics and self._log.existing_queues(name):
                again = partial(self._with_topics, named, session, message, then)
                self._make_topic(name, self._after(session, message, again))
                return
        then()

    def _make_topic(self, name: str, done: DoneCallback) -> None:
        """Raises UnknownTopic, BadRequest."""
        queues = self._log.existing_queues(name) or self.options.auto_create_queues
        if not queues:
            raise UnknownTopic(f"there is no topic {name}: quorumlog broker topic create {name}")
        check_topic_name(name)
        if not self._log.existing_queues(name):
            check_new_topic_name(name)
        self._proposals.carry_out(commands.CreateTopic(name, queues), done)

    def _make_first_topics(self, now_ms: float) -> None:
        topics = self.feed.state.topics
        lacking = {name: n for name, n in self.options.first_topics.items() if name not in topics}
        if lacking and now_ms >= self._first_topics_at_ms:
            self._first_topics_at_ms = now_ms + FIRST_TOPICS_RETRY_MS
            for name, queues in lacking.items():
                self._proposals.quietly(commands.CreateTopic(name, queues))

    # ---------------------------------------------------------------- members

    def _heartbeat(self, session: BrokerSession, message: wire.GroupHeartbeatRequest) -> None:
        """Makes the group, and in `dev` its topics, if they are not there."""
        check_group_name(message.group)
        _checked((message.member, message.topics, ()), commands.Assignment, "a heartbeat")
        state = self.feed.state
        again = self._after(session, message, partial(self._heartbeat, session, message))
        heard = partial(self._rebalancer.on_heartbeat, session, message)

        def made(refusal: LedgerError | None) -> None:
            again(None if isinstance(refusal, ConsumerGroupExists | TopicExists) else refusal)

        for topic, _ in message.topics:
            if topic not in state.topics:
                self._make_topic(topic, made)
                return
        if message.group not in state.groups:
            self._proposals.carry_out(commands.CreateGroup(message.group), made)
        elif message.is_orderly:
            # What it is told lets it work on its queues for a while: nobody else may say otherwise yet.
            self._log.confirm(self._after(session, message, heard), session)
        else:
            heard()

    def _commit(self, session: BrokerSession, message: wire.CommitRequest) -> None:
        rows = _checked(message.offsets, commands.Offsets, "a commit")
        response = wire.DoneResponse(request_id=message.request_id)

        def commit() -> None:
            generation = self._rebalancer.check_commit(message)
            self._check_ends(rows)
            done = partial(session.settle, response=response)
            self._commits.add(message.group, generation, message.member, rows, done)

        self._with_topics({topic for topic, _, _ in rows}, session, message, commit)

    def _check_ends(self, rows: Sequence[commands.OffsetRow]) -> None:
        """A group that begins after a queue's end would miss what comes there first. Raises
        BadRequest."""
        for topic, queue_id, offset in rows:
            end = self._log.stored_offset(QueueKey(topic, queue_id))
            if offset > end:
                raise BadRequest(f"queue {queue_id} of topic {topic} ends at {end}, below {offset}")

    _HANDLERS: ClassVar[dict[type, Callable[..., None]]] = {
        wire.GroupQuestionRequest: _ask,
        wire.GroupCommandRequest: _command,
        wire.GroupHeartbeatRequest: _heartbeat,
        wire.CommitRequest: _commit,
        wire.TopicRouteRequest: _route,
        wire.LeaveRequest: _leave,
    }


def _tell(session: BrokerSession, message: wire.AnyBrokerMessage, outcome: bytes | LedgerError) -> None:
    body = outcome if isinstance(outcome, bytes) else b""
    session.settle(outcome, wire.GroupAnswer(request_id=message.request_id, body=body))


def _checked(value: object, kind: type[_T], what: str) -> _T:
    """What is to be an entry, or part of one: each member decodes it again. Raises BadRequest."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason = named_reason(error, msgspec.msgpack.encode(value), kind)
        raise BadRequest(f"{what} is invalid: {reason}") from None
