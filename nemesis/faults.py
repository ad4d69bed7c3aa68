"""What goes wrong: each fault begins, lasts, and ends so that everything can become whole again.

A fault that harms members harms a minority, also where two overlap; one that harms the links of all
stands alone. Who is harmed is drawn from the seed, and half of the time it is the leader.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import combinations
from typing import ClassVar

from harness.proxy import CUT, Direction, LinkConditions, both_ways
from nemesis.cluster import Cluster, empty_disk, fill_disk
from nemesis.damage import DAMAGE_KINDS, DURABLE_DAMAGE_KINDS, DamageKind
from quorumlog import LedgerError, MembershipRefused

ASKED_S, ASKED_AGAIN_S, ASK_EVERY_S = 5.0, 60.0, 0.2
"""How long a change of members is asked for while another fault may be about, and once it has ended."""


class Fault:
    """One fault on one cluster. `begin` returns what was done, in words."""

    name: ClassVar[str]
    harms_a_member: ClassVar[bool] = True
    """False: it harms links of all members, or none, and overlaps with nothing."""
    least_members: ClassVar[int] = 3
    by_default: ClassVar[bool] = True
    """Among those drawn when none is named."""
    needs_small_disk: ClassVar[bool] = False
    hold_s: ClassVar[tuple[float, float]] = (1.0, 8.0)
    leader_bound_s: ClassVar[float | None] = None
    """The group must not be without a leader for longer; None: it may, for a while."""

    def __init__(self, cluster: Cluster, victim_id: str, rng: random.Random) -> None:
        """`victim_id`: the member to harm; of faults that harm none, a member to start from."""
        self.cluster = cluster
        self.victim_id = victim_id
        self.rng = rng
        self.others = [member for member in cluster.member_ids if member != victim_id]

    def begin(self) -> str:
        raise NotImplementedError

    def tick(self) -> None:
        """Called once a second while the fault lasts."""

    def end(self) -> None:
        raise NotImplementedError


# -------------------------------------------------------------------- processes


class Kill(Fault):
    name = "kill"

    def begin(self) -> str:
        self.cluster.kill(self.victim_id)
        return f"SIGKILL {self.victim_id}"

    def end(self) -> None:
        self.cluster.start(self.victim_id)


class Pause(Fault):
    name = "pause"

    def begin(self) -> str:
        self.cluster.pause(self.victim_id)
        return f"SIGSTOP {self.victim_id}"

    def end(self) -> None:
        self.cluster.resume(self.victim_id)


# -------------------------------------------------------------------- network


class NetworkFault(Fault):
    """Link conditions on some directions, for as long as it lasts."""

    conditions = CUT

    def directions(self) -> Sequence[Direction]:
        raise NotImplementedError

    def begin(self) -> str:
        directions = self.directions()
        self._number = self.cluster.network.impose(directions, self.conditions)
        return ", ".join(f"{a}->{b}" for a, b in directions)

    def end(self) -> None:
        self.cluster.network.lift(self._number)


class Cut(NetworkFault):
    """The victim hears nobody and nobody hears it."""

    name = "cut"

    def directions(self) -> Sequence[Direction]:
        return both_ways((self.victim_id, other) for other in self.others)


class CutOneWay(NetworkFault):
    """The victim still hears but is not heard, or the other way round; from all, or from one."""

    name = "cut_one_way"
    hold_s = (3.0, 10.0)
    leader_bound_s = 1.5

    def directions(self) -> Sequence[Direction]:
        others = self.rng.choice([self.others, [self.rng.choice(self.others)]])
        is_mute = self.rng.random() < 0.5
        return [(self.victim_id, o) if is_mute else (o, self.victim_id) for o in others]


class Bridge(NetworkFault):
    """Two halves that only reach each other through one member in the middle."""

    name = "bridge"
    harms_a_member = False
    hold_s = (5.0, 12.0)
    leader_bound_s = 1.5

    def directions(self) -> Sequence[Direction]:
        half = len(self.others) // 2
        outer = self.rng.sample(self.others, len(self.others))
        return both_ways((a, b) for a in outer[:half] for b in outer[half:])


class Ring(NetworkFault):
    """Every member reaches a majority, no two of them the same one. Of three each would reach all."""

    name = "ring"
    harms_a_member = False
    least_members = 5
    hold_s = (5.0, 12.0)
    leader_bound_s = 1.5

    def directions(self) -> Sequence[Direction]:
        ring = self.rng.sample(self.cluster.member_ids, len(self.cluster.member_ids))
        near = len(ring) // 4
        far = (
            (ring[i], ring[j])
            for i, j in combinations(range(len(ring)), 2)
            if min(j - i, len(ring) - j + i) > near
        )
        return both_ways(far)


class Reset(Fault):
    """Every second the connections between whoever leads then and all others are reset."""

    name = "reset"
    harms_a_member = False
    hold_s = (5.0, 12.0)
    leader_bound_s = 1.5

    def begin(self) -> str:
        self.tick()
        return "connections of the leader reset every second"

    def tick(self) -> None:
        leader_id = self.cluster.leader_id() or self.victim_id
        self.cluster.network.reset((leader_id, other) for other in self.cluster.member_ids)

    def end(self) -> None:
        pass


class Slow(NetworkFault):
    """Delay and loss on all that the victim says and hears."""

    name = "slow"

    def directions(self) -> Sequence[Direction]:
        return both_ways((self.victim_id, other) for other in self.others)

    def begin(self) -> str:
        self.conditions = LinkConditions(
            delay_ms=self.rng.uniform(5, 100), loss=self.rng.uniform(0, 0.1)
        )
        links = super().begin()
        return f"{links}: {self.conditions.delay_ms:.0f} ms, {self.conditions.loss:.1%} lost"


# -------------------------------------------------------------------- disks and files


class FillDisk(Fault):
    """The small file system takes no further page; before, its member or another is asked to lead."""

    name = "fill_disk"
    needs_small_disk = True
    hold_s = (4.0, 10.0)

    def begin(self) -> str:
        self._path = self.cluster.members[self.victim_id].data_dir
        leader_id = self.rng.choice([self.victim_id, self.rng.choice(self.others)])
        # If it cannot take over, or leads already, the disk is filled all the same.
        with suppress(LedgerError):
            self.cluster.client.transfer(leader_id)
        fill_disk(self._path)
        return f"{leader_id} asked to lead, no space for {self.victim_id}"

    def end(self) -> None:
        empty_disk(self._path)


class DamageFiles(Fault):
    """A killed member's files are damaged in a way that it must recover from by itself."""

    name = "damage"
    kinds: ClassVar[Sequence[DamageKind]] = DAMAGE_KINDS

    def begin(self) -> str:
        self.cluster.kill(self.victim_id)
        damage = self.rng.choice(self.kinds)
        self.cluster.damage(self.victim_id, damage, self.rng)
        return f"SIGKILL {self.victim_id}, {damage.__name__.replace('_', ' ')}"

    def end(self) -> None:
        self.cluster.start(self.victim_id)


class DamageDurable(DamageFiles):
    """The same with entries that the member had acknowledged, or with their index: what nobody reads
    is found by its scrub, and the others send what it has lost."""

    name = "damage_durable"
    kinds = DURABLE_DAMAGE_KINDS


class Wipe(Fault):
    """A killed member comes back without its directory: a machine that was replaced. The group counts it
    again once the leader has fed it and put its new directory in the place of the old one."""

    name = "wipe"

    def begin(self) -> str:
        self.cluster.kill(self.victim_id)
        self.cluster.wipe(self.victim_id)
        return f"SIGKILL {self.victim_id}, directory lost"

    def end(self) -> None:
        self.cluster.start(self.victim_id)


class WipeDisturbed(Wipe):
    """The same; while it gets what the others have, and a snapshot, it or another one is killed or cut
    off, and comes back."""

    name = "wipe_disturbed"
    harms_a_member = False  # two of them: it overlaps with nothing
    hold_s = (0.5, 4.0)

    def end(self) -> None:
        super().end()
        kind, other_id = self.rng.choice((Kill, Cut)), self.rng.choice(self.cluster.member_ids)
        other = kind(self.cluster, other_id, self.rng)
        wait_s, hold_s = self.rng.uniform(0, 3.0), self.rng.uniform(0.2, 2.0)
        time.sleep(wait_s)
        other.begin()
        try:
            time.sleep(hold_s)
        finally:
            other.end()


# -------------------------------------------------------------------- members


class Members(Fault):
    """A member is taken out of the group, whoever it is, and later let in again as what it is then: a
    directory that is behind counts for nothing before it keeps up. Or it is told to be elsewhere."""

    name = "members"

    def begin(self) -> str:
        self._is_moved = self.rng.random() < 0.25
        self._address = self.cluster.address_by_log(self.victim_id)
        if self._is_moved:
            direct = self.cluster.members[self.victim_id].address
            return self._ask("set-address", direct, within_s=ASKED_S)
        return self._ask("remove", "", within_s=ASKED_S)

    def end(self) -> None:
        if self._is_moved:
            self._ask("set-address", self._address, within_s=ASKED_AGAIN_S)
        else:
            self._ask("add", self._address, within_s=ASKED_AGAIN_S)
            self._ask("promote", "", within_s=ASKED_AGAIN_S)

    def _ask(self, verb: str, address: str, *, within_s: float) -> str:
        """Again and again: a leader may be lost meanwhile, or say that it cannot be done now. What is
        carried out already is refused for good."""
        until_s = time.monotonic() + within_s
        said = f"{verb} {self.victim_id}"
        while True:
            try:
                self.cluster.client.change_members(verb, self.victim_id, address)
                return said
            except MembershipRefused as error:
                reason = str(error)
                if not error.retry_after_ms or time.monotonic() > until_s:
                    return f"{said}: {reason}"
            except LedgerError as error:
                if time.monotonic() > until_s:
                    return f"{said}: {error}"
            time.sleep(ASK_EVERY_S)


class MembersDisturbed(Members):
    """The same, while another member is killed or cut off, and comes back: in the middle of a change a
    majority of each half is needed, and leadership may move."""

    name = "members_disturbed"
    harms_a_member = False  # two of them: it overlaps with nothing
    hold_s = (1.0, 4.0)

    def begin(self) -> str:
        return self._disturbed(super().begin)

    def end(self) -> None:
        self._disturbed(super().end)

    def _disturbed(self, change: Callable[[], str | None]) -> str:
        kind = self.rng.choice((Kill, Cut))
        other = kind(self.cluster, self.rng.choice(self.others), self.rng)
        wait_s, hold_s = self.rng.uniform(0, 0.5), self.rng.uniform(0.2, 2.0)
        with ThreadPoolExecutor(1) as pool:
            changing = pool.submit(change)
            time.sleep(wait_s)
            told = other.begin()
            try:
                time.sleep(hold_s)
            finally:
                other.end()
            return f"{changing.result()}; meanwhile {told}"


# -------------------------------------------------------------------- no fault at all


class Calm(Fault):
    """Nothing happens, and nobody may call an election."""

    name = "calm"
    harms_a_member = False
    by_default = False
    hold_s = (30.0, 30.0)
    leader_bound_s = 0.0

    def begin(self) -> str:
        return "nothing"

    def end(self) -> None:
        pass


class Busy(Calm):
    """The same with a process on each processor that does nothing but compute."""

    name = "busy"

    def begin(self) -> str:
        self._burning = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(os.cpu_count() or 1)
        ]
        return f"{len(self._burning)} processes compute"

    def end(self) -> None:
        for process in self._burning:
            process.kill()
            process.wait()


FAULTS: dict[str, type[Fault]] = {
    fault.name: fault
    for fault in (
        Kill,
        Pause,
        Cut,
        CutOneWay,
        Bridge,
        Ring,
        Reset,
        Slow,
        FillDisk,
        DamageFiles,
        DamageDurable,
        Wipe,
        WipeDisturbed,
        Members,
        MembersDisturbed,
        Calm,
        Busy,
    )
}


def draw_faults(
    cluster: Cluster, kinds: Sequence[type[Fault]], leader_id: str, rng: random.Random
) -> list[Fault]:
    """For one round: one fault, or several on a minority of members. `kinds` fit the cluster."""
    minority = (len(cluster.member_ids) - 1) // 2
    first = rng.choice(kinds)
    if not first.harms_a_member:
        return [first(cluster, _draw_victim(cluster, first, leader_id, (), rng), rng)]
    drawn: list[Fault] = []
    for number in range(rng.randint(1, minority)):
        kind = first if number == 0 else rng.choice([kind for kind in kinds if kind.harms_a_member])
        taken = [fault.victim_id for fault in drawn]
        if not (kind.needs_small_disk and cluster.small_disk_id in taken):
            drawn.append(kind(cluster, _draw_victim(cluster, kind, leader_id, taken, rng), rng))
    return drawn


def _draw_victim(
    cluster: Cluster, kind: type[Fault], leader_id: str, taken: Iterable[str], rng: random.Random
) -> str:
    if kind.needs_small_disk:
        assert cluster.small_disk_id is not None, "a fault was drawn that the machine does not allow"
        return cluster.small_disk_id
    free = [member for member in cluster.member_ids if member not in taken]
    return leader_id if leader_id in free and rng.random() < 0.5 else rng.choice(free)
