"""OffsetExpiry: a leader expires committed offsets of groups without members, by entries of the log.

Only the leader knows which groups have members. It writes them periodically into entries, with the
retention of offsets. Which offsets expire follows from those entries and their times by the log's clock,
so it is the same on every member. A new leader knows no members until they have joined again, so its
first entry is written an interval later and says that it is the first: from it on, time begins anew for
groups that were in use before. So an outage counts as no absence, however long. A leader whose process
was stopped meanwhile does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from quorumlog.errors import LedgerError
from quorumlog.kafka.groups import GroupCoordinator, GroupPhase
from quorumlog.kafka.machine import KeepKafkaOffsets

MOST_INTERVAL_MS = 600_000
"""Kafka's default."""
LEAST_INTERVAL_MS = 1_000
NAMES = 500
"""Most groups of one entry."""

Done = Callable[[tuple[bytes | None, ...] | LedgerError], None]


class OffsetExpiry:
    """Runs on the leader."""

    def __init__(
        self,
        retention_ms: int,
        coordinator: GroupCoordinator,
        append: Callable[[KeepKafkaOffsets, Done], None],
    ) -> None:
        """`append` writes an entry; `Done` receives the result."""
        self._retention_ms = retention_ms
        self._coordinator = coordinator
        self._append = append
        self._interval_ms = max(LEAST_INTERVAL_MS, min(MOST_INTERVAL_MS, retention_ms // 10))
        self._due_ms: int | None = None
        self._is_first = True

    def tick(self, now_ms: int, groups: Collection[str]) -> None:
        """`groups`: the groups with committed offsets."""
        if self._due_ms is None or now_ms >= self._due_ms + self._interval_ms:
            # It leads since now, or its process was stopped, and the members have to join again.
            self._due_ms = now_ms + self._interval_ms
            self._is_first = True
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
        """Write the groups with members, in several entries if needed; offsets expire by the last one
        only."""
        rest = names[NAMES:]

        def done(results: tuple[bytes | None, ...] | LedgerError) -> None:
            if isinstance(results, LedgerError):
                return
            self._is_first = False
            if rest:
                self._write(rest)

        retention_ms = None if rest else self._retention_ms
        self._append(KeepKafkaOffsets(names[:NAMES], retention_ms, self._is_first), done)
