"""Operators by hand: each step of theirs may be late, lost or the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumlog.broker.broker_server import state_of, work_of
from quorumlog.broker.client.switching import BrokerProbe
from quorumlog.broker.wire import ReplicaRequest, ReplicaResponse
from quorumlog.errors import LedgerError, OutcomeUnknown, Unreachable
from quorumlog.testing.disk import Crashed

if TYPE_CHECKING:
    from sim.replicas.machines import Broker
    from sim.replicas.world import World


class OperatorGone(Exception):
    """The process of a switch is killed between two of its steps."""


class SimulatedProbe(BrokerProbe):
    """`world.meanwhile` runs before each thing that is asked; the operator may be gone then."""

    def __init__(self, world: World, is_gone_at: int = -1) -> None:
        """`is_gone_at`: how many things it asks before it is killed."""
        super().__init__()
        self._world = world
        self._left = is_gone_at
        for name in world.brokers:
            if not self._is_reached(name):
                self.unreachable[name] = "it is down"
                continue
            try:
                self.ask(name)
            except LedgerError as error:
                self.unreachable[name] = str(error)

    def _is_reached(self, name: str) -> bool:
        world = self._world
        return world.brokers[name].is_running and name not in world.away | world.hidden | world.old

    def _call(self, broker_id: str, request: ReplicaRequest) -> ReplicaResponse:
        if self._left == 0:
            raise OperatorGone
        self._left -= 1
        world, broker = self._world, self._world.brokers[broker_id]
        world.meanwhile()
        if not self._is_reached(broker_id):
            raise Unreachable(f"{broker_id} is down")
        replica = broker.living
        fate = world.random.random() if world.is_harsh and not world.is_quiet else 1.0
        if request.verb:
            if fate < 0.03:
                broker.later(world.random.choice((5.0, 500.0)), lambda: self._carry_out(broker, request))
                raise OutcomeUnknown(f"{broker_id} does not answer in time")
            try:
                self._carry_out(broker, request, is_heard=True)
            except Crashed:
                world.story.append(f"{broker_id} crashes in a switch, at {request.verb}")
                broker.crash(world.random, power=world.loses_power)
                raise OutcomeUnknown(f"{broker_id} is lost") from None
            if fate < 0.06:
                raise OutcomeUnknown(f"the answer of {broker_id} is lost")
        return state_of(replica, dialect="quorumlog")

    def _carry_out(self, broker: Broker, request: ReplicaRequest, *, is_heard: bool = False) -> None:
        """What comes late is refused to nobody."""
        work = work_of(broker.living, request)
        assert work is not None, request
        try:
            work()
        except LedgerError:
            if is_heard:
                raise

    def leap(self) -> int:
        return self._world.random.randrange(1, 1_000)
