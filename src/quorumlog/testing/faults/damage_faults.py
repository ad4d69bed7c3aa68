"""DamageFaults: synced bytes of a log or of a file of promises that change or cannot be read again."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from quorumlog.store.files.checkpoint_file import CHECKPOINT_NAME
from quorumlog.store.files.damaged_ranges import DAMAGED_NAME
from quorumlog.store.files.durable_file import DURABLE_NAME, read_durable_point
from quorumlog.store.files.hard_state_file import CURRTERM_NAME, HARD_STATE_NAME
from quorumlog.store.files.slot_file import SECTOR_BYTES, SLOT_BYTES
from quorumlog.store.ledger_store import LogPoint
from quorumlog.store.log.segment_list import DATA_NAME, INDEX_NAME
from quorumlog.store.log.segment_scan import INDEX_UNIT_BYTES
from quorumlog.testing.disk import PAGE_BYTES
from quorumlog.testing.faults.fault_context import FaultContext, FaultGroup, Kinds

if TYPE_CHECKING:
    from quorumlog.testing.member import SimMember

UNREADABLE_WHOLE = (DAMAGED_NAME, CHECKPOINT_NAME, CURRTERM_NAME)
"""Small files of a directory of which a page may become unreadable, beside log, index and promises."""


class DamageFaults(FaultGroup):
    """Of a minority at most, and below the durable point."""

    def __init__(self, context: FaultContext) -> None:
        super().__init__(context)
        self._sectors = Random(f"{context.random.getstate()}: sectors")
        self._stricken_until_ms: dict[str, float] = {}
        """Until then a member works on what it has read before one of its pages went bad."""

    def kinds(self) -> Kinds:
        return {kind: partial(self._change_bytes, kind) for kind in ("flipped bit", "zeroed page")}

    def begin_sectors(self) -> None:
        """In a part of the runs sectors of the disks go bad, beside whatever else strikes."""
        if self._profile.fault_kinds and self._sectors.random() < 0.4:
            self._cluster.at(self._sectors.uniform(0, 10_000), self._strike_sector)

    def _strike_sector(self) -> None:
        if self._cluster.is_faulty:
            self._unreadable_page()
            self._cluster.at(self._sectors.expovariate(1 / 1_000), self._strike_sector)

    def is_stricken(self, member: SimMember) -> bool:
        """It may have just looked at a page that has gone bad under it."""
        return self._cluster.now_ms < self._stricken_until_ms.get(member.member_id, 0.0)

    def _change_bytes(self, kind: str) -> None:
        """Of the log below the durable point, or of one slot of a file of promises: only the disk can
        have changed them."""
        member = self._context.anybody()
        durable = self._durable_point(member) if member is not None else None
        if member is None or durable is None:
            return
        if kind == "zeroed page":
            path, stop_position = self._random.choice(self._targets(member, durable))
            position = self._random.randrange(stop_position) // PAGE_BYTES * PAGE_BYTES
            is_slot = path.endswith((HARD_STATE_NAME, DURABLE_NAME))
            page_stop = min(position + PAGE_BYTES, len(member.disk.content(path)))
            if page_stop > (SLOT_BYTES if is_slot else stop_position):
                return  # bytes above the durable point, too
            member.disk.zero_page(path, position)
        elif self._random.random() < 0.3:
            path, stop_position = self._random.choice(self._targets(member, durable))
            if f"/{DATA_NAME}/" in path:
                return  # it might be behind a blank record, where nobody ever looks
            position = self._random.randrange(stop_position)
            member.disk.flip(path, position, 1 << self._random.randrange(8))
        else:
            index = self._random.randint(0, durable.index)
            if index <= member.node.store.begin.index:
                return
            entry = member.node.store.range_of(index, index + 1, 1)
            path = member.segment_path(entry.segment_position)
            position = entry.position - entry.segment_position + self._random.randrange(entry.size_bytes)
            member.disk.flip(path, position, 1 << self._random.randrange(8))
        member.is_damaged = True
        self._context.lose(member)
        self._context.note(kind, f"{path} at {position}")

    def _unreadable_page(self) -> None:
        """A page of synced bytes cannot be read any more, from now on or since a power loss."""
        up = [member for member in self._cluster.members if member.is_up]
        member = self._sectors.choice(up) if up else None
        if member is None:
            return
        if self._sectors.random() < 0.3:
            self._unreadable_behind_end(member)
            return
        durable = self._durable_point(member)
        if durable is None:
            return
        targets = self._targets(member, durable) + [
            (path, PAGE_BYTES)
            for path in (f"{member.path}/{name}" for name in UNREADABLE_WHOLE)
            if member.disk.exists(path)
        ]
        path, stop_position = self._sectors.choice(targets)
        position = self._sectors.randrange(stop_position) // PAGE_BYTES * PAGE_BYTES
        is_log = path.startswith((f"{member.path}/{DATA_NAME}/", f"{member.path}/{INDEX_NAME}/"))
        page_stop = min(position + PAGE_BYTES, member.disk.size_of(path))
        if is_log and page_stop > stop_position:
            return  # bytes above the durable point, too
        kind = "unreadable page"
        if self._sectors.random() < 0.5:
            kind = "unreadable page after a power loss"
            member.lose_power()
            self._cluster.at(self._sectors.uniform(0, 1_000), member.start)
        if not member.disk.exists(path) or position >= member.disk.size_of(path):
            return  # the power loss took the file, or so much of it
        member.disk.lose_page(path, position)
        member.is_damaged = True
        self._context.lose(member)
        self._stricken_until_ms[member.member_id] = self._cluster.now_ms + 2 * member.sync_ms + 10
        self._context.note(kind, f"{path} at {position}")

    def _unreadable_behind_end(self, member: SimMember) -> None:
        """A power loss tears a page of which nothing was synced: nothing is lost with it."""
        storage, end = self._profile.storage, member.node.store.end
        position, segment_bytes, name = end.position, storage.segment_bytes, DATA_NAME
        if self._sectors.random() < 0.5:
            position = (end.index + 1) * INDEX_UNIT_BYTES + self._sectors.randrange(4 * PAGE_BYTES)
            segment_bytes, name = storage.index_segment_bytes, INDEX_NAME
        offset = -(-(position % segment_bytes) // PAGE_BYTES) * PAGE_BYTES
        base = position // segment_bytes * segment_bytes
        path = f"{member.path}/{name}/{base:020d}"
        if offset >= segment_bytes or not member.disk.exists(path):
            return
        member.lose_power()
        self._cluster.at(self._sectors.uniform(0, 1_000), member.start)
        if member.disk.exists(path) and offset < member.disk.size_of(path):
            member.disk.lose_page(path, offset)
            self._context.note("unreadable page behind the end", f"{path} at {offset}")

    def _durable_point(self, member: SimMember) -> LogPoint | None:
        """Up to where bytes of its log may go bad; None: nowhere."""
        if member.is_damaged or not self._context.may_lose(member) or self._profile.is_async:
            return None
        durable = read_durable_point(member.disk.platter(), member.path)
        return durable.point if durable is not None and durable.point.position > 0 else None

    @staticmethod
    def _targets(member: SimMember, durable: LogPoint) -> list[tuple[str, int]]:
        """(path, bytes from its begin on) that may be changed."""
        targets = [(f"{member.path}/{name}", SECTOR_BYTES) for name in (HARD_STATE_NAME, DURABLE_NAME)]
        units_stop = (durable.index + 1) * INDEX_UNIT_BYTES
        for folder, stop in ((DATA_NAME, durable.position), (INDEX_NAME, units_stop)):
            prefix = f"{member.path}/{folder}/"
            for path in member.disk.paths():
                if path.startswith(prefix) and int(path[len(prefix) :]) < stop:
                    held = min(stop - int(path[len(prefix) :]), len(member.disk.content(path)))
                    targets += [(path, held)] * 3
        return [target for target in targets if target[1] > 0]
