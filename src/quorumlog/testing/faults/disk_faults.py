"""DiskFaults: disks that are slow, refuse or are full, and directories that are gone or forget."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from quorumlog.consensus.ready import Role
from quorumlog.store.files.durable_file import DURABLE_NAME
from quorumlog.store.files.hard_state_file import HARD_STATE_NAME
from quorumlog.store.files.slot_file import SECTOR_BYTES, SLOT_BYTES
from quorumlog.store.log.segment_list import INDEX_NAME
from quorumlog.testing.faults.damage_faults import DamageFaults
from quorumlog.testing.faults.fault_context import FaultContext, FaultGroup, Kinds

if TYPE_CHECKING:
    from quorumlog.testing.member import SimMember

ROOMY_BYTES = 1 << 40


def make_room(member: SimMember) -> None:
    member.disk.capacity_bytes = ROOMY_BYTES
    member.disk.has_greedy_neighbour = False


class DiskFaults(FaultGroup):
    """A member that stops for one is started again by somebody."""

    def __init__(self, context: FaultContext, damage: DamageFaults) -> None:
        super().__init__(context)
        self._damage = damage
        self._neighbours = Random(f"{context.random.getstate()}: neighbours")
        self._index_files = Random(f"{context.random.getstate()}: index files")
        self._twins = self._cluster.stream("old directories")
        self._failing: set[str] = set()
        """Members whose disk has been told to refuse."""

    def kinds(self) -> Kinds:
        return {
            **self._context.striking({"slow disk": self._slow_disk, "failing sync": self._failing_sync}),
            "full disk": self._full_disk,
            "wipe": self._wipe,
            "lost hard state": lambda: self._lose_file(HARD_STATE_NAME),
            "lost durable point": lambda: self._lose_file(DURABLE_NAME),
        }

    def _slow_disk(self, member: SimMember) -> None:
        member.sync_ms = self._random.choice((100.0, 1000.0, 3000.0))

        def end() -> None:
            if self._cluster.is_faulty:
                member.sync_ms = self._profile.sync_ms

        self._cluster.at(self._context.duration_ms(), end)

    def _failing_sync(self, member: SimMember) -> None:
        path_part = self._random.choice(("/data/", "/index/", "durable", "hardstate", "/"))
        self.fail_next_sync(member, path_part)

    def fail_next_sync(self, member: SimMember, path_part: str) -> None:
        """Of a file whose path contains this; the member may stop for it."""
        self._failing.add(member.member_id)
        member.disk.fail_next_sync(path_part)

    def may_fail(self, member: SimMember) -> bool:
        """Whether it may stop, and try again with its next start: its disk was told to fail a sync, a
        page went bad under it just after it had looked there, or its disk is full while it forms, or has
        to note that it is older than it was. A full disk stops no other member."""
        is_formed = member.is_up and bool(member.node.directory.formation.founding)
        may_be_old = self._profile.has_lossy_disks
        is_full = member.disk.capacity_bytes < ROOMY_BYTES
        may_stop = member.member_id in self._failing or self._damage.is_stricken(member)
        return may_stop or (is_full and (may_be_old or not is_formed))

    def failed(self, member: SimMember) -> None:
        member.kill()
        self._context.restart_later(member)

    def refused(self, member: SimMember) -> None:
        """Somebody does what the message says, and the member is a new one."""
        assert member.is_damaged or self._profile.has_lossy_disks, (
            f"{member.member_id} refuses to start undamaged: {member.refusal}"
        )
        member.wipe()
        self._context.restart_later(member)

    def _full_disk(self) -> None:
        member = self._context.anybody()
        if member is None:
            return
        spare_bytes = self._random.choice((0, 4096, 16384))
        if self._context.extent.random() < 0.7:
            self._fill("full disk", [member], spare_bytes)
        else:
            self._fill("full disks", self._cluster.members, spare_bytes)

    def _fill(self, kind: str, members: Sequence[SimMember], spare_bytes: int) -> None:
        self._context.note(kind, " ".join(member.member_id for member in members))
        for member in members:
            usage = member.disk.usage("/")
            used_bytes = usage.total_bytes - usage.free_bytes
            member.disk.capacity_bytes = int(used_bytes / 0.9) + spare_bytes
        if self._neighbours.random() < 0.5:
            self._context.note("greedy neighbour")
            for member in members:
                member.disk.has_greedy_neighbour = True
        if self._index_files.random() < 0.3:
            self._lose_index_file(self._index_files.choice(members))

        def end() -> None:
            for member in members:
                make_room(member)

        self._cluster.at(3 * self._context.duration_ms(), end)

    def _lose_index_file(self, member: SimMember) -> None:
        """And the space that it had. The data says what it held."""
        prefix = f"{member.path}/{INDEX_NAME}/"
        paths = [path for path in member.disk.paths() if path.startswith(prefix)]
        if not member.is_up or member.is_damaged or not paths:
            return
        self._context.note("lost index file on a full disk", member.member_id)
        member.kill()
        member.disk.delete(self._index_files.choice(paths))
        usage = member.disk.usage("/")
        member.disk.capacity_bytes = usage.total_bytes - usage.free_bytes
        self._cluster.at(self._index_files.uniform(0, 500), member.start)

    def _wipe(self) -> None:
        member = self._context.anybody()
        if member is None or not self._context.may_lose(member):
            return
        self._context.note("wipe", member.member_id)
        self._context.lose(member)
        member.kill()
        copy = None if member.is_damaged else member.disk.snapshot()
        member.wipe()
        self._context.restart_later(member)
        after_ms = 0 if self._profile.has_lossy_disks else self._profile.auto_replace_after_ms
        if after_ms and copy is not None and self._twins.random() < 0.5:
            self._cluster.at(
                self._twins.uniform(0, 3 * after_ms), partial(self._bring_back, member, copy)
            )

    def _bring_back(self, member: SimMember, copy: dict[str, bytes]) -> None:
        """The machine was not lost: it starts again, and another one has its name by now. Not before
        there is a group: nobody forms one while two directories have one name."""
        members = self._cluster.members
        has_formed = any(m.is_up and m.node.raft.role is not Role.UNFORMED for m in members)
        if self._cluster.is_faulty and has_formed and len(members) < 2 * len(self._cluster.member_ids):
            self._context.note("an old directory is back", member.member_id)
            twin = self._cluster.add_twin(member)
            twin.disk.restore(copy)
            twin.start()

    def _lose_file(self, name: str) -> None:
        """Both slots of a file of promises unreadable, or the file gone."""
        member = self._context.anybody()
        if member is None or not self._context.may_lose(member):
            return
        self._context.note(
            f"lost {'hard state' if name == HARD_STATE_NAME else 'durable point'}", member.member_id
        )
        member.is_lost = True
        self._context.lose(member)
        self._context.end(member)
        path = f"{member.path}/{name}"
        if path in member.disk.paths():
            if self._random.random() < 0.3:
                member.disk.delete(path)
            else:
                for slot in (0, 1):
                    position = slot * SLOT_BYTES + self._random.randrange(SECTOR_BYTES)
                    member.disk.flip(path, position, 1 << self._random.randrange(8))
        self._context.restart_later(member)
