"""InSyncMembers: who is in the in-sync set, and whom the master waits for, which is never fewer.

A slave is waited for before the coordinator may come to hold it as a member, and until the coordinator
is known to hold it no more. So whoever takes the lease by the coordinator's record has every message
that was acknowledged, whatever became of a change that was not answered.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumlog.broker.replication.roles import InSyncSet, Member, SlaveState

Members = dict[str, str]
"""Directory ids by broker."""


def members_of(*held: Members) -> InSyncSet:
    return frozenset(Member(*each) for members in held for each in members.items())


class InSyncMembers:
    def __init__(self, own_id: str, members: Members, timeout_ms: float, now_ms: float) -> None:
        """`members`: as the coordinator holds them."""
        self._own_id = own_id
        self._timeout_ms = timeout_ms
        self.members = members
        self._joining = set[Member]()
        """Waited for, so that what they hold now they hold when they are members."""
        self._undecided: list[Members] = []
        """What the coordinator may come to hold yet: changes that were sent."""
        self._caught_up_ms = dict.fromkeys(members_of(members), now_ms)
        """When a slave was seen to lack nothing, or its time began."""

    @property
    def waited_for(self) -> InSyncSet:
        return members_of(self.members, *self._undecided) | self._joining

    def look(self, slaves: Sequence[SlaveState], now_ms: float) -> Members | None:
        """Once in a while. Returns what the coordinator ought to hold, None where it does for sure."""
        for slave in slaves:
            if slave.is_caught_up:
                # One that says nothing is connected for long: what it lacks since when counts.
                since_ms = self._caught_up_ms.get(slave.member, float("-inf"))
                self._caught_up_ms[slave.member] = max(since_ms, now_ms - slave.lag_ms)
        held = members_of(self.members)
        late = {each for each in held if each.id != self._own_id and self._is_late(each, now_ms)}
        joining = {
            slave.member
            for slave in slaves
            if slave.is_caught_up and slave.holds_confirmed
            if slave.id != self._own_id and slave.member not in held
            if not self._is_late(slave.member, now_ms)
        }
        wanted = dict(sorted(held - late)) | dict(joining & self._joining)
        self._joining = joining
        # One whose fate is not known is settled by another: nothing sent before comes behind it.
        return wanted if wanted != self.members or self._undecided else None

    def _is_late(self, member: Member, now_ms: float) -> bool:
        return now_ms - self._caught_up_ms.setdefault(member, now_ms) > self._timeout_ms

    def sent(self, wanted: Members) -> None:
        """The coordinator is asked for it."""
        self._undecided.append(wanted)

    def holds(self, members: Members) -> None:
        """The coordinator holds these, in a later revision than any change before was made for: none of
        those can come any more."""
        self.members = members
        self._undecided.clear()
