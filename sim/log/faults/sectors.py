"""Sectors: pages of synced bytes that cannot be read any more, beside whatever else strikes."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from quorumlog.store.segments import DATA_NAME, INDEX_NAME, INDEX_UNIT_BYTES
from quorumlog.store.state_files import CHECKPOINT_NAME, DAMAGED_NAME
from quorumlog.testing.disk import PAGE_BYTES
from quorumlog.testing.faults import FaultGroup, Faults

if TYPE_CHECKING:
    from quorumlog.testing.member import SimMember

UNREADABLE_WHOLE = (DAMAGED_NAME, CHECKPOINT_NAME)
"""Small files of a directory of which a page may become unreadable, beside log, index and promises."""


class Sectors(FaultGroup):
    """Of a minority at most, and below the durable point."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(faults.context)
        self._faults = faults
        self._draw = Random(f"{self._context.extent.getstate()}: sectors")

    def begin(self) -> None:
        """In a part of the runs sectors of the disks go bad, beside whatever else strikes."""
        if self._profile.fault_kinds and self._draw.random() < 0.4:
            self._cluster.at(self._draw.uniform(0, 10_000), self._strike)

    def _strike(self) -> None:
        if self._cluster.is_faulty:
            self._unreadable_page()
            self._cluster.at(self._draw.expovariate(1 / 1_000), self._strike)

    def _unreadable_page(self) -> None:
        """A page of synced bytes cannot be read any more, from now on or since a power loss."""
        up = self._cluster.up()
        member = self._draw.choice(up) if up else None
        if member is None:
            return
        if self._draw.random() < 0.3:
            self._unreadable_behind_end(member)
            return
        durable = self._faults.damage.durable_point(member)
        if durable is None:
            return
        targets = self._faults.damage.targets(member, durable) + [
            (path, PAGE_BYTES)
            for path in (f"{member.path}/{name}" for name in UNREADABLE_WHOLE)
            if member.disk.exists(path)
        ]
        path, stop_position = self._draw.choice(targets)
        position = self._draw.randrange(stop_position) // PAGE_BYTES * PAGE_BYTES
        is_log = path.startswith((f"{member.path}/{DATA_NAME}/", f"{member.path}/{INDEX_NAME}/"))
        page_stop = min(position + PAGE_BYTES, member.disk.size_of(path))
        if is_log and page_stop > stop_position:
            return  # bytes above the durable point, too
        kind = "unreadable page"
        if self._draw.random() < 0.5:
            kind = "unreadable page after a power loss"
            member.lose_power()
            self._cluster.at(self._draw.uniform(0, 1_000), member.start)
        if not member.disk.exists(path) or position >= member.disk.size_of(path):
            return  # the power loss took the file, or so much of it
        member.disk.lose_page(path, position)
        member.is_damaged = True
        self._context.lose(member)
        self._faults.disks.stricken_until_ms[member.member_id] = (
            self._cluster.now_ms + 2 * member.sync_ms + 10
        )
        self._context.note(kind, f"{path} at {position}")

    def _unreadable_behind_end(self, member: SimMember) -> None:
        """A power loss tears a page of which nothing was synced: nothing is lost with it."""
        storage, end = self._profile.storage, member.node.store.end
        position, segment_bytes, name = end.position, storage.segment_bytes, DATA_NAME
        if self._draw.random() < 0.5:
            position = (end.index + 1) * INDEX_UNIT_BYTES + self._draw.randrange(4 * PAGE_BYTES)
            segment_bytes, name = storage.index_segment_bytes, INDEX_NAME
        offset = -(-(position % segment_bytes) // PAGE_BYTES) * PAGE_BYTES
        base = position // segment_bytes * segment_bytes
        path = f"{member.path}/{name}/{base:020d}"
        if offset >= segment_bytes or not member.disk.exists(path):
            return
        member.lose_power()
        self._cluster.at(self._draw.uniform(0, 1_000), member.start)
        if member.disk.exists(path) and offset < member.disk.size_of(path):
            member.disk.lose_page(path, offset)
            self._context.note("unreadable page behind the end", f"{path} at {offset}")
