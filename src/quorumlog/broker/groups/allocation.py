"""Which member of a group reads which queue: evenly, topic by topic, as RocketMQ's
AllocateMessageQueueAveragely does, with as many queues as possible left where they are."""

from __future__ import annotations

from collections.abc import Mapping

from quorumlog.broker.wire.group_commands import Assignment, QueueRow

Subscriptions = tuple[tuple[str, str], ...]
"""(topic, tags), by topic."""


def allocate(
    members: Mapping[str, Subscriptions],
    queues_of: Mapping[str, int],
    standing: tuple[Assignment, ...] = (),
) -> tuple[Assignment, ...]:
    """`queues_of`: number of queues by topic. Each queue of a topic is read by exactly one of those who
    want the topic, and nobody reads two queues of it more than another."""
    owner = {queue: each.member for each in standing for queue in each.queues}
    reads: dict[str, list[QueueRow]] = {member: [] for member in members}
    topics = sorted({topic for wanted in members.values() for topic, _ in wanted})
    for turn, topic in enumerate(topics):
        takers = sorted(m for m, wanted in members.items() if any(t == topic for t, _ in wanted))
        # Whoever gets one more differs from topic to topic, or the first would get most of them.
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
    """`held`: queues that stay with a member for now. What is assigned meanwhile, and what each of these
    members is asked for."""
    moved = {
        queue: each.member
        for each in target
        for queue in each.queues
        if held.get(queue, each.member) != each.member
    }
    asked_for: dict[str, list[QueueRow]] = {}
    for queue in sorted(moved):
        asked_for.setdefault(held[queue], []).append(queue)
    kept = tuple(
        Assignment(
            each.member,
            each.topics,
            tuple(sorted({*each.queues, *asked_for.get(each.member, ())} - _taken(moved, each.member))),
        )
        for each in target
    )
    return kept, {member: tuple(queues) for member, queues in asked_for.items()}


def _taken(moved: Mapping[QueueRow, str], member: str) -> set[QueueRow]:
    return {queue for queue, to in moved.items() if to == member}
