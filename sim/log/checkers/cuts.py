"""What is cut from a log is no committed entry, and nothing of it is left on the platter.

A member may not know yet that an entry is committed, and cutting it takes it from the majority all the
same: Raft cuts only where logs differ (paper, section 5.3). And bytes that a cut leaves after the new
end must not come back in a power loss.
"""

from __future__ import annotations

from quorumlog.consensus.ready import Ready
from quorumlog.store.segments import DATA_NAME, segment_name
from quorumlog.testing.promises import (
    CheckedCluster,
    CheckedMember,
    Checker,
    CommittedLog,
    EntryMark,
    Violation,
    mark_at,
)


class Cuts(Checker):
    def __init__(self, cluster: CheckedCluster, log: CommittedLog) -> None:
        super().__init__(cluster)
        self._log = log
        self._cut_in_turn: set[str] = set()

    def ready(self, member: CheckedMember, ready: Ready) -> None:
        index = ready.truncate_from
        if index is None:
            return
        self._cut_in_turn.add(member.member_id)
        if index >= self._log.safe_stop_index:
            return
        store, committed = member.node.store, self._log.at(index)
        held = mark_at(store, index)
        if held is None:  # its bytes are damaged, not its term: by Raft's log matching that is enough
            held = EntryMark(store.id_at(index).term, committed.chain)
        if held == committed:
            raise Violation(
                f"{member.replica} in term {member.node.raft.term} cuts its log from {index} on; it"
                f" holds {held} there, which is committed (up to {self._log.end_index})"
            )

    def stopped(self, member: CheckedMember) -> None:
        self._cut_in_turn.discard(member.member_id)  # a cut may be done in part then

    def turned(self, member: CheckedMember) -> None:
        if member.member_id not in self._cut_in_turn:
            return
        self._cut_in_turn.remove(member.member_id)
        end = member.node.store.end
        segment_bytes = member.node.config.storage.segment_bytes
        base = end.position // segment_bytes * segment_bytes
        path = f"{member.path}/{DATA_NAME}/{segment_name(base)}"
        first = end.position - base
        if path in member.disk.paths() and not member.disk.is_synced(path, first, segment_bytes):
            raise Violation(
                f"{member.replica} has cut its log; behind entry {end.index}, at {first} .. of {path},"
                " the platter holds something else than the cache"
            )
