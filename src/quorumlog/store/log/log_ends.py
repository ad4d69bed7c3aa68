"""LogEnds: from where to where the log of a store goes, shared by the parts of it."""

from __future__ import annotations

from quorumlog.store.ledger_store import LogPoint


class LogEnds:
    """Written by the store's thread only. Another thread reads one field at a time, and looks again at
    `truncations` before it believes what it has found."""

    def __init__(self, begin: LogPoint, end: LogPoint) -> None:
        """Everything up to `end` is on disk."""
        self.begin = begin
        self.end = end
        self.durable = end
        self.truncations = 0
