"""What was on a directory's disk is there at its next start, whatever ended the process before.

Under `flush = async` the same holds of what the store has synced; what it had only written may be
gone after a power loss, and from then on counts as forgotten (`CommittedLog.forgotten_from`).
"""

from __future__ import annotations

from quorumlog.consensus.ready import Ready
from quorumlog.entry import Replica
from quorumlog.store.ledger_store import LogPoint, LogStart
from quorumlog.testing.checkers.checker import Checker, Violation
from quorumlog.testing.checkers.committed_log import CommittedLog, mark_at
from quorumlog.testing.checkers.view import CheckedCluster, CheckedMember


class DurableEntries(Checker):
    def __init__(self, cluster: CheckedCluster, log: CommittedLog) -> None:
        super().__init__(cluster)
        self._log = log
        self.on_disk: dict[Replica, LogPoint] = {}
        """By directory: up to where its entries are synced. Stays when the directory is lost."""
        self._written: dict[Replica, LogPoint] = {}
        self._replacing: dict[Replica, LogPoint] = {}
        """Where the log of a directory begins if its next process finds it replaced."""

    def turned(self, member: CheckedMember) -> None:
        store = member.node.store
        self.on_disk[member.replica] = store.durable
        self._written[member.replica] = store.end

    stopped = turned
    """A process may have acknowledged in the turn that killed it."""

    def ready(self, member: CheckedMember, ready: Ready) -> None:
        """A cut takes entries back by order, and may be done in part when the process ends."""
        if ready.truncate_from is None:
            return
        for points in (self.on_disk, self._written):
            point = points.get(member.replica)
            if point is not None and point.index >= ready.truncate_from:
                mark = mark_at(member.node.store, ready.truncate_from - 1)
                if mark is None:
                    del points[member.replica]
                else:
                    points[member.replica] = LogPoint(ready.truncate_from - 1, *mark, -1)

    def replacing(self, member: CheckedMember, start: LogStart) -> None:
        self._replacing[member.replica] = start.point

    def put_back(self, member: CheckedMember) -> None:
        for points in (self.on_disk, self._written):
            for replica in [replica for replica in points if replica.member_id == member.member_id]:
                del points[replica]

    def started(self, member: CheckedMember) -> None:
        end = member.node.store.end
        replacing = self._replacing.pop(member.replica, None)
        if replacing is not None and member.node.store.begin == replacing:
            # What the old log had on disk was cut with it; whether it may go `Installs` has judged.
            self.turned(member)
            return
        on_disk, written = self.on_disk.get(member.replica), self._written.get(member.replica)
        if on_disk is not None:
            self._check_held(member, on_disk, "synced")
        if written is not None and self.cluster.profile.is_async:
            if end.index < written.index and member.lost_power:
                self._log.forget_from(end.index + 1)
                self.cluster.trace.count("async: a power loss took entries")
            else:
                self._check_held(member, written, "written")
        self.turned(member)

    def _check_held(self, member: CheckedMember, point: LogPoint, how: str) -> None:
        end = member.node.store.end
        if end.index < point.index:
            raise Violation(
                f"{member.replica} had {how} entry {point.index} (term {point.term}) before it ended; it"
                f" starts with a log that ends at {end.index} (term {end.term})"
            )
        held = mark_at(member.node.store, point.index)
        if held is not None and held != (point.term, point.chain):
            raise Violation(
                f"{member.replica} had {how} entry {point.index} as (term, chain)"
                f" {(point.term, point.chain)} before it ended; it starts with {held}"
            )
