"""What a master begins a reign with, and what it waits for when it starts again with another number."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from quorumlog.broker.replication.protocol.epoch_history import EpochHistory, judge
from quorumlog.broker.replication.protocol.ha_frames import Peer
from quorumlog.broker.replication.replica_file import ReplicaRecord, next_version


class Begin(NamedTuple):
    """What a master begins a reign with."""

    history: EpochHistory
    offset: int
    """Where its log ends."""
    counted: list[Peer]
    in_sync_replicas: int
    """As it is set; 0: it follows from `is_sync`."""
    is_sync: bool

    def is_held_by(self, me: Peer, history: EpochHistory, flushed_offset: int) -> bool:
        """Its log has it all, and it counts. Who does not count does not say who does: of two such each
        might find a next master."""
        if not any(
            (peer.id, peer.directory_id) == (me.id, me.directory_id)
            for peer in self.counted
            if not peer.has_to_join
        ):
            return False
        if not self.offset:
            return True
        return judge(history, flushed_offset, self.history, self.offset).common_offset >= self.offset


def replicas_needed(in_sync_replicas: int, is_sync: bool) -> int:
    """To acknowledge, the master included; 0: it is not set."""
    return in_sync_replicas or (2 if is_sync else 1)


def as_counted(record: ReplicaRecord) -> Peer:
    """Its master: one that was only heard of has to join as any other before it counts."""
    assert record.master is not None
    return replace(record.master, has_to_join=not record.has_met_master)


def started_with(needed: int, before: ReplicaRecord, record: ReplicaRecord, end: int) -> ReplicaRecord:
    """By so many is acknowledged from here on, in the same reign. Its slaves know of another number: one
    that hears of fewer too late would be taken for the next master without what it lacks. `end`: of the
    log."""
    held = max(before.in_sync_replicas, before.lowered_from)
    record = replace(
        record,
        in_sync_replicas=needed,
        lowered_from=held if needed < held else 0,
        waited_from=end if needed > before.in_sync_replicas == 1 else before.waited_from,
    )
    if (record.topics, record.in_sync_replicas) == (before.topics, before.in_sync_replicas):
        return record
    return replace(record, state_version=next_version(record))
