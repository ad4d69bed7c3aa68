"""ProcessFaults: processes and machines that end, stop for a while, or have a wrong clock.

What ends is started again by somebody.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from quorumlog.testing.faults.fault_context import FaultContext, FaultGroup, Kinds

if TYPE_CHECKING:
    from quorumlog.testing.member import SimMember


class ProcessFaults(FaultGroup):
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
        """The disk has said that now is the moment."""
        how = self._dying.pop(member.member_id, "kill")
        member.disk.crash_countdown = None
        if how == "kill":
            member.kill()
        else:
            member.lose_power()
        self._context.restart_later(member)

    def _clean_stop(self, member: SimMember) -> None:
        if self._profile.stops_with_successor:
            if member.node.raft.role.value == "leader":
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
