"""LossyDiskFaults: disks that forget what they have synced, on any number of members.

No log survives that where it strikes a majority.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quorumlog.store.durable_file import DURABLE_NAME, read_durable_point
from quorumlog.store.slot_file import SLOT_FILE_BYTES
from quorumlog.testing.faults import FaultGroup, Kinds

if TYPE_CHECKING:
    from quorumlog.testing.member import SimMember


class LossyDiskFaults(FaultGroup):
    def kinds(self) -> Kinds:
        return {"old copy": self._old_copy, "lying disk": self._lying_disk}

    def _old_copy(self) -> None:
        """Some directories are copied, all at once, and put back a while later: with their old id, and
        without what they have promised since."""
        copies = [(member, member.disk.snapshot()) for member in self._some_of(self._cluster.members)]

        def put_back() -> None:
            if self._cluster.is_faulty:
                for member, copy in copies:
                    self._context.note("old copy", member.member_id)
                    self._context.end(member)
                    member.disk.restore(copy)
                    self._cluster.notify("put_back", member)
                    self._context.restart_later(member)

        self._cluster.at(self._random.uniform(0, 5_000), put_back)

    def _lying_disk(self, looks: int = 50) -> None:
        """A power loss after which bytes are wrong that were synced. Above what is left of the durable
        point nothing tells them from a torn tail. Comes when some member has such bytes."""
        members = self._some_of([member for member in self._cluster.members if self._may_lie(member)])
        if not members and looks:
            self._cluster.at(10.0, lambda: self._lying_disk(looks - 1))
        for member in members:
            synced_position = member.node.store.durable.position
            member.lose_power()
            left = read_durable_point(member.disk, member.path)
            if left is not None and left.point.position < synced_position:
                position = self._random.randrange(left.point.position, synced_position)
                first = position % self._profile.storage.segment_bytes
                path = member.segment_path(position - first)
                member.disk.flip(path, first, 1 << self._random.randrange(8))
                self._context.note("lying disk", f"{path} at {first}")
            self._context.restart_later(member)

    @staticmethod
    def _may_lie(member: SimMember) -> bool:
        """Entries were synced since the durable point was."""
        path = f"{member.path}/{DURABLE_NAME}"
        return member.is_up and not member.disk.is_synced(path, 0, SLOT_FILE_BYTES)

    def _some_of(self, members: Sequence[SimMember]) -> list[SimMember]:
        up = [member for member in members if member.is_up]
        return self._random.sample(up, self._random.randint(1, len(up))) if up else []
