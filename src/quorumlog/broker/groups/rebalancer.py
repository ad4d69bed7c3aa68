"""Group members and their assigned queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from quorumlog.broker.broker_port import QueueTable, ReadPool
from quorumlog.broker.errors import StaleGeneration, TooManyNames, UnknownGroupMember
from quorumlog.broker.group_commands import (
    MOST_GROUPS,
    MOST_QUEUES_IN_ALL,
    MOST_TOPICS,
    Assign,
    Assignment,
    Command,
    CommitOffsets,
    CreateGroup,
    CreateTopic,
    OffsetRow,
    QueueRow,
    UpdateTopic,
    dlq_topic,
    refusal_in,
    retry_topic,
)
from quorumlog.broker.groups.group_state import Group, GroupFeed, GroupState, Topic, group_of
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.store_reader import StoreReader
from quorumlog.broker.wire import AssignmentResponse, CommitRequest, GroupHeartbeatRequest
from quorumlog.errors import LedgerError, PendingFull

if TYPE_CHECKING:
    from quorumlog.broker.broker_port import BrokerSession


# ---------------------------------------------------------------- GroupLog
# What topics and groups need of the log below them: their commands in it, one after the other, each
# carried out once it is acknowledged. `DLedgerBroker` is one, `ClassicGroupLog` the other.

ResultCallback = Callable[[bytes | LedgerError], None]
"""Gets the machine's answer, or the refusal of the log."""
OffsetCallback = Callable[[int | LedgerError], None]
DoneCallback = Callable[[LedgerError | None], None]


class Releases(Protocol):
    """How far delayed messages are copied to where they belong, level by level."""

    def begin_of(self, level: int) -> int:
        """On a change, the level's progress is queried again."""

    def ask(self, level: int, begin: int, on_offset: OffsetCallback) -> None:
        """The offset of the next message to release, as far as it is known."""

    def open(self, level: int, begin: int, on_offset: OffsetCallback) -> None:
        """The same, once nothing that an earlier master began can come in any more."""

    def release(
        self, level: int, begin: int, offset: int, records: RecordBatch, done: DoneCallback
    ) -> None:
        """These, which are the level's messages from `offset` on as they belong into their topics.
        With an error the level is opened anew before the next ones; AlreadyCommitted: at once."""

    def skip(self, level: int, begin: int, to_offset: int) -> None:
        """Retention has taken the messages below."""

    def lead(self) -> None:
        """This member is master: nothing of an earlier time is under way."""


class GroupLog(Protocol):
    """On the loop."""

    @property
    def releases(self) -> Releases: ...

    @property
    def queues(self) -> QueueTable: ...

    @property
    def reader(self) -> StoreReader: ...

    @property
    def reads(self) -> ReadPool: ...

    @property
    def is_up(self) -> bool: ...

    def propose(self, command: Callable[[], Command], on_result: ResultCallback) -> None:
        """Before all that is proposed later. `command` is called in the moment in which it is
        written."""

    def ask(self, question: bytes, on_result: ResultCallback, session: BrokerSession) -> None:
        """The machine, when all that was acknowledged before is carried out."""

    def confirm(self, on_done: DoneCallback, session: BrokerSession) -> None:
        """That this member is master still, at some moment after this."""

    def end_of(self, key: QueueKey) -> int:
        """After the last message of a queue in the whole log of a master."""

    def stored_offset(self, key: QueueKey) -> int:
        """After the last message of a queue that may be known to clients."""

    def existing_queues(self, topic: str) -> int:
        """Of a topic that the broker has beside those of the replicated state; 0: there is none."""

    def due_clock_ms(self) -> float:
        """Milliseconds since 1970, for due messages; -1: unknown."""

    def age_clock_ms(self) -> float:
        """The same for how old something is."""

    def not_master(self) -> LedgerError:
        """Why this member is none."""


class Proposals:
    """Commands of topics and groups on their way into the log. On the loop."""

    most_topics, most_groups, most_queues = MOST_TOPICS, MOST_GROUPS, MOST_QUEUES_IN_ALL

    def __init__(self, log: GroupLog, state: Callable[[], GroupState]) -> None:
        """`state`: as it is applied here."""
        self._log = log
        self._state = state

    def propose(self, command: Command, done: ResultCallback) -> None:
        """Before all that is proposed later. Raises TooManyNames."""
        self._check_room(command)
        self._log.propose(lambda: self._with_ends(command), done)

    def _check_room(self, command: Command) -> None:
        """Here, and not where it is applied: members of two releases must not differ in it. What is on
        its way just now is not counted."""
        state = self._state()
        names, groups = len(state.topics) + len(state.ended), len(state.groups)
        is_topic = isinstance(command, CreateTopic) and command.topic not in state.topics
        is_group = isinstance(command, CreateGroup) and command.group not in state.groups
        if is_topic and names >= self.most_topics:
            raise TooManyNames(f"there are {names} topics, with those that were deleted: no more")
        if is_group and groups >= self.most_groups:
            raise TooManyNames(f"there are {groups} consumer groups: delete some first")
        if isinstance(command, CreateTopic | UpdateTopic):
            there = state.topics.get(command.topic)
            more = (command.queues or 0) - (0 if there is None else there.queues)
            queues = sum(topic.queues for topic in state.topics.values()) if more > 0 else 0
            if queues + more > self.most_queues:
                raise TooManyNames(
                    f"all topics have {queues} queues, and {more} more would be above"
                    f" {self.most_queues}: delete topics first, or make fewer queues"
                )

    def quietly(self, command: Command) -> None:
        """Propose, ignoring the outcome: it is retried later."""
        with suppress(TooManyNames):
            self.propose(command, lambda outcome: None)

    def carry_out(self, command: Command, done: DoneCallback) -> None:
        """`done` gets the refusal, whoever it comes from; None: it has taken effect. Raises
        TooManyNames."""
        self.propose(command, lambda outcome: done(refusal_in(outcome)))

    def _with_ends(self, command: Command) -> Command:
        """A queue that is made anew begins after all that was ever sent to one of its name."""

        def of(topic: str, count: int) -> tuple[int, ...]:
            return tuple(self._log.end_of(QueueKey(topic, queue_id)) for queue_id in range(count))

        if isinstance(command, CreateTopic | UpdateTopic):
            return msgspec.structs.replace(command, begins=of(command.topic, command.queues or 0))
        if isinstance(command, CreateGroup):
            begins = of(retry_topic(command.group), 1) + of(dlq_topic(command.group), 1)
            return msgspec.structs.replace(command, begins=begins)
        return command


# ---------------------------------------------------------------- OffsetCommits
# What members commit. An entry leaves at once, unless one of the group is on its way: what comes
# meanwhile is gathered, and leaves as the next one.

Propose = Callable[[CommitOffsets, DoneCallback], None]


@dataclass(slots=True)
class _Gathered:
    """Of one generation of one group."""

    generation: int
    offsets: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    """The highest, by member and queue."""
    waiting: list[DoneCallback] = field(default_factory=list)


class OffsetCommits:
    def __init__(self, propose: Propose) -> None:
        self._propose = propose
        self._gathered: dict[str, _Gathered] = {}
        self._under_way: Counter[str] = Counter()
        """Entries of this master, by group: several only where a generation ends."""

    def add(
        self, group: str, generation: int, member: str, rows: tuple[OffsetRow, ...], done: DoneCallback
    ) -> None:
        """`done` is called once the entry that holds them has taken effect."""
        if self._gathered.setdefault(group, _Gathered(generation)).generation != generation:
            self.flush(group)
        gathered = self._gathered.setdefault(group, _Gathered(generation))
        highest = gathered.offsets.setdefault(member, {})
        for topic, queue_id, offset in rows:
            highest[topic, queue_id] = max(highest.get((topic, queue_id), 0), offset)
        gathered.waiting.append(done)
        if not self._under_way[group]:
            self.flush(group)

    def flush(self, group: str) -> None:
        """At once: the next command ends the generation."""
        gathered = self._gathered.pop(group, None)
        if gathered is None:
            return
        under_way = self._under_way
        under_way[group] += 1
        members = tuple(
            (member, tuple((*queue, at) for queue, at in sorted(highest.items())))
            for member, highest in sorted(gathered.offsets.items())
        )

        def on_committed(error: LedgerError | None) -> None:
            under_way[group] -= 1
            if not under_way[group]:
                del under_way[group]
                if under_way is self._under_way:
                    self.flush(group)
            for done in gathered.waiting:
                done(error)

        self._propose(CommitOffsets(group, gathered.generation, members), on_committed)

    def end(self, error: LedgerError) -> None:
        """This member is master no more."""
        gathered, self._gathered = self._gathered, {}
        self._under_way = Counter()
        for each in gathered.values():
            for done in each.waiting:
                done(error)


# ----------------------------------------------------------------
# Which member of a group reads which queue: evenly, topic by topic, as RocketMQ's
# AllocateMessageQueueAveragely does, with as many queues as possible left where they are.

Subscriptions = tuple[tuple[str, str], ...]
"""(topic, tags), by topic."""


def allocate(
    members: Mapping[str, Subscriptions],
    queues_of: Mapping[str, int],
    existing: tuple[Assignment, ...] = (),
) -> tuple[Assignment, ...]:
    """`queues_of`: number of queues by topic. Each queue of a topic is read by exactly one subscriber,
    and the numbers of queues per subscriber differ by at most one."""
    owner = {queue: each.member for each in existing for queue in each.queues}
    reads: dict[str, list[QueueRow]] = {member: [] for member in members}
    topics = sorted({topic for wanted in members.values() for topic, _ in wanted})
    for turn, topic in enumerate(topics):
        takers = sorted(m for m, wanted in members.items() if any(t == topic for t, _ in wanted))
        # The member that gets one more differs from topic to topic, or the first would get most of them.
        takers = takers[turn % len(takers) :] + takers[: turn % len(takers)]
        queues = [(topic, queue_id) for queue_id in range(queues_of.get(topic, 0))]
        owned = {member: [q for q in queues if owner.get(q) == member] for member in takers}
        least, more = divmod(len(queues), len(takers))
        fullest_first = sorted(takers, key=lambda member: -len(owned[member]))
        shares = {member: least + (at < more) for at, member in enumerate(fullest_first)}
        kept = {member: owned[member][: shares[member]] for member in takers}
        stays = {queue for rows in kept.values() for queue in rows}
        free = iter([queue for queue in queues if queue not in stays])
        for member in takers:
            reads[member] += kept[member]
            reads[member] += [next(free) for _ in range(shares[member] - len(kept[member]))]
        assert next(free, None) is None, topic
    return tuple(
        Assignment(member, members[member], tuple(sorted(reads[member]))) for member in sorted(members)
    )


def with_held(
    target: tuple[Assignment, ...], held: Mapping[QueueRow, str]
) -> tuple[tuple[Assignment, ...], dict[str, tuple[QueueRow, ...]]]:
    """`held`: queues that stay with a member for now. Returns the assignment meanwhile, and the queues
    each of these members must release."""
    own: dict[str, list[QueueRow]] = {each.member: [] for each in target}
    asked_for: dict[str, list[QueueRow]] = {}
    for queue, member in sorted((queue, each.member) for each in target for queue in each.queues):
        holder = held.get(queue, member)
        if holder != member:
            asked_for.setdefault(holder, []).append(queue)
        if holder in own:
            own[holder].append(queue)
    kept = tuple(Assignment(each.member, each.topics, tuple(own[each.member])) for each in target)
    return kept, {member: tuple(queues) for member, queues in asked_for.items()}


# ---------------------------------------------------------------- GroupMembers
# Who is there, in the memory of the master. What each of them reads is replicated.

MEMBER_TIMEOUT_MS = 10_000.0
MOST_MEMBERS = 1_000
"""Of one group."""


NOTHING: frozenset[QueueRow] = frozenset()


@dataclass(slots=True)
class _Member:
    topics: Subscriptions
    seen_ms: float | None = None
    """None: since the clock was looked at last, which may be long ago where the master was paused."""
    is_orderly: bool = True
    """Whether it may work on its queues until it gives them up. Of those that an earlier master knew
    nobody knows yet."""
    given_up: frozenset[QueueRow] = NOTHING
    given_up_in: int = -1
    """Generation in which it gave them up."""


@dataclass(slots=True)
class GroupMembers:
    """Of all groups. Sans-IO: the owner passes the time to `expire`. A member's time-out runs from after
    it was heard, the member's own from when it sent."""

    timeout_ms: float = MEMBER_TIMEOUT_MS
    changes: int = 0
    """Counts whenever somebody comes, goes, or wants something else."""
    _groups: dict[str, dict[str, _Member]] = field(default_factory=dict)

    def begin(self, state: GroupState) -> None:
        """A master begins: a member with queues stays until it was not heard of for a while; so a
        change of leader moves no queue."""
        self.changes += 1
        self._groups = {
            name: {each.member: _Member(each.topics) for each in group.members}
            for name, group in state.groups.items()
        }

    def end(self) -> None:
        self._groups.clear()

    def on_heartbeat(
        self,
        group: str,
        member: str,
        topics: Subscriptions,
        *,
        is_orderly: bool = False,
        given_up: frozenset[QueueRow] = NOTHING,
        generation: int = -1,
    ) -> bool:
        """False: the group has as many members as it may."""
        members = self._groups.setdefault(group, {})
        if member not in members and len(members) >= MOST_MEMBERS:
            return False
        before = members.get(member)
        present = _Member(topics, None, is_orderly, given_up, generation)
        if before is None or replace(before, seen_ms=None) != present:
            self.changes += 1
        members[member] = present
        return True

    def left(self, group: str, member: str) -> None:
        if self._groups.get(group, {}).pop(member, None) is not None:
            self.changes += 1

    def expire(self, now_ms: float) -> None:
        for members in self._groups.values():
            for name, each in list(members.items()):
                if each.seen_ms is None:
                    each.seen_ms = now_ms
                elif now_ms - each.seen_ms > self.timeout_ms:
                    del members[name]
                    self.changes += 1

    def held(self, group: str, existing: Group) -> dict[QueueRow, str]:
        """Queues that no other member may have yet, by the member that still works on them."""
        members, found = self._groups.get(group, {}), {}
        for each in existing.members:
            there = members.get(each.member)
            if there is not None and there.is_orderly:
                given_up = there.given_up if there.given_up_in == existing.generation else NOTHING
                found.update({queue: each.member for queue in each.queues if queue not in given_up})
        return found

    def has_given_up(self, group: str, existing: Group) -> bool:
        """Some member of it a queue that is its own by this generation."""
        members = self._groups.get(group, {})
        return any(
            there.given_up_in == existing.generation and not there.given_up.isdisjoint(each.queues)
            for each in existing.members
            if (there := members.get(each.member)) is not None
        )

    def wants(self, group: str) -> dict[str, Subscriptions]:
        """The subscriptions of each member."""
        return {name: each.topics for name, each in sorted(self._groups.get(group, {}).items())}


# ---------------------------------------------------------------- Rebalancer
# The master hands the queues of each group's topics out, again whenever members or topics change. Each
# assignment is an entry, and a generation.

MOST_PARKED = 10_000
MOST_WAIT_MS = 30_000
_NO_GROUP = Group()


class _Parked(NamedTuple):
    """A heartbeat that waits for another generation."""

    session: BrokerSession
    request: GroupHeartbeatRequest
    deadline_ms: float


@dataclass(eq=False)
class Rebalancer:
    """On the loop."""

    _feed: GroupFeed
    _members: GroupMembers
    _commits: OffsetCommits
    _proposals: Proposals
    _is_master: bool = False
    _now_ms: float = 0.0
    _parked: list[_Parked] = field(default_factory=list)
    _assigning: set[str] = field(default_factory=set)
    _settled: dict[str, int] = field(default_factory=dict)
    """Groups whose assignment was looked at, in which generation: for the topics and changes of members
    of `_settled_at`."""
    _settled_at: tuple[Mapping[str, Topic] | None, int] = (None, -1)
    _settled_state: GroupState | None = None
    _asked_for: dict[str, dict[str, tuple[QueueRow, ...]]] = field(default_factory=dict)
    """By group and orderly member: queues that are to go to others, once they are given up."""

    def begin(self, now_ms: float) -> None:
        """This member is master."""
        self._is_master, self._now_ms = True, now_ms
        self._assigning.clear()
        self._asked_for.clear()
        self._settled.clear()
        self._members.begin(self._feed.state)

    def end(self, refusal: LedgerError) -> None:
        self._is_master = False
        self._members.end()
        parked, self._parked = self._parked, []
        for each in parked:
            each.session.refuse(each.request.request_id, refusal)

    def tick(self, now_ms: float) -> None:
        self._now_ms = now_ms
        self._members.expire(now_ms)
        self._settle()
        self._answer_parked()

    def lost(self, session: BrokerSession) -> None:
        self._parked = [each for each in self._parked if each.session is not session]

    # ---------------------------------------------------------------- members

    def on_heartbeat(self, session: BrokerSession, message: GroupHeartbeatRequest) -> None:
        """Of a group and topics that there are. Raises PendingFull."""
        wanted: Subscriptions = tuple(sorted({*message.topics, (retry_topic(message.group), "*")}))
        is_there = self._members.on_heartbeat(
            message.group,
            message.member,
            wanted,
            is_orderly=message.is_orderly,
            given_up=frozenset(message.gives_up),
            generation=message.generation,
        )
        if not is_there:
            raise PendingFull(
                f"group {message.group} has as many members as it may", retry_after_ms=1000
            )
        wait_ms = min(message.wait_ms, MOST_WAIT_MS) if len(self._parked) < MOST_PARKED else 0
        self._parked.append(_Parked(session, message, self._now_ms + wait_ms))
        self._settle()
        self._answer_parked()

    def left(self, group: str, member: str) -> None:
        self._members.left(group, member)
        self._settle()

    def check_commit(self, message: CommitRequest) -> int:
        """The current generation, if it is the one of the commit. Raises UnknownConsumerGroup,
        StaleGeneration, UnknownGroupMember."""
        group = group_of(self._feed.state, message.group)
        is_of_nobody = message.generation == -1 and not message.member
        if not is_of_nobody and message.generation != group.generation:
            raise StaleGeneration(
                f"the generation of group {message.group} is {group.generation}, not"
                f" {message.generation}"
            )
        own = {queue for each in group.members if each.member == message.member for queue in each.queues}
        for topic, queue_id, _ in message.offsets:
            if group.members and (topic, queue_id) not in own:
                raise UnknownGroupMember(
                    f"{message.member or 'a consumer without a name'} does not read queue {queue_id} of"
                    f" topic {topic} in group {message.group}, which has members"
                )
        return group.generation

    def _answer_parked(self) -> None:
        waiting = []
        for each in self._parked:
            request, group = each.request, self._feed.state.groups.get(each.request.group, _NO_GROUP)
            own = [m.queues for m in group.members if m.member == request.member]
            is_new = group.generation != request.generation
            asked_for: tuple[QueueRow, ...] = ()
            if request.is_orderly:
                asked_for = self._asked_for.get(request.group, {}).get(request.member, ())
                is_new |= set(asked_for) != set(request.asked_for)
            if not (own and is_new) and self._now_ms < each.deadline_ms:
                waiting.append(each)
                continue
            queues = own[0] if own else ()
            each.session.answer(
                AssignmentResponse(
                    request_id=request.request_id,
                    generation=group.generation if own else -1,
                    queues=[(*queue, group.offsets.get(queue, -1)) for queue in queues],
                    resets=tuple(q for q in queues if group.resets.get(q, -1) > request.generation),
                    asked_for=asked_for,
                    session_ms=int(self._members.timeout_ms) if own else 0,
                )
            )
        self._parked = waiting

    # ---------------------------------------------------------------- queues

    def _settle(self) -> None:
        state, changes = self._feed.state, self._members.changes
        if self._settled_at[0] is not state.topics or self._settled_at[1] != changes:
            self._settled.clear()
            self._settled_at = state.topics, changes
        if self._settled_state is state and self._settled:
            return
        self._settled_state = state
        for name in self._asked_for.keys() - state.groups.keys():
            del self._asked_for[name]
        counts = {name: topic.queues for name, topic in state.topics.items()}
        for name, group in state.groups.items():
            # A commit changes the state, and nobody's queues.
            if name in self._assigning or self._settled.get(name) == group.generation:
                continue
            self._settled[name] = group.generation
            target = allocate(self._members.wants(name), counts, group.members)
            members, asked_for = with_held(target, self._members.held(name, group))
            self._asked_for[name] = asked_for
            # Also where it gets a queue that it has just given up: only a generation tells it so.
            if members != group.members or self._members.has_given_up(name, group):
                self._assign(Assign(name, group.generation + 1, members))

    def _assign(self, command: Assign) -> None:
        self._assigning.add(command.group)
        self._commits.flush(command.group)  # what the generation that ends has read

        def on_result(outcome: bytes | LedgerError) -> None:
            self._assigning.discard(command.group)
            self._settled.pop(command.group, None)
            self._settled_state = None
            if self._is_master and refusal_in(outcome) is None:
                self._settle()
                self._answer_parked()

        self._proposals.propose(command, on_result)
