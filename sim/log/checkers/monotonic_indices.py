"""Indices of one process: what is committed never falls, and none is ahead of what it rests on."""

from __future__ import annotations

from quorumlog.consensus.ready import Ready
from quorumlog.entry import Replica
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker, Violation


class MonotonicIndices(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._floors: dict[Replica, tuple[int, int, int]] = {}
        """(begin, committed, committed and durable) of each directory's process at its last turn."""

    def started(self, member: CheckedMember) -> None:
        self._floors.pop(member.replica, None)
        self.turned(member)

    def ready(self, member: CheckedMember, ready: Ready) -> None:
        cut_index = ready.truncate_from
        if cut_index is None:
            return
        begin, committed, both = self._floors[member.replica]
        committed = max(committed, member.node.committed_index)
        if cut_index > committed:
            return
        if not (ready.loses_committed and self.cluster.profile.is_async):
            raise Violation(
                f"{member.replica} in term {member.node.raft.term} cuts its log from {cut_index} on,"
                f" although entries up to {committed} are committed"
            )
        self._floors[member.replica] = (begin, cut_index - 1, min(both, cut_index - 1))

    def turned(self, member: CheckedMember) -> None:
        node = member.node
        store = node.store
        begin, end = store.begin.index, store.end.index
        committed, both = node.committed_index, node.durable_committed_index
        durable = node.raft.log.durable_index
        on_disk = end if self.cluster.profile.is_async else store.durable.index
        floors = self._floors.get(member.replica)
        now = (begin, committed, both)
        if floors == now and both <= durable <= on_disk <= end:
            return
        self._floors[member.replica] = now
        for wrong, what in (
            (floors is not None and begin < floors[0], "ledger_begin fell"),
            (floors is not None and committed < floors[1], "committed_index fell"),
            (floors is not None and both < floors[2], "durable_committed_index fell"),
            (not begin <= committed and committed >= 0, "the log begins above committed_index"),
            (committed > end, "committed_index is above the end of the log"),
            (both > committed, "durable_committed_index is above committed_index"),
            (both > durable, "durable_committed_index is above durable_index"),
            (durable > on_disk, "durable_index is above what the store has on disk"),
            (on_disk > end, "the store's durable point is above the end of the log"),
        ):
            if wrong:
                raise Violation(
                    f"{member.replica} in term {node.raft.term}: {what}: begin {begin}, committed"
                    f" {committed}, durable {durable}, both {both}, on disk {on_disk}, end {end};"
                    f" (begin, committed, both) may not fall below {floors}"
                )
