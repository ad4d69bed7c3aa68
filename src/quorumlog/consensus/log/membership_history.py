"""MembershipHistory: which membership holds from which entry on. It stands beside the term runs.

A membership holds from the moment its entry is appended, committed or not, and no more once that is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumlog.consensus.membership import Membership
from quorumlog.entry import Replica


class MembershipHistory:
    def __init__(self) -> None:
        self._held: list[tuple[int, Membership]] = [(-1, Membership())]
        """(index of the entry, membership), ascending; the first is what the log begins with."""
        self.founding: tuple[Replica, ...] = ()
        self.newest = Membership()
        """The one at the log's end: it holds."""
        self.newest_index = -1
        """Of its entry; -1: the founding list."""
        self.changes = 0
        """So many times it has become another one."""

    @property
    def held(self) -> tuple[tuple[int, Membership], ...]:
        """(index of its entry, membership) of all that are known, ascending."""
        return tuple(self._held)

    def found(self, founding: tuple[Replica, ...]) -> None:
        """The group has formed."""
        self.founding = founding
        self.take([(-1, Membership.of(founding))])

    def take(self, held: Sequence[tuple[int, Membership]]) -> None:
        """What the log leads to was found out anew."""
        assert held and [index for index, _ in held] == sorted({index for index, _ in held}), held
        self._held = list(held)
        self._note()

    def append(self, index: int, membership: Membership) -> None:
        assert index > self.newest_index, (index, self._held[-1])
        self._held.append((index, membership))
        self._note()

    def truncate_from(self, index: int) -> None:
        """Where even the oldest that is known is cut, which takes a committed entry, whoever knows the
        log's state tells anew."""
        before = len(self._held)
        while len(self._held) > 1 and self._held[-1][0] >= index:
            self._held.pop()
        if len(self._held) != before:
            self._note()

    def holding_at(self, index: int) -> tuple[int, Membership]:
        """The one that an entry at `index` is under, and the index of its own entry."""
        held = [each for each in self._held if each[0] <= index]
        return held[-1] if held else self._held[0]

    def behind(self, index: int) -> tuple[Membership, ...]:
        """Those whose entries lie behind `index`."""
        return tuple(membership for at, membership in self._held if at > index)

    def _note(self) -> None:
        self.newest_index, self.newest = self._held[-1]
        self.changes += 1
