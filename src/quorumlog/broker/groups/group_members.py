"""GroupMembers: who is there, in the memory of the master. What each of them reads is replicated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from quorumlog.broker.groups.allocation import Subscriptions
from quorumlog.broker.groups.group_state import Group, GroupState
from quorumlog.broker.wire.group_commands import QueueRow

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
    """Of all groups. Sans-IO: who makes this says what time it is, by `expire`. A member counts from
    after it was heard, never from before: it counts for itself from when it spoke."""

    timeout_ms: float = MEMBER_TIMEOUT_MS
    changes: int = 0
    """Counts whenever somebody comes, goes, or wants something else."""
    _groups: dict[str, dict[str, _Member]] = field(default_factory=dict)

    def begin(self, state: GroupState) -> None:
        """A master begins: whoever reads something is there until it was not heard of for a while; so a
        change of leader moves no queue."""
        self.changes += 1
        self._groups = {
            name: {each.member: _Member(each.topics) for each in group.members}
            for name, group in state.groups.items()
        }

    def end(self) -> None:
        self._groups.clear()

    def heard(
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
        told = _Member(topics, None, is_orderly, given_up, generation)
        if before is None or replace(before, seen_ms=None) != told:
            self.changes += 1
        members[member] = told
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

    def held(self, group: str, standing: Group) -> dict[QueueRow, str]:
        """Queues that no other member may have yet, and who works on them."""
        members, found = self._groups.get(group, {}), {}
        for each in standing.members:
            there = members.get(each.member)
            if there is not None and there.is_orderly:
                given_up = there.given_up if there.given_up_in == standing.generation else NOTHING
                found.update({queue: each.member for queue in each.queues if queue not in given_up})
        return found

    def has_given_up(self, group: str, standing: Group) -> bool:
        """Some member of it a queue that is its own by this generation."""
        members = self._groups.get(group, {})
        return any(
            there.given_up_in == standing.generation and not there.given_up.isdisjoint(each.queues)
            for each in standing.members
            if (there := members.get(each.member)) is not None
        )

    def wants(self, group: str) -> dict[str, Subscriptions]:
        """What each member wants to read."""
        return {name: each.topics for name, each in sorted(self._groups.get(group, {}).items())}
