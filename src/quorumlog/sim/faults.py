"""Faults: what strikes a cluster, for how long, and how fairly.

Fair means that a minority is lost at most: members whose directory was wiped, that forgot what they had
promised, or whose synced bytes were changed, count together until the end of the run. Old copies put
back and disks that lie strike any number of members, in the runs that have them (`LOSSY_DISK_KINDS`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from quorumlog.sim.inode import PAGE_BYTES
from quorumlog.sim.link_faults import LinkFaults
from quorumlog.store.files.checkpoint_file import CHECKPOINT_NAME
from quorumlog.store.files.damaged_ranges import HEALING_NAME
from quorumlog.store.files.durable_file import DURABLE_NAME, read_durable_point
from quorumlog.store.files.hard_state_file import CURRTERM_NAME, HARD_STATE_NAME
from quorumlog.store.files.slot_file import SECTOR_BYTES, SLOT_BYTES, SLOT_FILE_BYTES
from quorumlog.store.ledger_store import LogPoint
from quorumlog.store.log.segment_list import DATA_NAME, INDEX_NAME
from quorumlog.store.log.segment_scan import INDEX_UNIT_BYTES

if TYPE_CHECKING:
    from quorumlog.sim.cluster import SimCluster
    from quorumlog.sim.member import SimMember

ROOMY_BYTES = 1 << 40
UNREADABLE_WHOLE = (HEALING_NAME, CHECKPOINT_NAME, CURRTERM_NAME)
"""Small files of a directory of which a page may become unreadable, beside log, index and promises."""

Ways = set[tuple[str, str]]


def make_room(member: SimMember) -> None:
    member.disk.capacity_bytes = ROOMY_BYTES
    member.disk.has_greedy_neighbour = False


class Faults:
    """Strikes again and again until `stop`; what has begun then ends at once."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._random = cluster.random
        self._extent = Random()
        self._extent.setstate(cluster.random.getstate())
        """A stream of its own: what is drawn here moves nothing else of a seed's run."""
        self._sectors = Random(f"{cluster.random.getstate()}: sectors")
        self._neighbours = Random(f"{cluster.random.getstate()}: neighbours")
        self._profile = cluster.profile
        self._links = LinkFaults(cluster)
        self._stricken_until_ms: dict[str, float] = {}
        """Until then a member works on what it has read before one of its pages went bad."""
        self._dying: dict[str, str] = {}
        """How a member ends when its disk says that now is the moment."""
        self._failing: set[str] = set()
        """Members whose disk has been told to refuse."""
        self._kinds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "power loss": self._power_loss,
            "power loss of all": self._power_loss_of_all,
            "crash at an effect": self._crash_at_an_effect,
            "crash while starting": self._crash_while_starting,
            "clean stop": self._clean_stop,
            "pause": self._pause,
            "partition": self._partition,
            "one-way cut": self._one_way_cut,
            "bridge": self._bridge,
            "majorities ring": self._majorities_ring,
            "reset": self._reset,
            "flapping": self._flapping,
            "slow disk": self._slow_disk,
            "failing sync": self._failing_sync,
            "full disk": self._full_disk,
            "clock jump": self._clock_jump,
            "clock drift": self._clock_drift,
            "transfer": self._transfer,
            "wipe": self._wipe,
            "lost hard state": lambda: self._lose_file(HARD_STATE_NAME),
            "lost durable point": lambda: self._lose_file(DURABLE_NAME),
            "flipped bit": lambda: self._damage("flipped bit"),
            "zeroed page": lambda: self._damage("zeroed page"),
            "old copy": self._old_copy,
            "lying disk": self._lying_disk,
        }

    def begin(self) -> None:
        self._links.begin()
        if self._profile.fault_kinds:
            self._begin()

    def _begin(self) -> None:
        self._cluster.at(self._random.expovariate(1 / self._profile.fault_every_ms), self._strike)

    def begin_sectors(self) -> None:
        """In a part of the runs sectors of the disks go bad, beside whatever else strikes."""
        if self._profile.fault_kinds and self._sectors.random() < 0.4:
            self._cluster.at(self._sectors.uniform(0, 10_000), self._strike_sector)

    def _strike_sector(self) -> None:
        if self._cluster.is_faulty:
            self._unreadable_page()
            self._cluster.at(self._sectors.expovariate(1 / 1_000), self._strike_sector)

    def _strike(self) -> None:
        if self._cluster.is_faulty:
            self._kinds[self._random.choice(self._profile.fault_kinds)]()
            self._begin()

    def stop(self) -> None:
        cluster = self._cluster
        cluster.network.heal(set(cluster.network.cut))
        self._links.stop()
        self._dying.clear()
        for member in cluster.members:
            member.disk.crash_countdown = None
            make_room(member)
            member.disk.fail_no_sync()
            member.sync_ms = min(self._profile.sync_ms, 5.0)
            member.set_clock(rate=1.0)
            cluster.at(self._random.uniform(0, 100), member.start)

    # ---------------------------------------------------------------- whom and how long

    def _note(self, kind: str, who: str = "") -> None:
        self._cluster.trace.count(f"fault: {kind}")
        self._cluster.trace.note(self._cluster.now_ms, "fault", f"{kind} {who}")

    def _duration_ms(self) -> float:
        timeout_ms = self._profile.consensus.election_timeout_ms
        return self._random.choice((0.1, 0.5, 1.5, 4.0)) * timeout_ms * self._random.random()

    def _anybody(self) -> SimMember | None:
        up = [member for member in self._cluster.members if member.is_up]
        leaders = [member for member in up if member.node.raft.role.value == "leader"]
        if leaders and self._random.random() < 0.4:
            return self._random.choice(leaders)
        return self._random.choice(up) if up else None

    def _may_lose(self, member: SimMember) -> bool:
        lost = {m.member_id for m in self._cluster.members if m.is_lost or m.is_damaged}
        lost.add(member.member_id)
        return len(lost) <= (len(self._cluster.members) - 1) // 2

    def _restart_later(self, member: SimMember) -> None:
        self._cluster.at(self._duration_ms(), member.start)

    # ---------------------------------------------------------------- processes and machines

    def _kill(self) -> None:
        member = self._anybody()
        if member is not None:
            self._note("kill", member.member_id)
            member.kill()
            self._restart_later(member)

    def _power_loss(self) -> None:
        member = self._anybody()
        if member is not None:
            self._note("power loss", member.member_id)
            member.lose_power()
            self._restart_later(member)

    def _power_loss_of_all(self) -> None:
        self._note("power loss of all")
        for member in self._cluster.members:
            if member.is_up:
                member.lose_power()
            self._restart_later(member)

    def _crash_at_an_effect(self) -> None:
        member = self._anybody()
        if member is not None:
            self._crash_within(member, 60)
            self._note("crash at an effect", member.member_id)

    def _crash_while_starting(self) -> None:
        member = self._anybody()
        if member is not None:
            self._note("crash while starting", member.member_id)
            member.kill() if self._random.random() < 0.5 else member.lose_power()
            self._crash_within(member, 40)
            self._restart_later(member)

    def _crash_within(self, member: SimMember, most_effects: int) -> None:
        how = self._random.choice(("kill", "power loss"))
        self.crash_at_effect(member, self._random.randint(1, most_effects), how)

    def crash_at_effect(self, member: SimMember, effects: int, how: str) -> None:
        """`how`: "kill" or "power loss", in the effect of this number from now on (1: the next one)."""
        self._dying[member.member_id] = how
        member.disk.crash_random = self._random
        member.disk.crash_countdown = effects

    def crashed(self, member: SimMember) -> None:
        """The disk has said that now is the moment."""
        how = self._dying.pop(member.member_id, "kill")
        member.disk.crash_countdown = None
        if how == "kill":
            member.kill()
        else:
            member.lose_power()
        self._restart_later(member)

    def _clean_stop(self) -> None:
        member = self._anybody()
        if member is not None:
            self._note("clean stop", member.member_id)
            if self._profile.stops_with_successor:
                if member.node.raft.role.value == "leader":
                    self._note("clean stop of a leader", member.member_id)
                member.terminate(partial(self._restart_later, member))
            else:
                member.stop()
                self._restart_later(member)

    def _pause(self) -> None:
        member = self._anybody()
        if member is not None:
            self._note("pause", member.member_id)
            member.pause(self._duration_ms())

    def _clock_jump(self) -> None:
        member = self._anybody()
        if member is not None:
            self._note("clock jump", member.member_id)
            member.set_clock(jump_ms=self._duration_ms())

    def _clock_drift(self) -> None:
        member = self._anybody()
        if member is not None:
            self._note("clock drift", member.member_id)
            member.set_clock(rate=self._random.choice((0.7, 0.95, 1.05, 1.5)))

    def _transfer(self) -> None:
        member = self._anybody()
        if member is not None:
            to = self._random.choice(self._cluster.members).member_id
            self._note("transfer", f"{member.member_id} to {to}")
            node = member.node
            member.enter(lambda: node.transfer(to, lambda outcome: None))

    # ---------------------------------------------------------------- network

    def _cut(self, kind: str, ways: Ways, who: str) -> None:
        network = self._cluster.network
        self._note(kind, who)
        network.cut |= ways
        self._cluster.at(2 * self._duration_ms(), lambda: network.heal(ways))

    def _ids(self) -> list[str]:
        ids = [member.member_id for member in self._cluster.members]
        self._random.shuffle(ids)
        return ids

    def _partition(self) -> None:
        ids = self._ids()
        half = set(ids[: self._random.randint(1, max(1, len(ids) // 2))])
        ways = {(a, b) for a in ids for b in ids if (a in half) != (b in half)}
        self._cut("partition", ways, str(sorted(half)))

    def _one_way_cut(self) -> None:
        member = self._anybody()
        if member is None:
            return
        me, others = member.member_id, [i for i in self._ids() if i != member.member_id]
        outward = self._random.random() < 0.5
        chosen = others[: self._random.randint(1, max(1, len(others)))]
        ways = {(me, other) if outward else (other, me) for other in chosen}
        self._cut("one-way cut", ways, f"{me} {'to' if outward else 'from'} {sorted(chosen)}")

    def _bridge(self) -> None:
        """Two halves that only one member sees both of."""
        ids = self._ids()
        if len(ids) < 3:
            return
        bridge, rest = ids[0], ids[1:]
        left = set(rest[: len(rest) // 2])
        ways = {(a, b) for a in rest for b in rest if (a in left) != (b in left)}
        self._cut("bridge", ways, bridge)

    def _majorities_ring(self) -> None:
        """Everybody sees a majority, no two the same one."""
        ids = self._ids()
        n = len(ids)
        if n < 4:
            return
        reach = n // 4 + (1 if n % 4 else 0)
        ways = {
            (a, b)
            for i, a in enumerate(ids)
            for j, b in enumerate(ids)
            if i != j and min((i - j) % n, (j - i) % n) > reach
        }
        self._cut("majorities ring", ways, " ".join(ids))

    def _reset(self) -> None:
        ids = self._ids()
        if len(ids) >= 2 and self._profile.connects_one_by_one and self._extent.random() < 0.5:
            role = self._extent.choice(("control", "data"))
            self._note("reset of one connection", f"{role} {ids[0]} {ids[1]}")
            self._cluster.network.reset_one(ids[0], ids[1], role)
        elif len(ids) >= 2:
            self._note("reset", f"{ids[0]} {ids[1]}")
            self._cluster.network.reset(*ids[:2], closed_by=self._random.choice((None, ids[0])))

    def _flapping(self) -> None:
        """One member's connections break again and again."""
        member = self._anybody()
        if member is None:
            return
        self._note("flapping", member.member_id)
        others = [i for i in self._ids() if i != member.member_id]
        for round_number in range(6):
            for other in others:
                self._cluster.at(
                    round_number * 100.0 + self._random.uniform(0, 50),
                    partial(
                        self._cluster.network.reset,
                        member.member_id,
                        other,
                        closed_by=member.member_id,
                    ),
                )

    # ---------------------------------------------------------------- disks

    def _slow_disk(self) -> None:
        member = self._anybody()
        if member is None:
            return
        self._note("slow disk", member.member_id)
        member.sync_ms = self._random.choice((100.0, 1000.0, 3000.0))

        def end() -> None:
            if self._cluster.is_faulty:
                member.sync_ms = self._profile.sync_ms

        self._cluster.at(self._duration_ms(), end)

    def _failing_sync(self) -> None:
        member = self._anybody()
        if member is not None:
            self._note("failing sync", member.member_id)
            self.fail_next_sync(
                member, self._random.choice(("/data/", "/index/", "durable", "hardstate", "/"))
            )

    def fail_next_sync(self, member: SimMember, path_part: str) -> None:
        """Of a file whose path contains this; the member may stop for it."""
        self._failing.add(member.member_id)
        member.disk.fail_next_sync(path_part)

    def may_fail(self, member: SimMember) -> bool:
        """A sync of its disk was told to fail, or there was no space to write `member` anew while it
        forms: then it stops, and tries again with its next start. A full disk stops no member that is
        formed and runs. One may stop that has just looked at a page which then goes bad under it."""
        is_formed = member.is_up and bool(member.node.directory.formation.founding)
        is_full = member.disk.capacity_bytes < ROOMY_BYTES
        is_stricken = self._cluster.now_ms < self._stricken_until_ms.get(member.member_id, 0.0)
        may_stop = member.member_id in self._failing or is_stricken
        return may_stop or (is_full and not is_formed)

    def failed(self, member: SimMember) -> None:
        """The member stops loudly; somebody starts it again."""
        member.kill()
        self._restart_later(member)

    def refused(self, member: SimMember) -> None:
        """Damage that cannot be bounded: somebody does what the message says, and the member is a new
        one. Without damage no directory may refuse."""
        assert member.is_damaged or self._profile.has_lossy_disks, (
            f"{member.member_id} refuses to start undamaged: {member.refusal}"
        )
        member.is_lost = True
        member.disk.remove_tree(member.path)
        self._restart_later(member)

    def _full_disk(self) -> None:
        member = self._anybody()
        if member is None:
            return
        spare_bytes = self._random.choice((0, 4096, 16384))
        if self._extent.random() < 0.7:
            self._fill("full disk", [member], spare_bytes)
        else:
            self._fill("full disks", self._cluster.members, spare_bytes)

    def _fill(self, kind: str, members: Sequence[SimMember], spare_bytes: int) -> None:
        self._note(kind, " ".join(member.member_id for member in members))
        for member in members:
            usage = member.disk.usage("/")
            used_bytes = usage.total_bytes - usage.free_bytes
            member.disk.capacity_bytes = int(used_bytes / 0.9) + spare_bytes
        if self._neighbours.random() < 0.5:
            self._note("greedy neighbour")
            for member in members:
                member.disk.has_greedy_neighbour = True

        def end() -> None:
            for member in members:
                make_room(member)

        self._cluster.at(3 * self._duration_ms(), end)

    def _wipe(self) -> None:
        member = self._anybody()
        if member is None or not self._may_lose(member):
            return
        self._note("wipe", member.member_id)
        member.is_lost = True
        member.kill()
        member.disk.remove_tree(member.path)
        self._restart_later(member)

    def _lose_file(self, name: str) -> None:
        """Both slots of a file of promises unreadable, or the file gone."""
        member = self._anybody()
        if member is None or not self._may_lose(member):
            return
        self._note(
            f"lost {'hard state' if name == HARD_STATE_NAME else 'durable point'}", member.member_id
        )
        member.is_lost = True
        member.kill() if self._random.random() < 0.5 else member.lose_power()
        path = f"{member.path}/{name}"
        if path in member.disk.paths():
            if self._random.random() < 0.3:
                member.disk.delete(path)
            else:
                for slot in (0, 1):
                    position = slot * SLOT_BYTES + self._random.randrange(SECTOR_BYTES)
                    member.disk.flip(path, position, 1 << self._random.randrange(8))
        self._restart_later(member)

    def _damage(self, kind: str) -> None:
        """Change synced bytes that nothing but the disk can have changed: of the log below the durable
        point, which a power loss leaves as it is, and of one slot of a file of promises."""
        member = self._anybody()
        if member is None or member.is_damaged or not self._may_lose(member) or self._profile.is_async:
            return
        durable = read_durable_point(member.disk.platter(), member.path)
        if durable is None or durable.point.position == 0:
            return
        if kind == "zeroed page":
            path, stop_position = self._random.choice(self._targets(member, durable.point))
            position = self._random.randrange(stop_position) // PAGE_BYTES * PAGE_BYTES
            is_slot = path.endswith((HARD_STATE_NAME, DURABLE_NAME))
            page_stop = min(position + PAGE_BYTES, len(member.disk.content(path)))
            if page_stop > (SLOT_BYTES if is_slot else stop_position):
                return  # bytes above the durable point, too
            member.disk.zero_page(path, position)
        elif self._random.random() < 0.3:
            path, stop_position = self._random.choice(self._targets(member, durable.point))
            if f"/{DATA_NAME}/" in path:
                return  # it might be behind a blank record, where nobody ever looks
            position = self._random.randrange(stop_position)
            member.disk.flip(path, position, 1 << self._random.randrange(8))
        else:
            index = self._random.randint(0, durable.point.index)
            entry = member.node.store.range_of(index, index + 1, 1)
            path = f"{member.path}/{DATA_NAME}/{entry.segment_position:020d}"
            position = entry.position - entry.segment_position + self._random.randrange(entry.size_bytes)
            member.disk.flip(path, position, 1 << self._random.randrange(8))
        member.is_damaged = True
        self._note(kind, f"{path} at {position}")

    def _unreadable_page(self) -> None:
        """A page that holds nothing but what was synced cannot be read any more, from now on or since a
        power loss."""
        up = [member for member in self._cluster.members if member.is_up]
        member = self._sectors.choice(up) if up else None
        if member is None:
            return
        if self._sectors.random() < 0.3:
            self._unreadable_behind_end(member)
            return
        if member.is_damaged or not self._may_lose(member) or self._profile.is_async:
            return
        durable = read_durable_point(member.disk.platter(), member.path)
        if durable is None or durable.point.position == 0:
            return
        targets = self._targets(member, durable.point) + [
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
        member.disk.lose_page(path, position)
        member.is_damaged = True
        self._stricken_until_ms[member.member_id] = self._cluster.now_ms + 2 * member.sync_ms + 10
        self._note(kind, f"{path} at {position}")

    def _unreadable_behind_end(self, member: SimMember) -> None:
        """A power loss tears a page that the log has not reached, or had reached and not synced: nothing
        is lost with it."""
        segment_bytes = self._profile.storage.segment_bytes
        offset = -(-(member.node.store.end.position % segment_bytes) // PAGE_BYTES) * PAGE_BYTES
        base = member.node.store.end.position // segment_bytes * segment_bytes
        path = f"{member.path}/{DATA_NAME}/{base:020d}"
        if offset >= segment_bytes or not member.disk.exists(path):
            return
        member.lose_power()
        self._cluster.at(self._sectors.uniform(0, 1_000), member.start)
        if offset < member.disk.size_of(path):
            member.disk.lose_page(path, offset)
            self._note("unreadable page behind the end", f"{path} at {offset}")

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

    # ---------------------------------------------------------------- lossy disks

    def _old_copy(self) -> None:
        """Some directories are copied, all at once, and take the place of what has become of them a
        while later: with their old id, and without what they have promised since."""
        copies = [(member, member.disk.snapshot()) for member in self._some_of(self._cluster.members)]

        def put_back() -> None:
            if self._cluster.is_faulty:
                for member, copy in copies:
                    self._note("old copy", member.member_id)
                    member.kill() if self._random.random() < 0.5 else member.lose_power()
                    member.disk.restore(copy)
                    self._cluster.told("put_back", member)
                    self._restart_later(member)

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
                path = f"{member.path}/{DATA_NAME}/{position - first:020d}"
                member.disk.flip(path, first, 1 << self._random.randrange(8))
                self._note("lying disk", f"{path} at {first}")
            self._restart_later(member)

    @staticmethod
    def _may_lie(member: SimMember) -> bool:
        """Entries were synced since the durable point was."""
        path = f"{member.path}/{DURABLE_NAME}"
        return member.is_up and not member.disk.is_synced(path, 0, SLOT_FILE_BYTES)

    def _some_of(self, members: Sequence[SimMember]) -> list[SimMember]:
        up = [member for member in members if member.is_up]
        return self._random.sample(up, self._random.randint(1, len(up))) if up else []
