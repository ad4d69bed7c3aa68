"""Faults of a simulated cluster, by kind, repeated until `stop`; they are fair."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import count, product
from random import Random
from typing import TYPE_CHECKING, Protocol

from quorumlog.consensus.membership import Membership
from quorumlog.consensus.ready import Role
from quorumlog.entry import Replica
from quorumlog.node.ledger_node import HANGS_AFTER_MS
from quorumlog.store.durable_file import DURABLE_NAME, read_durable_point
from quorumlog.store.log_points import LogPoint
from quorumlog.store.segments import DATA_NAME, INDEX_NAME, INDEX_UNIT_BYTES
from quorumlog.store.slot_file import SECTOR_BYTES, SLOT_BYTES
from quorumlog.store.state_files import HARD_STATE_NAME
from quorumlog.testing.disk import PAGE_BYTES
from quorumlog.testing.member import SimMember
from quorumlog.testing.network import Direction, Pipe
from quorumlog.testing.profile import HANGING_DISK, random_beside

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster


class Fairness(Protocol):
    """Which directories may still be lost while members come and go."""

    lost: list[Replica]

    def lose(self, replica: Replica) -> None: ...
    def may_lose(self, replica: Replica) -> bool: ...
    def allows(self, wanted: Membership) -> bool: ...


# ---------------------------------------------------------------- FaultContext
# Whom a fault strikes, for how long, and how fairly.
#
# Fair means that a minority is lost at most: members whose directory was wiped, that forgot what they
# had promised, or whose synced bytes were changed, count together until the end of the run, or until
# the group has put the new directory in the place of the old one. Where members come and go it is a
# minority of each membership (`Fairness`).

Kinds = dict[str, Callable[[], None]]
"""Faults, by the names of a simulation profile."""


class FaultContext:
    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.random = cluster.random
        self.profile = cluster.profile
        self.extent = copy(cluster.random)
        """A stream of its own: what is drawn here moves nothing else of a seed's run."""
        self.fairness: Fairness | None = None
        self._lost: set[Replica] = set()
        """A member that is down gets its next directory, and the id of that, with its next start."""

    def note(self, kind: str, subject: str = "") -> None:
        self.cluster.trace.count(f"fault: {kind}")
        self.cluster.trace.note(self.cluster.now_ms, "fault", f"{kind} {subject}")

    def duration_ms(self) -> float:
        timeout_ms = self.profile.consensus.election_timeout_ms
        return self.random.choice((0.1, 0.5, 1.5, 4.0)) * timeout_ms * self.random.random()

    def anybody(self) -> SimMember | None:
        up, leaders = self.cluster.up(), self.cluster.leading()
        if leaders and self.random.random() < 0.4:
            return self.random.choice(leaders)
        return self.random.choice(up) if up else None

    def striking(self, kinds: Mapping[str, Callable[[SimMember], None]]) -> Kinds:
        """Kinds that hit any member, by their effect on it."""

        def strike(kind: str, begin: Callable[[SimMember], None]) -> None:
            member = self.anybody()
            if member is not None:
                self.note(kind, member.member_id)
                begin(member)

        return {kind: partial(strike, kind, begin) for kind, begin in kinds.items()}

    def end(self, member: SimMember) -> None:
        member.kill() if self.random.random() < 0.5 else member.lose_power()

    def lose(self, member: SimMember) -> None:
        """Its directory is, or will be, gone, forgetful or damaged."""
        self._lost.add(member.replica)
        if self.fairness is not None:
            self.fairness.lose(member.replica)

    def may_lose(self, member: SimMember) -> bool:
        if self.fairness is not None:
            # A directory that is new at another machine than its member's is not let in by real members.
            return member.place == member.member_id and self.fairness.may_lose(member.replica)
        members = self.cluster.members
        gone = {m.member_id for m in members if m.is_damaged or (m.is_lost and not self._is_replaced(m))}
        gone.add(member.member_id)
        return len(gone) <= (len(self.cluster.member_ids) - 1) // 2

    def _is_replaced(self, member: SimMember) -> bool:
        """Its directory votes by a change that is committed, and is not lost itself."""
        if member.replica in self._lost:
            return False
        up = [each.node.log_state.committed for each in self.cluster.up()]
        memberships = [
            state.membership for state in up if state is not None and state.membership is not None
        ]
        return any(body.old == body.new and member.replica in body.new for body in memberships)

    def restart_later(self, member: SimMember) -> None:
        self.cluster.at(self.duration_ms(), member.start)


class FaultGroup:
    def __init__(self, context: FaultContext) -> None:
        self._context = context
        self._cluster = context.cluster
        self._random = context.random
        self._profile = context.profile


class ProcessFaults(FaultGroup):
    """Processes and machines that end, stop for a while, or have a wrong clock. What ends is started
    again by somebody."""

    def __init__(self, context: FaultContext) -> None:
        super().__init__(context)
        self._dying: dict[str, str] = {}
        """How a member ends when its disk says that now is the moment."""

    def kinds(self) -> Kinds:
        one_member: dict[str, Callable[[SimMember], None]] = {
            "kill": self._kill,
            "power loss": self._power_loss,
            "crash at an effect": partial(self._crash_within, most_effects=60),
            "crash while starting": self._crash_while_starting,
            "clean stop": self._clean_stop,
            "pause": lambda member: member.pause(self._context.duration_ms()),
            "clock jump": lambda member: member.set_clock(jump_ms=self._context.duration_ms()),
            "clock drift": self._clock_drift,
        }
        return {
            **self._context.striking(one_member),
            "power loss of all": self._power_loss_of_all,
            "transfer": self._transfer,
        }

    def _kill(self, member: SimMember) -> None:
        member.kill()
        self._context.restart_later(member)

    def _power_loss(self, member: SimMember) -> None:
        member.lose_power()
        self._context.restart_later(member)

    def _power_loss_of_all(self) -> None:
        self._context.note("power loss of all")
        for member in self._cluster.members:
            if member.is_up:
                member.lose_power()
            self._context.restart_later(member)

    def _crash_while_starting(self, member: SimMember) -> None:
        self._context.end(member)
        self._crash_within(member, 40)
        self._context.restart_later(member)

    def _crash_within(self, member: SimMember, most_effects: int) -> None:
        how = self._random.choice(("kill", "power loss"))
        self.crash_at_effect(member, self._random.randint(1, most_effects), how)

    def crash_at_effect(self, member: SimMember, effects: int, how: str) -> None:
        """`how`: "kill" or "power loss", in the effect of this number from now on (1: the next one)."""
        self._dying[member.member_id] = how
        member.disk.crash_random = self._random
        member.disk.crash_countdown = effects

    def crashed(self, member: SimMember) -> None:
        """The disk has reached the moment of the crash."""
        how = self._dying.pop(member.member_id, "kill")
        member.disk.crash_countdown = None
        (self._kill if how == "kill" else self._power_loss)(member)

    def _clean_stop(self, member: SimMember) -> None:
        if self._profile.stops_with_successor:
            if member.node.raft.role is Role.LEADER:
                self._context.note("clean stop of a leader", member.member_id)
            member.terminate(partial(self._context.restart_later, member))
        else:
            member.stop()
            self._context.restart_later(member)

    def _clock_drift(self, member: SimMember) -> None:
        member.set_clock(rate=self._random.choice((0.7, 0.95, 1.05, 1.5)))

    def _transfer(self) -> None:
        member = self._context.anybody()
        if member is not None:
            to = self._random.choice(self._cluster.members).member_id
            self._context.note("transfer", f"{member.member_id} to {to}")
            node = member.node
            member.enter(lambda: node.transfer(to, lambda outcome: None))

    def stop(self) -> None:
        self._dying.clear()


class NetworkFaults(FaultGroup):
    """Who does not hear whom, for a while, and connections that break."""

    def kinds(self) -> Kinds:
        return {
            **self._context.striking({"flapping": self._flapping}),
            "partition": self._partition,
            "one-way cut": self._one_way_cut,
            "bridge": self._bridge,
            "majorities ring": self._majorities_ring,
            "reset": self._reset,
        }

    def _cut(self, kind: str, ways: set[Direction], subject: str) -> None:
        network = self._cluster.network
        self._context.note(kind, subject)
        network.cut |= ways
        self._cluster.at(2 * self._context.duration_ms(), lambda: network.heal(ways))

    def _ids(self) -> list[str]:
        ids = list(self._cluster.member_ids)  # a machine that came later has the name of another one
        self._random.shuffle(ids)
        return ids

    def _partition(self) -> None:
        ids = self._ids()
        half = set(ids[: self._random.randint(1, max(1, len(ids) // 2))])
        ways = {(a, b) for a in ids for b in ids if (a in half) != (b in half)}
        self._cut("partition", ways, str(sorted(half)))

    def _one_way_cut(self) -> None:
        member = self._context.anybody()
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
        if len(ids) >= 2 and self._profile.connects_one_by_one and self._context.extent.random() < 0.5:
            role = self._context.extent.choice(("control", "data"))
            self._context.note("reset of one connection", f"{role} {ids[0]} {ids[1]}")
            self._cluster.network.reset_one(ids[0], ids[1], role)
        elif len(ids) >= 2:
            self._context.note("reset", f"{ids[0]} {ids[1]}")
            self._cluster.network.reset(*ids[:2], closed_by=self._random.choice((None, ids[0])))

    def _flapping(self, member: SimMember) -> None:
        """Its connections break again and again."""
        me = member.member_id
        others = [i for i in self._ids() if i != me]
        for round_number in range(6):
            for other in others:
                reset = partial(self._cluster.network.reset, me, other, closed_by=me)
                self._cluster.at(round_number * 100.0 + self._random.uniform(0, 50), reset)


class DamageFaults(FaultGroup):
    """Synced bytes of a log or of a file of promises that change or cannot be read again: of a minority
    at most, and below the durable point."""

    def kinds(self) -> Kinds:
        return {kind: partial(self._change_bytes, kind) for kind in ("flipped bit", "zeroed page")}

    def _change_bytes(self, kind: str) -> None:
        """Of the log below the durable point, or of one slot of a file of promises: only the disk can
        have changed them."""
        member = self._context.anybody()
        durable = self.durable_point(member) if member is not None else None
        if member is None or durable is None:
            return
        if kind == "zeroed page":
            path, stop_position = self._random.choice(self.targets(member, durable))
            position = self._random.randrange(stop_position) // PAGE_BYTES * PAGE_BYTES
            is_slot = path.endswith((HARD_STATE_NAME, DURABLE_NAME))
            page_stop = min(position + PAGE_BYTES, len(member.disk.content(path)))
            if page_stop > (SLOT_BYTES if is_slot else stop_position):
                return  # bytes above the durable point, too
            member.disk.zero_page(path, position)
        elif self._random.random() < 0.3:
            path, stop_position = self._random.choice(self.targets(member, durable))
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

    def durable_point(self, member: SimMember) -> LogPoint | None:
        """Up to where bytes of its log may go bad; None: nowhere."""
        if member.is_damaged or not self._context.may_lose(member) or self._profile.is_async:
            return None
        durable = read_durable_point(member.disk.platter(), member.path)
        return durable.point if durable is not None and durable.point.position > 0 else None

    @staticmethod
    def targets(member: SimMember, durable: LogPoint) -> list[tuple[str, int]]:
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


# ---------------------------------------------------------------- DiskFaults
# Disks that are slow, refuse or are full, and directories that are gone or forget.

ROOMY_BYTES = 1 << 40


def _used_bytes(member: SimMember) -> int:
    usage = member.disk.usage("/")
    return usage.total_bytes - usage.free_bytes


def make_room(member: SimMember) -> None:
    member.disk.capacity_bytes = ROOMY_BYTES
    member.disk.has_greedy_neighbour = False


class DiskFaults(FaultGroup):
    """A member that stops for one is restarted."""

    def __init__(self, context: FaultContext) -> None:
        super().__init__(context)
        self._neighbours = Random(f"{context.random.getstate()}: neighbours")
        self._index_files = Random(f"{context.random.getstate()}: index files")
        self._twins = self._cluster.stream("old directories")
        self._failing: set[str] = set()
        """Members whose disk has been told to refuse."""
        self.stricken_until_ms: dict[str, float] = {}
        """Until then a member uses data read before one of its pages went bad."""

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
        """Whether it may stop, and retry at its next start: its disk was made to fail a sync, a page
        went bad just after a check, or its disk is full while it forms or records that it was set back.
        A full disk stops no other member."""
        is_formed = member.is_up and bool(member.node.directory.formation.founding)
        may_be_old = self._profile.has_lossy_disks
        is_full = member.disk.capacity_bytes < ROOMY_BYTES
        is_stricken = self._cluster.now_ms < self.stricken_until_ms.get(member.member_id, 0.0)
        may_stop = member.member_id in self._failing or is_stricken
        return may_stop or (is_full and (may_be_old or not is_formed))

    def failed(self, member: SimMember) -> None:
        member.kill()
        self._context.restart_later(member)

    def refused(self, member: SimMember) -> None:
        """An operator follows the message, and the member is a new one."""
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
            member.disk.capacity_bytes = int(_used_bytes(member) / 0.9) + spare_bytes
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
        member.disk.capacity_bytes = _used_bytes(member)
        self._cluster.at(self._index_files.uniform(0, 500), member.start)

    def _wipe(self) -> None:
        member = self._context.anybody()
        if member is None or not self._context.may_lose(member):
            return
        self._context.note("wipe", member.member_id)
        self._context.lose(member)
        member.kill()
        files = None if member.is_damaged else member.disk.snapshot()
        member.wipe()
        self._context.restart_later(member)
        after_ms = 0 if self._profile.has_lossy_disks else self._profile.auto_replace_after_ms
        if after_ms and files is not None and self._twins.random() < 0.5:
            bring_back = partial(self._bring_back, member, files)
            self._cluster.at(self._twins.uniform(0, 3 * after_ms), bring_back)

    def _bring_back(self, member: SimMember, files: dict[str, bytes]) -> None:
        """The machine was not lost: it starts again, and another one has its name by now. Not before
        there is a group: nobody forms one while two directories have one name."""
        members = self._cluster.members
        has_formed = any(m.is_up and m.node.raft.role is not Role.UNFORMED for m in members)
        if self._cluster.is_faulty and has_formed and len(members) < 2 * len(self._cluster.member_ids):
            self._context.note("an old directory is back", member.member_id)
            twin = self._cluster.add_twin(member)
            twin.disk.restore(files)
            twin.start()

    def _lose_file(self, name: str) -> None:
        """Both slots of a file of promises unreadable, or the file gone."""
        member = self._context.anybody()
        if member is None or not self._context.may_lose(member):
            return
        what = "hard state" if name == HARD_STATE_NAME else "durable point"
        self._context.note(f"lost {what}", member.member_id)
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


EVERY_MS = 3_000.0


class HangingDisks:
    """A disk of which no sync returns for a while, longer too than a leader waits for it. Drawn from a
    stream of its own, so that it moves nothing of the runs that have none of it."""

    def __init__(self, context: FaultContext) -> None:
        self._context = context
        self._cluster = context.cluster
        self._random = context.cluster.stream("hanging disks")

    def begin(self) -> None:
        if self._cluster.profile.has_hanging_disks:
            self._cluster.at(self._random.expovariate(1 / EVERY_MS), self._strike)

    def stop(self) -> None:
        for member in self._cluster.members:
            member.hang(False)

    def _strike(self) -> None:
        if not self._cluster.is_faulty:
            return
        up, leading = self._cluster.up(), self._cluster.leading()
        chosen = leading if leading and self._random.random() < 0.6 else up
        if chosen:
            member = self._random.choice(chosen)
            self._context.note(HANGING_DISK, member.member_id)
            member.hang(True)
            lasts_ms = self._random.choice((0.1, 0.5, 1.5)) * HANGS_AFTER_MS * self._random.random()
            self._cluster.at(lasts_ms, partial(self._end, member, member.process))
        self.begin()

    @staticmethod
    def _end(member: SimMember, process: int) -> None:
        if member.process == process:
            member.hang(False)


class LinkFaults:
    """Data that comes slowly, in bursts, or not at all, while heartbeats pass; until `stop`. Drawn from
    a stream of its own, so that it moves nothing of the runs that have none of it."""

    def __init__(self, context: FaultContext) -> None:
        self._context = context
        self._cluster = context.cluster
        self._profile = context.profile
        self._random = random_beside(context.random, "links")
        self._kinds: dict[str, Callable[[], Callable[[Pipe], None]]] = {
            "throttled link": self._throttle,
            "bursty link": self._burst,
            "black hole": self._swallow,
        }
        self._numbers = count(1)
        self._newest: dict[Direction, int] = {}
        """Number of the fault that each way has: the end of an older one ends nothing."""

    def begin(self) -> None:
        if self._profile.link_kinds:
            after_ms = self._random.expovariate(1 / self._profile.link_fault_every_ms)
            self._cluster.at(after_ms, self._strike)

    def stop(self) -> None:
        for pipe in self._cluster.network.pipes.values():
            pipe.limits(None)

    def _strike(self) -> None:
        if not self._cluster.is_faulty:
            return
        kind, struck = self._random.choice(self._profile.link_kinds), self._ways()
        number = next(self._numbers)
        self._context.note(kind, str(struck))
        limit = self._kinds[kind]()
        timeout_ms = self._profile.consensus.election_timeout_ms
        lasts_ms = self._random.choice((1, 4, 12)) * timeout_ms * self._random.uniform(0.5, 1)
        for way in struck:
            self._newest[way] = number
            limit(self._cluster.network.pipes[way])
            self._cluster.at(lasts_ms, partial(self._end, way, number))
        self.begin()

    def _end(self, way: Direction, number: int) -> None:
        if self._newest[way] == number:
            self._cluster.network.pipes[way].limits(None)

    def _ways(self) -> list[Direction]:
        """From one member to some others, from these to it, or both; often from the leader to all."""
        members = self._cluster.members
        leading = self._cluster.leading()
        chosen = self._random.choice(members)
        me = (leading[0] if leading and self._random.random() < 0.6 else chosen).member_id
        others = [member.member_id for member in members if member.member_id != me]
        if self._random.random() < 0.5:
            others = self._random.sample(others, self._random.randint(1, len(others)))
        outward, inward = list(product([me], others)), list(product(others, [me]))
        return self._random.choice((outward, inward, outward + inward))

    # ---------------------------------------------------------------- what a way is like then

    def _throttle(self) -> Callable[[Pipe], None]:
        bytes_per_ms = self._random.choice((1.0, 5.0, 30.0))
        room_bytes = self._random.choice((500, 10_000, None))
        return lambda pipe: pipe.limits(bytes_per_ms, room_bytes=room_bytes)

    def _burst(self) -> Callable[[Pipe], None]:
        burst_ms = self._random.choice((0.2, 1.0)) * self._profile.consensus.election_timeout_ms
        return lambda pipe: pipe.limits(None, burst_ms=burst_ms)

    def _swallow(self) -> Callable[[Pipe], None]:
        largest_bytes = self._random.choice((200, 400, 1_000))
        return lambda pipe: pipe.limits(None, largest_bytes=largest_bytes)


class Beside(Protocol):
    """Faults beside the kinds."""

    def begin(self) -> None: ...
    def stop(self) -> None: ...


class Faults:
    """What strikes a cluster, kind by kind, again and again until `stop`."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._random = cluster.random
        self._profile = cluster.profile
        self.context = context = FaultContext(cluster)
        self.beside: list[Beside] = [LinkFaults(context), HangingDisks(context)]
        self.processes = ProcessFaults(context)
        self.damage = DamageFaults(context)
        self.disks = DiskFaults(context)
        self.kinds: Kinds = {
            **self.processes.kinds(),
            **NetworkFaults(context).kinds(),
            **self.disks.kinds(),
            **self.damage.kinds(),
        }

    def begin(self) -> None:
        for each in self.beside:
            each.begin()
        if self._profile.fault_kinds:
            self._begin()

    def _begin(self) -> None:
        self._cluster.at(self._random.expovariate(1 / self._profile.fault_every_ms), self._strike)

    def _strike(self) -> None:
        if self._cluster.is_faulty:
            self.kinds[self._random.choice(self._profile.fault_kinds)]()
            self._begin()

    def stop(self) -> None:
        """End all faults at once."""
        cluster = self._cluster
        cluster.network.heal(set(cluster.network.cut))
        for each in self.beside:
            each.stop()
        self.processes.stop()
        for member in cluster.members:
            member.disk.crash_countdown = None
            make_room(member)
            member.disk.fail_no_sync()
            member.sync_ms = min(self._profile.sync_ms, 5.0)
            member.set_clock(rate=1.0)
            cluster.at(self._random.uniform(0, 100), member.start)
