"""Checker: watches a run and raises `Violation` at the first thing that must not be.

A checker overrides what it needs to see. All calls come in the order of virtual time; none may change
anything. What a checker remembers of a member it keys by `member.replica` (a directory), not by name:
another directory under the same name has promised nothing.
"""

from __future__ import annotations

from quorumlog.consensus.messages import AnyPeerMessage
from quorumlog.consensus.ready import Envelope, Ready
from quorumlog.store.ledger_store import LogStart
from quorumlog.testing.checkers.view import CheckedCluster, CheckedMember
from quorumlog.testing.operations import (
    ClientAnswer,
    ClientAppend,
    ClientEnd,
    ClientMove,
    ClientRead,
    FreshRead,
)


class Violation(AssertionError):
    """A promise was broken; the message names it, the members and the values."""


class Checker:
    def __init__(self, cluster: CheckedCluster) -> None:
        self.cluster = cluster

    def started(self, member: CheckedMember) -> None:
        """`member.node` is up on its directory; nothing has been said or heard yet."""

    def stopped(self, member: CheckedMember) -> None:
        """The process is gone (killed, power lost, failed or stopped); `member.node` is still the old
        one for the time of this call."""

    def put_back(self, member: CheckedMember) -> None:
        """It is down, and an older copy has taken the place of its directory."""

    def set_back(self, member: CheckedMember) -> None:
        """It was told that its directory is older than it was, and begins anew."""

    def ready(self, member: CheckedMember, ready: Ready) -> None:
        """The core gave out a Ready; nothing of it is carried out yet."""

    def sent(self, member: CheckedMember, envelope: Envelope) -> None:
        """A message is leaving now."""

    def parted(self, member: CheckedMember, message: AnyPeerMessage) -> None:
        """`member` closes a connection, for this message violates the protocol."""

    def replacing(self, member: CheckedMember, start: LogStart) -> None:
        """The log of the member is about to make way for one that begins behind `start`: its next
        process has either, and this one says nothing more."""

    def turned(self, member: CheckedMember) -> None:
        """A turn has ended; everything that it caused is carried out."""

    def appended(self, append: ClientAppend) -> None:
        """`append.outcome` has just been set."""

    def read(self, read: ClientRead) -> None: ...

    def reader_asked(self, asked: ClientMove) -> None:
        """A reader is about to say something."""

    def reader_moved(self, asked: ClientMove) -> None:
        """`asked.outcome` has just been set."""

    def end_told(self, end: ClientEnd) -> None:
        """A leader has said how far the log goes."""

    def read_freshly(self, read: FreshRead) -> None:
        """A linearizable read was granted."""

    def machine_answered(self, answer: ClientAnswer) -> None:
        """A state machine has answered a question."""

    def made_whole(self) -> None:
        """Faults have stopped, and the cluster had the time that it may take to become whole."""
