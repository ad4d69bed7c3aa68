"""Losses: what a run on lossy disks has cost, and which members have noticed; nothing is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumlog.batch import EntryBatch
from quorumlog.consensus.messages import AnyPeerMessage, PushEntryResponse, PushResult
from quorumlog.consensus.ready import Envelope, Role
from quorumlog.entry import AppendReceipt
from quorumlog.errors import LedgerError, ProtocolViolation, StoreFailure
from quorumlog.testing.operations import READ_BYTES, read_at_once
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker
from sim.log.operations import ClientRead

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster
    from quorumlog.testing.member import SimMember

IndexRange = tuple[int, int]
"""(first, last), both inclusive, as people read them."""


class Losses(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self.diverged: set[str] = set()
        """Members that said DIVERGED_BELOW_COMMIT, or closed a connection because of other entries."""

    def sent(self, member: CheckedMember, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, PushEntryResponse) and message.result is PushResult.DIVERGED_BELOW_COMMIT:
            self.diverged.add(member.member_id)

    def parted(self, member: CheckedMember, message: AnyPeerMessage) -> None:
        self.diverged.add(member.member_id)


def lost_entries(cluster: SimCluster) -> list[IndexRange]:
    """Acknowledged entries that are missing from the log with which the group goes on: that of the
    leader of the highest term, or the longest committed one while nobody leads.

    Every log is read to its end, as a client does it; the checkers look on.
    """
    up = cluster.up()
    logs = {member.member_id: _read_through(cluster, member) for member in up}
    best = max(up, key=_authority, default=None)
    shown = logs[best.member_id] if best is not None else {}
    lost: set[int] = set()
    for append in cluster.operations.appends:
        receipt = append.outcome
        if isinstance(receipt, AppendReceipt):
            indices = range(receipt.first_index, receipt.last_index + 1)
            lost.update(
                i for i, body in zip(indices, append.bodies, strict=True) if shown.get(i) != body
            )
    return _ranges(sorted(lost))


def _authority(member: SimMember) -> tuple[bool, int]:
    raft = member.node.raft
    leads = raft.role is Role.LEADER
    return leads, raft.term if leads else member.node.committed_index


def _read_through(cluster: SimCluster, member: SimMember) -> dict[int, bytes]:
    """Bodies of all committed entries that can be read, by index."""
    node, bodies = member.node, dict[int, bytes]()
    index = node.store.begin.index + 1
    while index <= node.committed_index:
        batch = _read(member, index, READ_BYTES) or _read(member, index, 1)
        if batch is None:
            index += 1
            continue
        read = ClientRead(member.member_id, index, batch, node.committed_index, cluster.now_ms)
        cluster.notify("read", read)
        bodies |= {index + at: bytes(body) for at, body in enumerate(batch.bodies())}
        index += batch.count
    return bodies


def _read(member: SimMember, first_index: int, limit_bytes: int) -> EntryBatch | None:
    """None if the member cannot show them all."""
    node = member.node
    try:
        batch = read_at_once(node, first_index, node.committed_index + 1, limit_bytes)
        batch.check_bodies()
    except (LedgerError, StoreFailure, ProtocolViolation):
        return None
    return batch


def _ranges(indices: list[int]) -> list[IndexRange]:
    ranges: list[IndexRange] = []
    for index in indices:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1] = (ranges[-1][0], index)
        else:
            ranges.append((index, index))
    return ranges
