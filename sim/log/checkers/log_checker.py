"""LogChecker: what only clients of our own runs do, beside what every `Checker` hears of."""

from __future__ import annotations

from quorumlog.testing.promises import Checker
from sim.log.operations import ClientEnd, ClientMove, ClientRead, FreshRead


class LogChecker(Checker):
    def read(self, read: ClientRead) -> None: ...

    def reader_asked(self, asked: ClientMove) -> None:
        """A reader is about to say something."""

    def reader_moved(self, asked: ClientMove) -> None:
        """`asked.outcome` has just been set."""

    def end_told(self, end: ClientEnd) -> None:
        """A leader has said how far the log goes."""

    def read_freshly(self, read: FreshRead) -> None:
        """A linearizable read was granted."""
