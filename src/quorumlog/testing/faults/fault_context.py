"""FaultContext: whom a fault strikes, for how long, and how fairly.

Fair means that a minority is lost at most: members whose directory was wiped, that forgot what they had
promised, or whose synced bytes were changed, count together until the end of the run, or until the
group has put the new directory in the place of the old one. Where members come and go it is a minority
of each membership (`Fairness`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from quorumlog.testing.faults.fairness import Fairness

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster
    from quorumlog.testing.member import SimMember

Kinds = dict[str, Callable[[], None]]
"""What strikes, by the names of a simulation profile."""


class FaultContext:
    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.random = cluster.random
        self.profile = cluster.profile
        self.extent = Random()
        self.extent.setstate(cluster.random.getstate())
        """A stream of its own: what is drawn here moves nothing else of a seed's run."""
        self.fairness = Fairness(cluster) if cluster.profile.changes_members else None

    def note(self, kind: str, who: str = "") -> None:
        self.cluster.trace.count(f"fault: {kind}")
        self.cluster.trace.note(self.cluster.now_ms, "fault", f"{kind} {who}")

    def duration_ms(self) -> float:
        timeout_ms = self.profile.consensus.election_timeout_ms
        return self.random.choice((0.1, 0.5, 1.5, 4.0)) * timeout_ms * self.random.random()

    def anybody(self) -> SimMember | None:
        up = [member for member in self.cluster.members if member.is_up]
        leaders = [member for member in up if member.node.raft.role.value == "leader"]
        if leaders and self.random.random() < 0.4:
            return self.random.choice(leaders)
        return self.random.choice(up) if up else None

    def striking(self, kinds: Mapping[str, Callable[[SimMember], None]]) -> Kinds:
        """Kinds that strike anybody, by what becomes of the member."""

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
        if self.fairness is not None:
            self.fairness.lose(member.replica)

    def may_lose(self, member: SimMember) -> bool:
        if self.fairness is not None:
            # A directory that is new at another machine than its member's is not let in by real members.
            return member.place == member.member_id and self.fairness.may_lose(member.replica)
        members = self.cluster.members
        lost = {m.member_id for m in members if m.is_damaged or (m.is_lost and not self._is_replaced(m))}
        lost.add(member.member_id)
        return len(lost) <= (len(self.cluster.member_ids) - 1) // 2

    def _is_replaced(self, member: SimMember) -> bool:
        """Its directory votes by a change that is committed."""
        up = [each.node.log_state.committed for each in self.cluster.members if each.is_up]
        said = [state.membership for state in up if state is not None and state.membership is not None]
        return any(body.old == body.new and member.replica in body.new for body in said)

    def restart_later(self, member: SimMember) -> None:
        self.cluster.at(self.duration_ms(), member.start)


class FaultGroup:
    def __init__(self, context: FaultContext) -> None:
        self._context = context
        self._cluster = context.cluster
        self._random = context.random
        self._profile = context.profile
