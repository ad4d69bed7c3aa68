"""Acknowledgements: what slaves have acknowledged, and what follows: up to where the log is replicated,
and whether there are enough of them to take a message at all.

Two rules, of which one holds in a reign:

- *fixed*: every member of `in_sync_set` must have it. Somebody outside decides who is a member.
- *counted*: any `in_sync_replicas - 1` of the slaves that count must have it. A slave counts once every
  slave that counted before it has stored that it will: so who asks all that ever counted asks it, too.

A slave is a directory (`directory_id`): one that was wiped has acknowledged nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from quorumlog.broker.replication.roles import InSyncSet, Member


@dataclass(slots=True)
class Mark:
    """One slave's."""

    id: str
    directory_id: str
    is_connected: bool = True
    written_offset: int = 0
    flushed_offset: int = 0
    acknowledged_offset: int = 0
    """What counts of both."""
    counted_version: int = 0
    """The newest list of those that count that it has stored."""
    release: str = ""
    """Empty: it did not say it."""


@dataclass(slots=True)
class Acknowledgements:
    """`confirmed_offset` never falls."""

    own_id: str
    in_sync_replicas: int
    """The master included."""
    confirmed_offset: int
    in_sync_set: InSyncSet | None = None
    counted: dict[str, str] = field(default_factory=dict)
    """Directory ids of those that count, by id. All of them, also those that are away."""
    joining: dict[str, str] = field(default_factory=dict)
    """Those that will, once all that count and they themselves have stored it."""
    joining_version: int = 0
    known_to: frozenset[str] = frozenset()
    """Who has stored that those join before this reign began, and need not say so."""
    begun_at: int = 0
    """Where the log ended when this run began. A loss of power may have taken `confirmed_offset` back:
    what was acknowledged before lies below this all the same."""
    lowered_from: int = 0
    """Where `in_sync_replicas` was: so many have what is acknowledged still, until all that count have
    stored that fewer do. A slave that has not, and is alone one day, takes what it has for all."""
    lowered_version: int = 0
    marks: dict[str, Mark] = field(default_factory=dict)
    own_offset: int = 0
    """Up to where the master itself has it as safely as it promises."""

    @property
    def needed(self) -> int:
        return max(self.in_sync_replicas, self.lowered_from)

    def connected(self, slave_id: str, directory_id: str) -> Mark:
        """A slave has come. Of one that is there already the new connection counts."""
        mark = self.marks.get(slave_id)
        if mark is None or mark.directory_id != directory_id:
            mark = self.marks[slave_id] = Mark(slave_id, directory_id)
        mark.is_connected = True
        return mark

    def report(self, mark: Mark, written: int, flushed: int, acknowledged: int) -> bool:
        """True: more is replicated than before."""
        mark.written_offset = max(mark.written_offset, written)
        mark.flushed_offset = max(mark.flushed_offset, flushed)
        mark.acknowledged_offset = max(mark.acknowledged_offset, acknowledged)
        return self.advance()

    def advance(self) -> bool:
        held = self._held()
        held = -1 if held is None else min(held, self.own_offset)
        if held <= self.confirmed_offset:
            return False
        self.confirmed_offset = held
        return True

    def _held(self) -> int | None:
        """Up to where as many have it as the rule asks for; None: too few have ever come."""
        if self.in_sync_set is not None:
            if len(self._in_sync_ids()) < self.in_sync_replicas:
                return None
            others = [member for member in self.in_sync_set if member.id != self.own_id]
            return min(map(self._held_by, others), default=self._alone())
        needed = self.needed - 1
        if needed <= 0:
            return self._alone()
        offsets = sorted((mark.acknowledged_offset for mark in self._counting()), reverse=True)
        return offsets[needed - 1] if len(offsets) >= needed else None

    def _in_sync_ids(self) -> frozenset[str]:
        """While a wiped store takes the place of what it was, both are members under one id."""
        return frozenset(member.id for member in self.in_sync_set or ())

    def _held_by(self, member: Member) -> int:
        mark = self.marks.get(member.id)
        if mark is None or mark.directory_id != member.directory_id:
            return 0
        return mark.acknowledged_offset

    @staticmethod
    def _alone() -> int:
        return (1 << 63) - 1

    def _counting(self) -> Iterable[Mark]:
        for slave_id, directory_id in self.counted.items():
            mark = self.marks.get(slave_id)
            if mark is not None and mark.directory_id == directory_id:
                yield mark

    def missing(self, is_caught_up: Callable[[Mark], bool]) -> str:
        """Why a message is refused before it is written; empty: it is taken."""
        if self.in_sync_set is not None:
            ids = self._in_sync_ids()
            if len(ids) < self.in_sync_replicas:
                members = ", ".join(sorted(ids))
                return (
                    f"{len(ids)} replicas are in sync ({members}), the master included, of"
                    f" {self.in_sync_replicas} (in_sync_replicas)"
                )
            return ""
        there = 1 + sum(mark.is_connected and is_caught_up(mark) for mark in self._counting())
        if there >= self.needed:
            return ""
        known = {**self.counted, **self.joining}
        away = " and ".join(sorted(each for each in known if not self._is_there(each, known)))
        waits = "".join(
            f"; {each} is there with another directory than the one that counts: if that is lost for"
            f" good, quorumlog broker forget --slave {each}"
            for each in sorted(self.replaced())
        )
        if self.joining and away:
            waits += f"; {', '.join(sorted(self.joining))} will count once {away} has stored it"
        if self.lowered_from:
            waits += (
                f"; in_sync_replicas {self.in_sync_replicas} holds once it is stored by"
                f" {away or 'all that count'}; one that will not come back: quorumlog broker forget"
                " --slave ID"
            )
        return (
            f"{there} replicas are in sync, the master included, of {self.needed}"
            f" (in_sync_replicas){waits}"
        )

    def _is_there(self, slave_id: str, known: dict[str, str]) -> bool:
        mark = self.marks.get(slave_id)
        if mark is None or not mark.is_connected:
            return False
        return mark.directory_id == known.get(slave_id)

    # ---------------------------------------------------------------- who counts

    def wants_to_count(self, mark: Mark) -> bool:
        """It does not yet, and is not on its way. One with another directory than it counted with has
        forgotten what it promised, maybe to a newer master than this one: somebody who knows has to say
        that the old one is to be forgotten."""
        known = {**self.counted, **self.joining}
        return self.in_sync_set is None and not known.get(mark.id)

    def replaced(self) -> list[str]:
        """Ids of slaves that are there with another directory than the one that counts."""
        known = {**self.counted, **self.joining}
        return [
            mark.id
            for mark in self.marks.values()
            if mark.is_connected and known.get(mark.id) not in (None, "", mark.directory_id)
        ]

    def join(self, mark: Mark, version: int) -> dict[str, str]:
        """The list that everybody stores from now on, under this version."""
        self.joining[mark.id] = mark.directory_id
        self.joining_version = version
        self.known_to = frozenset()
        return {**self.counted, **self.joining}

    def stored(self, mark: Mark, version: int) -> bool:
        """A slave has stored a list. True: those that were joining count now."""
        mark.counted_version = max(mark.counted_version, version)
        if self.lowered_from and self._have_stored(self.lowered_version):
            self.lowered_from = 0
            self.advance()
        if not self.joining or not self._have_stored(self.joining_version, self.known_to):
            return False
        self.counted, self.joining = {**self.counted, **self.joining}, {}
        self.advance()
        return True

    def _have_stored(self, version: int, known_to: AbstractSet[str] = frozenset()) -> bool:
        for slave_id, directory_id in {**self.counted, **self.joining}.items():
            held = self.marks.get(slave_id)
            if slave_id not in known_to and (
                held is None or held.directory_id != directory_id or held.counted_version < version
            ):
                return False
        return True

    def holders_without(self, slave_id: str) -> int:
        """How many others that are on the list hold everything that was acknowledged; and another
        directory under its name, which takes its place there. Not those under others' names: the old
        ones may come back, and are what is asked."""
        asked = {**self.counted, **self.joining}
        return sum(
            self.holds(mark)
            for mark in self.marks.values()
            if mark.id in asked and (mark.id != slave_id) == (mark.directory_id == asked[mark.id])
        )

    def holds(self, mark: Mark) -> bool:
        """Everything that was acknowledged, as far as that can be known."""
        return mark.acknowledged_offset >= max(self.confirmed_offset, self.begun_at)

    def forget(self, slave_id: str) -> None:
        """It counts no more. Whoever asks for this has seen that nothing is lost by it."""
        self.counted.pop(slave_id, None)
        self.joining.pop(slave_id, None)
        if self.lowered_from and self._have_stored(self.lowered_version):
            self.lowered_from = 0
        self.advance()
