"""The cluster is whole again: one leader, and the same bytes at every member that is up, from where
both logs exist."""

from __future__ import annotations

from collections.abc import Sequence

from quorumlog.consensus.ready import Role
from quorumlog.node import LedgerNode
from quorumlog.store.log.segment_list import DATA_NAME, segment_name
from quorumlog.testing.checkers.checker import Checker, Violation
from quorumlog.testing.checkers.view import CheckedMember


def is_apart(node: LedgerNode, leader: LedgerNode) -> bool:
    """It is another directory of the leader's name, and no member: the two have no connection."""
    same_name = node.replica.member_id == leader.replica.member_id and node.replica != leader.replica
    return same_name and node.replica not in leader.status().membership.members()


def leader_of_one_log(nodes: Sequence[LedgerNode]) -> LedgerNode | None:
    """Whom all of these follow, with the same log committed to its end on every disk; None: nobody."""
    leaders = [node for node in nodes if node.raft.role is Role.LEADER]
    if len(leaders) != 1:
        return None
    leader, end = leaders[0], leaders[0].store.end
    agreed = all(
        node.raft.leader == leader.replica
        and node.store.end == end
        and node.durable_committed_index == end.index
        for node in nodes
        if not is_apart(node, leader)
    )
    return leader if agreed else None


class Convergence(Checker):
    def made_whole(self) -> None:
        up = [member for member in self.cluster.members if member.is_up]
        leaders = [member for member in up if member.node.raft.role is Role.LEADER]
        if len(leaders) != 1:
            states = {m.member_id: (m.node.raft.role.value, m.node.raft.term) for m in up}
            raise Violation(f"after the faults there are {len(leaders)} leaders: {states}")
        leader = leaders[0]
        for member in up:
            if not is_apart(member.node, leader.node):
                self._compare(leader, member)

    def _compare(self, leader: CheckedMember, member: CheckedMember) -> None:
        node, end = member.node, leader.node.store.end
        followed = (node.raft.leader, node.raft.term)
        if followed != (leader.replica, leader.node.raft.term):
            raise Violation(
                f"{member.replica} follows (leader, term) {followed}; {leader.replica} leads term"
                f" {leader.node.raft.term}"
            )
        if node.store.end != end:
            raise Violation(
                f"the log of {member.replica} ends with {node.store.end}, that of the leader"
                f" {leader.replica} with {end}"
            )
        indices = (node.committed_index, node.durable_committed_index)
        if indices != (end.index, end.index):
            raise Violation(
                f"{member.replica} has committed, and committed on its disk, {indices} of a log that"
                f" ends at {end.index}"
            )
        if leader.node.config.store == "memory":
            return  # there are no files; the chain at the end speaks for every entry
        segment_bytes = leader.node.config.storage.segment_bytes
        # Each may begin elsewhere: from the higher begin on they are the same.
        first = max(leader.node.store.begin.position, node.store.begin.position)
        for base in range(first, end.position, segment_bytes):
            self._compare_segment(leader, member, f"{DATA_NAME}/{segment_name(base)}")

    def _compare_segment(self, leader: CheckedMember, member: CheckedMember, name: str) -> None:
        ours = leader.disk.content(f"{leader.path}/{name}")
        theirs = member.disk.content(f"{member.path}/{name}")
        if ours == theirs:
            return
        length = min(len(ours), len(theirs))
        at = next((i for i in range(length) if ours[i] != theirs[i]), length)
        raise Violation(
            f"{name} differs between {leader.replica} and {member.replica} from byte {at} on:"
            f" {ours[at : at + 16].hex()} and {theirs[at : at + 16].hex()}, lengths {len(ours)} and"
            f" {len(theirs)}"
        )
