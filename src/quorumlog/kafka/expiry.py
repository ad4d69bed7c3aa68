"""OffsetExpiry: a leader has the log forget committed offsets of groups that are gone.

The leader alone knows which groups have members. Every now and then it writes that down, in entries
that also say how long offsets are kept. Which ones expire follows from those entries and from their
times by the log's clock, on every member alike. So a new leader, which knows of no member before they
have joined again, does not take their absence for more than one interval.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from quorumlog.errors import LedgerError
from quorumlog.kafka.groups import GroupCoordinator, GroupPhase
from quorumlog.kafka.machine import KeepKafkaOffsets

MOST_INTERVAL_MS = 600_000
"""As Kafka has it."""
LEAST_INTERVAL_MS = 1_000
NAMES = 500
"""Of one entry."""

Done = Callable[[tuple[bytes | None, ...] | LedgerError], None]


class OffsetExpiry:
    """Of a member while it leads."""

    def __init__(
        self,
        retention_ms: int,
        coordinator: GroupCoordinator,
        append: Callable[[KeepKafkaOffsets, Done], None],
    ) -> None:
        """`append`: writes an entry; `Done` gets what came of it."""
        self._retention_ms = retention_ms
        self._coordinator = coordinator
        self._append = append
        self._interval_ms = max(LEAST_INTERVAL_MS, min(MOST_INTERVAL_MS, retention_ms // 10))
        self._due_ms: int | None = None

    def tick(self, now_ms: int, groups: Collection[str]) -> None:
        """`groups`: those with committed offsets."""
        if self._due_ms is None:
            self._due_ms = now_ms + self._interval_ms
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + self._interval_ms
        if groups:
            self._write(
                [
                    each.group
                    for each in self._coordinator.list_groups()
                    if each.state != GroupPhase.EMPTY and each.group in groups
                ]
            )

    def _write(self, names: list[str]) -> None:
        """Nothing expires before all of them are known to have members."""
        rest = names[NAMES:]

        def done(results: tuple[bytes | None, ...] | LedgerError) -> None:
            if rest and not isinstance(results, LedgerError):
                self._write(rest)

        self._append(KeepKafkaOffsets(names[:NAMES], None if rest else self._retention_ms), done)
