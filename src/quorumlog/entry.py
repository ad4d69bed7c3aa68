"""The nouns every package shares: which entry, of which kind, held by which member. Byte layouts live in
`quorumlog.batch`, decisions in `quorumlog.consensus`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import NamedTuple, Self

import msgspec


class EntryKind(IntEnum):
    """The table of kinds: the `magic` field of an entry on disk (docs/formats.md, data entry), its name,
    and which part reads it. A magic that is not in it is refused everywhere. All kinds but NORMAL are
    control entries: leaders write them, readers skip them."""

    NORMAL = 1
    """A body that a client appended. Clients read it."""
    NOOP = 2
    """Opens a leader's term; carries no body. The search for damage reads it."""
    # Bodies of those that follow: `quorumlog.log_state.control_entries`. 10 is kept free.
    MEMBERSHIP = 3
    """The voters. The log's state reads it, as it does all kinds below."""
    TIME = 4
    """Wall-clock time, never falling within a log."""
    OPEN = 5
    """A producer's epoch begins, or it is forgotten."""
    PRODUCER = 6
    """The next entries are of a producer's session."""
    READER = 7
    """Positions of readers that are known by name."""
    KEEP = 8
    """From where on nothing may be deleted."""
    MACHINE = 9
    """A state machine takes the entries of a channel from here on."""
    CLOCK = 11
    """An operator's reset: times count anew from here on."""
    STEP_OVER = 12
    """An operator's order: a state machine leaves one entry out."""
    LEVEL = 13
    """An upgrade is finished: entries of a level of the format that earlier releases do not know."""
    USERS = 14
    """Users, roles and grants."""


ENTRY_KINDS = frozenset(map(int, EntryKind))


class EntryId(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Index and term: two logs that hold the same id hold the same entries up to it."""

    index: int
    """Position in the log, from 0; -1 names the place before the first entry."""
    term: int
    """Term of the leader that created the entry; -1 where `index` is -1."""


NO_ENTRY = EntryId(-1, -1)


class Entry(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One entry as an application sees it."""

    index: int
    term: int
    body: bytes


class Replica(NamedTuple):
    """The voter: a data directory, not a name. A member whose directory was wiped has
    another `directory_id`: it cannot answer for promises that it has forgotten."""

    member_id: str
    directory_id: str


class SetBack(NamedTuple):
    """A directory was rolled back: an older copy was restored, or its disk lost synced data. It has lost
    votes and acknowledgements, also of terms unknown to the finder."""

    directory_id: str
    acknowledged_index: int
    """The last entry it acknowledged as synced to the leader that finds this."""
    held_index: int
    """Above this entry it holds nothing of the same log."""


class SnapshotId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One file of a state machine's state. Two members may save different bytes after the same entry."""

    name: str
    """Of the machine."""
    index: int
    """Of the last entry whose effects it holds."""
    total_bytes: int
    """Of the file."""
    digest: bytes
    """SHA-256 of the machine's saved state."""


class HardState(NamedTuple):
    """The state that must survive a crash for elections to be safe."""

    term: int
    voted_for: Replica | None
    """A vote whose directory is unknown (taken over from `currterm`) has directory id "?"."""


class Formation(NamedTuple):
    """How far the group has formed, as this member stored it (consensus/DESIGN.md, forming). `founding`
    and `cluster_id` are set together and never change once set."""

    pending: tuple[Replica, ...] = ()
    founding: tuple[Replica, ...] = ()
    cluster_id: str = ""
    pending_id: str = ""
    """The cluster id of `pending`; known only to forming members."""
    level: int = 0
    """Level of the log's format known to every founder; 0: not reported by all."""


class Durability(StrEnum):
    """The faults that an acknowledged append survives (docs/durability.md)."""

    SYNC = "sync"
    """A quorum has the bytes on disk: power loss of every member at once."""
    ASYNC = "async"
    """A quorum has handed the bytes to its operating system: the crash of every process at once."""
    MEMORY = "memory"
    """A quorum has the bytes in its processes: the crash of a minority."""


class EntryRange(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Entries of one term that follow each other."""

    first_index: int
    count: int
    term: int

    @property
    def indices(self) -> range:
        return range(self.first_index, self.first_index + self.count)


class AppendReceipt(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A committed append: entries `first_index` .. `first_index + count - 1`, all of `term`."""

    term: int
    first_index: int
    count: int
    durability: Durability
    ranges: tuple[EntryRange, ...] = ()
    """Set only for a producer's append that a crash has cut: the index ranges of its parts, in order.
    `first_index` is that of the first part, `term` that of the last. Empty: the entries are contiguous.
    """
    results: tuple[bytes | None, ...] = ()
    """The state machine's result of each entry; empty for an append without a state machine."""
    failures: tuple[tuple[int, str], ...] = ()
    """(position in `results`, reason) of each command that the state machine refused."""

    @property
    def last_index(self) -> int:
        if self.ranges:
            return self.ranges[-1].first_index + self.ranges[-1].count - 1
        return self.first_index + self.count - 1

    @classmethod
    def of_ranges(cls, ranges: Sequence[EntryRange], durability: Durability) -> Self:
        """Adjacent ranges are merged."""
        joined: list[EntryRange] = []
        for each in ranges:
            last = joined[-1] if joined else None
            if last is not None and (last.first_index + last.count, last.term) == (
                each.first_index,
                each.term,
            ):
                joined[-1] = EntryRange(last.first_index, last.count + each.count, last.term)
            else:
                joined.append(each)
        if not joined:
            return cls(-1, -1, 0, durability)
        count = sum(each.count for each in joined)
        several = tuple(joined) if len(joined) > 1 else ()
        return cls(joined[-1].term, joined[0].first_index, count, durability, several)

    @property
    def parts(self) -> tuple[EntryRange, ...]:
        """Where its entries lie, in their order: one part, almost always."""
        return self.ranges or (EntryRange(self.first_index, self.count, self.term),)

    @property
    def result(self) -> bytes | None:
        """The result of the only entry."""
        assert len(self.results) == 1, self
        return self.results[0]
