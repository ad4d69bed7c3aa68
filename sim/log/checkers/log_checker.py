"""LogChecker: what only clients of our own runs do, beside what every `Checker` hears of."""

from __future__ import annotations

from quorumlog.log_state.users import UserOrder, Users
from quorumlog.testing.promises import CheckedMember, Checker
from sim.log.operations import ClientEnd, ClientMove, ClientRead, FreshRead, Served


class LogChecker(Checker):
    def read(self, read: ClientRead) -> None: ...

    def reader_asked(self, request: ClientMove) -> None:
        """A reader is about to say something."""

    def reader_moved(self, request: ClientMove) -> None:
        """`request.outcome` has just been set."""

    def end_told(self, end: ClientEnd) -> None:
        """A leader has said how far the log goes."""

    def read_freshly(self, read: FreshRead) -> None:
        """A linearizable read was granted."""

    def users_looked_at(self, member: CheckedMember, users: Users | None) -> None:
        """By these its port lets people in from now on; None: it lets nobody in."""

    def served(self, member: CheckedMember, served: Served) -> None: ...

    def admin_left(self, member: CheckedMember, order: UserOrder) -> None:
        """In the directory of this member, which is down."""
