"""OffsetCommits: what members commit. An entry leaves at once, unless one of the group is on its way:
what comes meanwhile is gathered, and leaves as the next one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from quorumlog.broker.wire.group_commands import CommitOffsets, OffsetRow
from quorumlog.errors import LedgerError

Done = Callable[[LedgerError | None], None]
Propose = Callable[[CommitOffsets, Done], None]


@dataclass(slots=True)
class _Gathered:
    """Of one generation of one group."""

    generation: int
    offsets: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    """The highest, by member and queue."""
    waiting: list[Done] = field(default_factory=list)


class OffsetCommits:
    def __init__(self, propose: Propose) -> None:
        self._propose = propose
        self._gathered: dict[str, _Gathered] = {}
        self._under_way: Counter[str] = Counter()
        """Entries of this master, by group: several only where a generation ends."""

    def add(
        self, group: str, generation: int, member: str, rows: tuple[OffsetRow, ...], done: Done
    ) -> None:
        """`done` is told once the entry that holds them has taken effect."""
        gathered = self._gathered.get(group)
        if gathered is not None and gathered.generation != generation:
            self.flush(group)
            gathered = None
        if gathered is None:
            gathered = self._gathered[group] = _Gathered(generation)
        highest = gathered.offsets.setdefault(member, {})
        for topic, queue_id, offset in rows:
            highest[topic, queue_id] = max(highest.get((topic, queue_id), 0), offset)
        gathered.waiting.append(done)
        if not self._under_way[group]:
            self.flush(group)

    def flush(self, group: str) -> None:
        """At once: what follows ends the generation."""
        gathered = self._gathered.pop(group, None)
        if gathered is None:
            return
        under_way = self._under_way
        under_way[group] += 1
        members = tuple(
            (member, tuple((*queue, at) for queue, at in sorted(highest.items())))
            for member, highest in sorted(gathered.offsets.items())
        )

        def told(error: LedgerError | None) -> None:
            under_way[group] -= 1
            if not under_way[group]:
                del under_way[group]
                if under_way is self._under_way:
                    self.flush(group)
            for done in gathered.waiting:
                done(error)

        self._propose(CommitOffsets(group, gathered.generation, members), told)

    def end(self, error: LedgerError) -> None:
        """This member is master no more."""
        gathered, self._gathered = self._gathered, {}
        self._under_way = Counter()
        for each in gathered.values():
            for done in each.waiting:
                done(error)
