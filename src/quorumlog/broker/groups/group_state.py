"""Topics, consumer groups and their offsets: the state computed from the commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from quorumlog.batch import EntryBatch
from quorumlog.broker import group_commands as commands
from quorumlog.broker.broker_port import Puts
from quorumlog.broker.errors import (
    ConsumerGroupExists,
    GroupInUse,
    StaleGeneration,
    TopicExists,
    TopicNotPermitted,
    UnknownConsumerGroup,
    UnknownGroupMember,
    UnknownTopic,
)
from quorumlog.broker.group_commands import (
    LEVELS,
    READ,
    UNDELIVERED_TOPIC,
    WRITE,
    check_group_name,
    check_topic_name,
    decode_command,
    decode_question,
    dlq_topic,
    done,
    refused,
    retry_topic,
)
from quorumlog.broker.message import SCHEDULE_TOPIC
from quorumlog.broker.offline.old_log import OldState
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.log_files import PutOutcome
from quorumlog.errors import BadRequest, LedgerError, ProtocolViolation
from quorumlog.log_state.users import NO_USERS, Users, change_of
from quorumlog.state_machine import ApplyFailure, Result, SnapshotReader, SnapshotWriter, StateMachine
from quorumlog.wire.field_names import UNREADABLE

# ---------------------------------------------------------------- GroupState
# What the committed commands have made of topics and groups. Values are replaced, never changed, so
# that another thread may look at them.

Queue = tuple[str, int]


class Topic(msgspec.Struct, frozen=True, array_like=True):
    perm: int
    retention_ms: int
    begins: tuple[int, ...]
    """Of each queue: nothing below is shown."""

    @property
    def queues(self) -> int:
        return len(self.begins)


class Group(msgspec.Struct, frozen=True, array_like=True):
    generation: int = 0
    members: tuple[commands.Assignment, ...] = ()
    offsets: dict[Queue, int] = {}
    """Committed, by queue."""
    resets: dict[Queue, int] = {}
    """The generation that began when a queue was reset last: members of older ones begin anew in it."""


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    """The whole state, as saved."""

    topics: dict[str, Topic]
    groups: dict[str, Group]
    delayed: dict[int, int]
    """Where a delay level begins in its queue: its releases are counted from there; 0 if not named. Of a
    classic broker: how far it is released."""
    ended: frozenset[str] = frozenset()
    """Topics that were deleted: a new one of that name shows no old messages. Other names show all, such
    as messages from before a store had groups."""
    users: Users = NO_USERS
    """Of a classic broker; those of one on a replicated log are its log's."""


def begun_state(old: OldState | None) -> GroupState:
    """The state before the log's first entry. `old`: of a store that was taken over."""
    topics = {
        SCHEDULE_TOPIC: Topic(READ | WRITE, 0, (0,) * LEVELS),
        UNDELIVERED_TOPIC: Topic(READ | WRITE, 0, (0,)),
    }
    if old is None:
        return GroupState(topics, {}, {})
    taken = {each.name: Topic(each.perm, 0, (0,) * each.queues) for each in old.topics}
    groups = {
        each.name: Group(offsets={(topic, queue): at for topic, queue, at in each.offsets})
        for each in old.groups
    }
    return GroupState(taken | topics, groups, dict(old.delayed))


def carry_out(state: GroupState, command: commands.Command) -> tuple[GroupState, object]:
    """The state after it, and its answer. Raises LedgerError, and nothing has changed then."""
    changed = _EFFECTS[type(command)](state, command)
    if isinstance(command, commands.Assign | commands.ResetOffsets):
        return changed, changed.groups[command.group].generation
    return changed, None


# ---------------------------------------------------------------- topics


def topic_of(state: GroupState, name: str) -> Topic:
    """Raises UnknownTopic."""
    topic = state.topics.get(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name}: quorumlog broker topic create {name}")
    return topic


def _begins(state: GroupState, name: str, begins: tuple[int, ...], count: int) -> tuple[int, ...]:
    return (begins + (0,) * count)[:count] if name in state.ended else (0,) * count


def _create_topic(state: GroupState, command: commands.CreateTopic) -> GroupState:
    check_topic_name(command.topic)
    there = state.topics.get(command.topic)
    if there is not None:
        wanted = command.queues, command.perm, command.retention_ms
        if (there.queues, there.perm, there.retention_ms) == wanted:
            return state  # said twice, since the first answer was lost
        raise TopicExists(f"topic {command.topic} exists with other settings: topic update changes them")
    begins = _begins(state, command.topic, command.begins, command.queues)
    made = Topic(command.perm, command.retention_ms, begins)
    return replace(state, topics={**state.topics, command.topic: made})


def _update_topic(state: GroupState, command: commands.UpdateTopic) -> GroupState:
    check_topic_name(command.topic)
    there = topic_of(state, command.topic)
    queues = command.queues or there.queues
    if queues < there.queues:
        raise BadRequest(
            f"topic {command.topic} has {there.queues} queues, which may be read still: not {queues}"
        )
    begins = there.begins + _begins(state, command.topic, command.begins, queues)[there.queues :]
    changed = Topic(
        there.perm if command.perm is None else command.perm,
        there.retention_ms if command.retention_ms is None else command.retention_ms,
        begins,
    )
    return replace(state, topics={**state.topics, command.topic: changed})


def _delete_topic(state: GroupState, command: commands.DeleteTopic) -> GroupState:
    check_topic_name(command.topic)
    topic_of(state, command.topic)
    return _without_topics(state, {command.topic})


def _without_topics(state: GroupState, names: set[str]) -> GroupState:
    """What groups had committed of them is of no topic that may be made later."""

    def rest(numbers: dict[Queue, int]) -> dict[Queue, int]:
        return {queue: number for queue, number in numbers.items() if queue[0] not in names}

    groups = {
        group: replace(each, offsets=rest(each.offsets), resets=rest(each.resets))
        for group, each in state.groups.items()
    }
    topics = {name: topic for name, topic in state.topics.items() if name not in names}
    return replace(state, topics=topics, groups=groups, ended=state.ended | names)


def _trim(state: GroupState, command: commands.TrimQueues) -> GroupState:
    begins: dict[str, list[int]] = {}
    for name, queue_id, offset in command.queues:
        topic = state.topics.get(name)
        if topic is not None and queue_id < topic.queues:
            of_topic = begins.setdefault(name, list(topic.begins))
            of_topic[queue_id] = max(of_topic[queue_id], offset)
    trimmed = {name: replace(state.topics[name], begins=tuple(its)) for name, its in begins.items()}
    return replace(state, topics={**state.topics, **trimmed})


# ---------------------------------------------------------------- groups


def group_of(state: GroupState, name: str) -> Group:
    """Raises UnknownConsumerGroup."""
    group = state.groups.get(name)
    if group is None:
        raise UnknownConsumerGroup(f"there is no consumer group {name}: its first consumer makes it")
    return group


def _with_group(state: GroupState, name: str, group: Group) -> GroupState:
    return replace(state, groups={**state.groups, name: group})


def _create_group(state: GroupState, command: commands.CreateGroup) -> GroupState:
    check_group_name(command.group)
    if command.group in state.groups:
        raise ConsumerGroupExists(f"there is a consumer group {command.group}")
    topics = dict(state.topics)
    for number, name in enumerate((retry_topic(command.group), dlq_topic(command.group))):
        begins = _begins(state, name, command.begins[number : number + 1], 1)
        topics[name] = Topic(READ | WRITE, 0, begins)
    return _with_group(replace(state, topics=topics), command.group, Group())


def _delete_group(state: GroupState, command: commands.DeleteGroup) -> GroupState:
    name, group = command.group, group_of(state, command.group)
    if group.members:
        raise GroupInUse(f"{len(group.members)} members read in group {name}: stop them first")
    rest = {each: value for each, value in state.groups.items() if each != name}
    return _without_topics(replace(state, groups=rest), {retry_topic(name), dlq_topic(name)})


def _assign(state: GroupState, command: commands.Assign) -> GroupState:
    group = group_of(state, command.group)
    if command.generation != group.generation + 1:
        raise StaleGeneration(
            f"the generation of group {command.group} is {group.generation}: {command.generation} does"
            " not follow it"
        )
    queues = [queue for member in command.members for queue in member.queues]
    if len(set(queues)) != len(queues):
        raise BadRequest(f"two members of group {command.group} were to read one queue")
    changed = replace(group, generation=command.generation, members=command.members)
    return _with_group(state, command.group, changed)


def _commit(state: GroupState, command: commands.CommitOffsets) -> GroupState:
    group = group_of(state, command.group)
    if command.generation != group.generation:
        raise StaleGeneration(
            f"the generation of group {command.group} is {group.generation}, not {command.generation}:"
            " its queues were assigned anew"
        )
    owned = {member.member: frozenset(member.queues) for member in group.members}
    offsets = dict(group.offsets)
    for member, rows in command.members:
        if group.members and member not in owned:
            name = member or "a consumer without a name"
            raise UnknownGroupMember(f"{name} is no member of the group")
        for topic, queue_id, offset in rows:
            queue = (topic, queue_id)
            if group.members and queue not in owned[member]:
                raise UnknownGroupMember(f"{member} does not read queue {queue_id} of topic {topic}")
            if topic in state.topics and queue_id < state.topics[topic].queues:
                offsets[queue] = max(offsets.get(queue, 0), offset)
    return _with_group(state, command.group, replace(group, offsets=offsets))


def _reset(state: GroupState, command: commands.ResetOffsets) -> GroupState:
    group = group_of(state, command.group)
    generation, offsets, resets = group.generation + 1, dict(group.offsets), dict(group.resets)
    for topic, queue_id, offset in command.offsets:
        if queue_id >= topic_of(state, topic).queues:
            raise UnknownTopic(f"topic {topic} has no queue {queue_id}")
        offsets[topic, queue_id] = offset
        resets[topic, queue_id] = generation
    return _with_group(state, command.group, Group(generation, group.members, offsets, resets))


# ---------------------------------------------------------------- what is delayed, and users


def _skip(state: GroupState, command: commands.SkipDelayed) -> GroupState:
    begin = state.delayed.get(command.level, 0)
    if command.from_offset != begin or command.to_offset <= begin:
        raise StaleGeneration(f"delay level {command.level} begins at {begin}")
    return replace(state, delayed={**state.delayed, command.level: command.to_offset})


def _release(state: GroupState, command: commands.ReleaseDelayed) -> GroupState:
    delayed = dict(state.delayed)
    for level, offset in command.levels:
        delayed[level] = max(delayed.get(level, 0), offset)
    return replace(state, delayed=delayed)


def _change_users(state: GroupState, command: commands.ChangeUsers) -> GroupState:
    return replace(
        state, users=state.users.changed(change_of(state.users, command.order, command.secret))
    )


_EFFECTS: Mapping[type, Callable[[GroupState, Any], GroupState]] = {
    commands.CreateTopic: _create_topic,
    commands.UpdateTopic: _update_topic,
    commands.DeleteTopic: _delete_topic,
    commands.TrimQueues: _trim,
    commands.CreateGroup: _create_group,
    commands.DeleteGroup: _delete_group,
    commands.Assign: _assign,
    commands.CommitOffsets: _commit,
    commands.ResetOffsets: _reset,
    commands.SkipDelayed: _skip,
    commands.ReleaseDelayed: _release,
    commands.ChangeUsers: _change_users,
}


# ---------------------------------------------------------------- GroupMachine
# Topics and groups as a state machine of the log.

GROUPS = "broker-groups"
FORMAT_BEFORE_USERS, FORMAT = 1, 2
_encode = msgspec.msgpack.Encoder().encode


class _SavedGroups(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    form: int
    topics: list[tuple[str, Topic]]
    groups: list[commands.GroupRow]
    delayed: dict[int, int]
    ended: list[str]
    users: Users = NO_USERS


_saved = msgspec.msgpack.Decoder(_SavedGroups)


class GroupFeed:
    """The state of a member, as far as it has applied: written by the thread that applies, read by the
    loop."""

    def __init__(self, old: OldState | None = None) -> None:
        """`old`: the state at the log's begin."""
        self.begun = begun_state(old)
        self.state = self.begun


class GroupMachine(StateMachine):
    version = 1
    """A command that is new raises it: a member that does not know that stops then. It does not take it
    for none, which would leave it with another state."""

    def __init__(self, feed: GroupFeed | None = None, *, has_users: bool = False) -> None:
        """`has_users`: of a classic broker, which has no log with users of its own."""
        self._has_users = has_users
        self._feed = feed or GroupFeed()
        self.state = self._feed.begun
        self._feed.state = self.state

    def apply(self, batch: EntryBatch, first_index: int) -> Sequence[Result]:
        results: list[Result] = []
        for index, body in zip(batch.headers()["index"].tolist(), batch.bodies(), strict=True):
            try:
                results.append(self.carry_out(body))
            except Exception as error:
                raise ApplyFailure(index) from error
        self._feed.state = self.state
        return results

    def carry_out(self, body: memoryview | bytes) -> bytes:
        """One command. Returns its answer."""
        try:
            command: commands.Command = decode_command(body)
        except UNREADABLE as error:
            return refused(BadRequest(f"no command of topics and groups: {error}"))
        if isinstance(command, commands.ChangeUsers) and not self._has_users:
            return refused(BadRequest("the users of this broker are those of its log"))
        try:
            self.state, answer = carry_out(self.state, command)
        except LedgerError as refusal:
            return refused(refusal)
        return done(answer)

    # ---------------------------------------------------------------- questions

    def query(self, question: bytes) -> bytes:
        try:
            return done(self._answer(question))
        except LedgerError as refusal:
            return refused(refusal)

    def _answer(self, question: bytes) -> object:
        try:
            decoded = decode_question(question)
        except UNREADABLE as error:
            raise BadRequest(f"no question to topics and groups: {error}") from None
        if isinstance(decoded, commands.TopicsQuestion):
            return topic_rows(self.state, decoded.topic)
        if isinstance(decoded, commands.GroupsQuestion):
            return group_rows(self.state, decoded.group)
        assert isinstance(decoded, commands.FreshnessProbe), decoded
        return None

    # ---------------------------------------------------------------- snapshots

    def save(self, writer: SnapshotWriter) -> None:
        writer.write(saved_bytes(self.state))

    def load(self, reader: SnapshotReader) -> None:
        self.state = loaded_state(reader.read())
        self._feed.state = self.state


class GroupMachines:
    """Makes the machine of a member, again and again."""

    version = GroupMachine.version

    def __init__(self, feed: GroupFeed) -> None:
        self._feed = feed

    def __call__(self) -> GroupMachine:
        return GroupMachine(self._feed)


def topic_rows(state: GroupState, name: str = "") -> list[commands.TopicRow]:
    """Raises UnknownTopic."""
    if name:
        topic_of(state, name)
    return [
        commands.TopicRow(each, topic.queues, topic.perm, topic.retention_ms, topic.begins)
        for each, topic in sorted(state.topics.items())
        if name in ("", each)
    ]


def group_rows(state: GroupState, name: str = "") -> list[commands.GroupRow]:
    """Raises UnknownConsumerGroup."""
    if name:
        group_of(state, name)
    return [
        commands.GroupRow(
            each,
            group.generation,
            group.members,
            tuple((*queue, at) for queue, at in sorted(group.offsets.items())),
            tuple((*queue, at) for queue, at in sorted(group.resets.items())),
        )
        for each, group in sorted(state.groups.items())
        if name in ("", each)
    ]


def saved_bytes(state: GroupState) -> bytes:
    """The same bytes for equal states, however they came to be."""
    has_users = state.users.is_on
    return _encode(
        (
            FORMAT if has_users else FORMAT_BEFORE_USERS,
            sorted(state.topics.items()),
            group_rows(state),
            dict(sorted(state.delayed.items())),
            sorted(state.ended),
            *((state.users,) if has_users else ()),
        )
    )


def loaded_state(data: bytes) -> GroupState:
    """Raises ProtocolViolation if it is not a saved state of this format."""
    try:
        saved = _saved.decode(data)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"these are no saved topics and groups: {error}") from None
    if saved.form not in (FORMAT_BEFORE_USERS, FORMAT):
        raise ProtocolViolation(f"saved topics and groups of format {saved.form}, not up to {FORMAT}")
    loaded = {
        row.group: Group(
            row.generation,
            row.members,
            {(t, q): at for t, q, at in row.offsets},
            {(t, q): at for t, q, at in row.resets},
        )
        for row in saved.groups
    }
    return GroupState(dict(saved.topics), loaded, saved.delayed, frozenset(saved.ended), saved.users)


class GroupTopics:
    """A `TopicTable`: the queues of this member's applied state, and what may be done with them. Any
    thread."""

    def __init__(self, feed: GroupFeed) -> None:
        self._feed = feed
        self._looked_at: Mapping[str, Topic] = {}
        self._not_writable: set[str] = set()
        """Of those."""

    def takes(self, key: QueueKey) -> bool:
        topic = self._feed.state.topics.get(key.topic)
        return topic is not None and 0 <= key.queue_id < topic.queues

    def counts(self) -> Mapping[str, int]:
        return {name: topic.queues for name, topic in self._feed.state.topics.items()}

    def begin(self, key: QueueKey) -> int | None:
        topic = self._feed.state.topics.get(key.topic)
        if topic is None or not 0 <= key.queue_id < topic.queues:
            return None
        return topic.begins[key.queue_id]

    def begin_to_read(self, key: QueueKey) -> int | None:
        """Raises TopicNotPermitted."""
        topic = self._feed.state.topics.get(key.topic)
        if topic is not None and not topic.perm & READ:
            raise TopicNotPermitted(f"topic {key.topic} may not be read: its permission is write-only")
        return self.begin(key)

    def check_writes(self, records: RecordBatch) -> None:
        """On the loop. Raises TopicNotPermitted."""
        topics = self._feed.state.topics
        if topics is not self._looked_at:
            self._looked_at = topics
            self._not_writable = {name for name, topic in topics.items() if not topic.perm & WRITE}
        if not self._not_writable or not len(records) or not records.columns.good.all():
            return
        for key, _ in records.queues:
            if key.topic in self._not_writable:
                raise TopicNotPermitted(
                    f"topic {key.topic} takes no messages: its permission is read-only"
                )


class CheckedPuts:
    """`Puts` of topics that may be written to."""

    def __init__(self, puts: Puts, topics: GroupTopics) -> None:
        self._puts = puts
        self._topics = topics

    def add(self, records: RecordBatch, waits: bool, answer: Callable[[PutOutcome], None]) -> None:
        try:
            self._topics.check_writes(records)
        except TopicNotPermitted as refusal:
            answer(refusal)
            return
        self._puts.add(records, waits, answer)
