"""NetworkFaults: who does not hear whom, for a while, and connections that break."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from quorumlog.testing.faults.fault_context import FaultGroup, Kinds
from quorumlog.testing.network.sim_link import Direction

if TYPE_CHECKING:
    from quorumlog.testing.member import SimMember


class NetworkFaults(FaultGroup):
    def kinds(self) -> Kinds:
        return {
            **self._context.striking({"flapping": self._flapping}),
            "partition": self._partition,
            "one-way cut": self._one_way_cut,
            "bridge": self._bridge,
            "majorities ring": self._majorities_ring,
            "reset": self._reset,
        }

    def _cut(self, kind: str, ways: set[Direction], who: str) -> None:
        network = self._cluster.network
        self._context.note(kind, who)
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
