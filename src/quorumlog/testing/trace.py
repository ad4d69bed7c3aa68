"""Trace: what happened, as one number for comparison and, where asked for, as lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from isal.isal_zlib import crc32


class Trace:
    """Two runs of one seed have the same `hash`."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        """`tell` gets one line an event."""
        self.hash = 0
        self.events = 0
        self.counts: Counter[str] = Counter()
        """See `coverage`."""
        self._tell = tell

    def note(self, now_ms: float, who: str, what: str, detail: Callable[[], str] | str = "") -> None:
        """`detail` is only asked for when somebody listens, and is no part of the hash."""
        self.events += 1
        self.hash = crc32(f"{now_ms:.6f} {who} {what}".encode(), self.hash)
        if self._tell is not None:
            text = detail() if callable(detail) else detail
            self._tell(f"{now_ms:12.3f}  {who:9} {what}{'  ' if text else ''}{text}")

    def bytes_sent(self, data: bytes) -> None:
        self.hash = crc32(data, self.hash)

    def count(self, what: str) -> None:
        self.counts[what] += 1
