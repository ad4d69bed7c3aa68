"""OffsetCommits: what members commit, gathered: at most one entry a group and second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quorumlog.broker.wire.group_commands import CommitOffsets, OffsetRow
from quorumlog.errors import LedgerError

COMMIT_INTERVAL_MS = 1_000.0
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
    def __init__(self, propose: Propose, interval_ms: float = COMMIT_INTERVAL_MS) -> None:
        self._propose = propose
        self._interval_ms = interval_ms
        self._gathered: dict[str, _Gathered] = {}
        self._last_ms: dict[str, float] = {}

    def add(
        self,
        group: str,
        generation: int,
        member: str,
        rows: tuple[OffsetRow, ...],
        done: Done,
        now_ms: float,
    ) -> None:
        """`done` is told once the entry that holds them has taken effect."""
        gathered = self._gathered.get(group)
        if gathered is not None and gathered.generation != generation:
            self.flush(group, now_ms)
            gathered = None
        if gathered is None:
            gathered = self._gathered[group] = _Gathered(generation)
        highest = gathered.offsets.setdefault(member, {})
        for topic, queue_id, offset in rows:
            highest[topic, queue_id] = max(highest.get((topic, queue_id), 0), offset)
        gathered.waiting.append(done)
        if now_ms - self._last_ms.get(group, float("-inf")) >= self._interval_ms:
            self.flush(group, now_ms)

    def tick(self, now_ms: float) -> None:
        for group in list(self._gathered):
            if now_ms - self._last_ms.get(group, float("-inf")) >= self._interval_ms:
                self.flush(group, now_ms)

    def flush(self, group: str, now_ms: float) -> None:
        """At once: what follows ends the generation."""
        gathered = self._gathered.pop(group, None)
        if gathered is None:
            return
        self._last_ms[group] = now_ms
        members = tuple(
            (member, tuple((*queue, at) for queue, at in sorted(highest.items())))
            for member, highest in sorted(gathered.offsets.items())
        )

        def told(error: LedgerError | None) -> None:
            for done in gathered.waiting:
                done(error)

        self._propose(CommitOffsets(group, gathered.generation, members), told)

    def end(self, error: LedgerError) -> None:
        """This member is master no more."""
        gathered, self._gathered = self._gathered, {}
        self._last_ms.clear()
        for each in gathered.values():
            for done in each.waiting:
                done(error)
