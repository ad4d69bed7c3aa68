"""GroupState: what the committed commands have made of topics and groups. Values are replaced, never
changed, so that another thread may look at them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from quorumlog.broker.errors import (
    ConsumerGroupExists,
    GroupInUse,
    StaleGeneration,
    TopicExists,
    UnknownConsumerGroup,
    UnknownGroupMember,
    UnknownTopic,
)
from quorumlog.broker.messages.message import SCHEDULE_TOPIC
from quorumlog.broker.old_log import OldState
from quorumlog.broker.wire.group_commands import (
    Assign,
    Assignment,
    Command,
    CommitOffsets,
    CreateGroup,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    ReleaseDelayed,
    ResetOffsets,
    SkipDelayed,
    TrimQueues,
    UpdateTopic,
)
from quorumlog.broker.wire.group_names import (
    LEVELS,
    READ,
    UNDELIVERED_TOPIC,
    WRITE,
    check_group_name,
    check_topic_name,
    dlq_topic,
    retry_topic,
)
from quorumlog.errors import BadRequest

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
    members: tuple[Assignment, ...] = ()
    offsets: dict[Queue, int] = {}
    """Committed, by queue."""
    resets: dict[Queue, int] = {}
    """The generation that began when a queue was reset last: members of older ones begin anew in it."""


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    """All of it, and what is saved."""

    topics: dict[str, Topic]
    groups: dict[str, Group]
    delayed: dict[int, int]
    """Where a delay level begins in its queue: its releases are counted from there; 0 if not named. Of a
    classic broker: how far it is released."""
    ended: frozenset[str] = frozenset()
    """Topics that were deleted: one of that name that is made again shows nothing of the old one. Of any
    other name all is shown, such as what a store held before it had groups."""


def empty_state() -> GroupState:
    return GroupState(
        {
            SCHEDULE_TOPIC: Topic(READ | WRITE, 0, (0,) * LEVELS),
            UNDELIVERED_TOPIC: Topic(READ | WRITE, 0, (0,)),
        },
        {},
        {},
    )


def begun_state(old: OldState | None) -> GroupState:
    """What the log begins with, below its first entry. `old`: of a store that it has taken over."""
    state = empty_state()
    if old is None:
        return state
    topics = {each.name: Topic(each.perm, 0, (0,) * each.queues) for each in old.topics}
    groups = {
        each.name: Group(offsets={(topic, queue): at for topic, queue, at in each.offsets})
        for each in old.groups
    }
    return _replace(state, topics={**topics, **state.topics}, groups=groups, delayed=dict(old.delayed))


def carry_out(state: GroupState, command: Command) -> tuple[GroupState, object]:
    """The state after it, and what it answers. Raises LedgerError, and nothing has changed then."""
    if isinstance(command, CommitOffsets):
        return _commit(state, command), None
    if isinstance(command, Assign):
        return _assign(state, command), command.generation
    if isinstance(command, CreateTopic):
        return _create_topic(state, command), None
    if isinstance(command, UpdateTopic):
        return _update_topic(state, command), None
    if isinstance(command, DeleteTopic):
        return _delete_topic(state, command.topic), None
    if isinstance(command, TrimQueues):
        return _trim(state, command), None
    if isinstance(command, CreateGroup):
        return _create_group(state, command), None
    if isinstance(command, DeleteGroup):
        return _delete_group(state, command.group), None
    if isinstance(command, ResetOffsets):
        return _reset(state, command)
    if isinstance(command, ReleaseDelayed):
        return _release(state, command), None
    assert isinstance(command, SkipDelayed), command
    return _skip(state, command), None


def _replace(state: GroupState, **changes: object) -> GroupState:
    return msgspec.structs.replace(state, **changes)


# ---------------------------------------------------------------- topics


def topic_of(state: GroupState, name: str) -> Topic:
    """Raises UnknownTopic."""
    topic = state.topics.get(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name}: quorumlog broker topic create {name}")
    return topic


def _begins(state: GroupState, name: str, given: tuple[int, ...], count: int) -> tuple[int, ...]:
    return (given + (0,) * count)[:count] if name in state.ended else (0,) * count


def _create_topic(state: GroupState, command: CreateTopic) -> GroupState:
    check_topic_name(command.topic)
    made = Topic(
        command.perm, command.retention_ms, _begins(state, command.topic, command.begins, command.queues)
    )
    there = state.topics.get(command.topic)
    if there is not None:
        if (there.queues, there.perm, there.retention_ms) == (made.queues, made.perm, made.retention_ms):
            return state  # said twice, since the first answer was lost
        raise TopicExists(f"topic {command.topic} stands with other settings: topic update changes them")
    return _replace(state, topics={**state.topics, command.topic: made})


def _update_topic(state: GroupState, command: UpdateTopic) -> GroupState:
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
    return _replace(state, topics={**state.topics, command.topic: changed})


def _delete_topic(state: GroupState, name: str) -> GroupState:
    check_topic_name(name)
    topic_of(state, name)
    return _without_topics(state, {name})


def _without_topics(state: GroupState, names: set[str]) -> GroupState:
    """What groups had committed of them is of no topic that may be made later."""
    groups = {
        group: msgspec.structs.replace(
            each,
            offsets={queue: at for queue, at in each.offsets.items() if queue[0] not in names},
            resets={queue: at for queue, at in each.resets.items() if queue[0] not in names},
        )
        for group, each in state.groups.items()
    }
    topics = {name: topic for name, topic in state.topics.items() if name not in names}
    return _replace(state, topics=topics, groups=groups, ended=state.ended | names)


def _trim(state: GroupState, command: TrimQueues) -> GroupState:
    begins: dict[str, list[int]] = {}
    for name, queue_id, offset in command.queues:
        topic = state.topics.get(name)
        if topic is not None and queue_id < topic.queues:
            of_topic = begins.setdefault(name, list(topic.begins))
            of_topic[queue_id] = max(of_topic[queue_id], offset)
    trimmed = {
        name: msgspec.structs.replace(state.topics[name], begins=tuple(of_topic))
        for name, of_topic in begins.items()
    }
    return _replace(state, topics={**state.topics, **trimmed})


# ---------------------------------------------------------------- groups


def group_of(state: GroupState, name: str) -> Group:
    """Raises UnknownConsumerGroup."""
    group = state.groups.get(name)
    if group is None:
        raise UnknownConsumerGroup(f"there is no consumer group {name}: its first consumer makes it")
    return group


def _with_group(state: GroupState, name: str, group: Group) -> GroupState:
    return _replace(state, groups={**state.groups, name: group})


def _create_group(state: GroupState, command: CreateGroup) -> GroupState:
    check_group_name(command.group)
    if command.group in state.groups:
        raise ConsumerGroupExists(f"there is a consumer group {command.group}")
    topics = dict(state.topics)
    for number, name in enumerate((retry_topic(command.group), dlq_topic(command.group))):
        begins = _begins(state, name, command.begins[number : number + 1], 1)
        topics[name] = Topic(READ | WRITE, 0, begins)
    return _with_group(_replace(state, topics=topics), command.group, Group())


def _delete_group(state: GroupState, name: str) -> GroupState:
    group = group_of(state, name)
    if group.members:
        raise GroupInUse(f"{len(group.members)} members read in group {name}: stop them first")
    rest = {each: value for each, value in state.groups.items() if each != name}
    return _without_topics(_replace(state, groups=rest), {retry_topic(name), dlq_topic(name)})


def _assign(state: GroupState, command: Assign) -> GroupState:
    group = group_of(state, command.group)
    if command.generation != group.generation + 1:
        raise StaleGeneration(
            f"generation {group.generation} of group {command.group} stands: {command.generation} does"
            " not follow it"
        )
    queues = [queue for member in command.members for queue in member.queues]
    if len(set(queues)) != len(queues):
        raise BadRequest(f"two members of group {command.group} were to read one queue")
    changed = msgspec.structs.replace(group, generation=command.generation, members=command.members)
    return _with_group(state, command.group, changed)


def _commit(state: GroupState, command: CommitOffsets) -> GroupState:
    group = group_of(state, command.group)
    if command.generation != group.generation:
        raise StaleGeneration(
            f"generation {group.generation} of group {command.group} stands, not {command.generation}:"
            " its queues were handed out anew"
        )
    owned: Mapping[str, frozenset[Queue]] = {
        member.member: frozenset(member.queues) for member in group.members
    }
    offsets = dict(group.offsets)
    for member, rows in command.members:
        if group.members and member not in owned:
            raise UnknownGroupMember(
                f"{member or 'a consumer without a name'} is no member of the group"
            )
        for topic, queue_id, offset in rows:
            queue = (topic, queue_id)
            if group.members and queue not in owned[member]:
                raise UnknownGroupMember(f"{member} does not read queue {queue_id} of topic {topic}")
            if topic in state.topics and queue_id < state.topics[topic].queues:
                offsets[queue] = max(offsets.get(queue, 0), offset)
    return _with_group(state, command.group, msgspec.structs.replace(group, offsets=offsets))


def _reset(state: GroupState, command: ResetOffsets) -> tuple[GroupState, int]:
    group = group_of(state, command.group)
    generation, offsets, resets = group.generation + 1, dict(group.offsets), dict(group.resets)
    for topic, queue_id, offset in command.offsets:
        if queue_id >= topic_of(state, topic).queues:
            raise UnknownTopic(f"topic {topic} has no queue {queue_id}")
        offsets[topic, queue_id] = offset
        resets[topic, queue_id] = generation
    changed = Group(generation, group.members, offsets, resets)
    return _with_group(state, command.group, changed), changed.generation


# ---------------------------------------------------------------- what is delayed


def _skip(state: GroupState, command: SkipDelayed) -> GroupState:
    begin = state.delayed.get(command.level, 0)
    if command.from_offset != begin or command.to_offset <= begin:
        raise StaleGeneration(f"delay level {command.level} begins at {begin}")
    return _replace(state, delayed={**state.delayed, command.level: command.to_offset})


def _release(state: GroupState, command: ReleaseDelayed) -> GroupState:
    delayed = dict(state.delayed)
    for level, offset in command.levels:
        delayed[level] = max(delayed.get(level, 0), offset)
    return _replace(state, delayed=delayed)
