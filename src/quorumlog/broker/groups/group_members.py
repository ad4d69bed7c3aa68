"""GroupMembers: who is there, in the memory of the master. What each of them reads is replicated."""

from __future__ import annotations

from dataclasses import dataclass, field

from quorumlog.broker.groups.allocation import Subscriptions
from quorumlog.broker.groups.group_state import GroupState

MEMBER_TIMEOUT_MS = 10_000.0
MOST_MEMBERS = 1_000
"""Of one group."""


@dataclass(slots=True)
class _Member:
    topics: Subscriptions
    seen_ms: float


@dataclass(slots=True)
class GroupMembers:
    """Of all groups. Sans-IO: who makes this says what time it is."""

    timeout_ms: float = MEMBER_TIMEOUT_MS
    changes: int = 0
    """Counts whenever somebody comes, goes, or wants something else."""
    _groups: dict[str, dict[str, _Member]] = field(default_factory=dict)

    def begin(self, state: GroupState, now_ms: float) -> None:
        """A master begins: whoever reads something is there until it was not heard of for a while; so a
        change of leader moves no queue."""
        self.changes += 1
        self._groups = {
            name: {each.member: _Member(each.topics, now_ms) for each in group.members}
            for name, group in state.groups.items()
        }

    def end(self) -> None:
        self._groups.clear()

    def heard(self, group: str, member: str, topics: Subscriptions, now_ms: float) -> bool:
        """False: the group has as many members as it may."""
        members = self._groups.setdefault(group, {})
        if member not in members and len(members) >= MOST_MEMBERS:
            return False
        if member not in members or members[member].topics != topics:
            self.changes += 1
        members[member] = _Member(topics, now_ms)
        return True

    def left(self, group: str, member: str) -> None:
        if self._groups.get(group, {}).pop(member, None) is not None:
            self.changes += 1

    def expire(self, now_ms: float) -> None:
        for members in self._groups.values():
            late = [name for name, each in members.items() if now_ms - each.seen_ms > self.timeout_ms]
            for name in late:
                del members[name]
                self.changes += 1

    def wants(self, group: str) -> dict[str, Subscriptions]:
        """What each member wants to read."""
        return {name: each.topics for name, each in sorted(self._groups.get(group, {}).items())}
