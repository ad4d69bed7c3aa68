"""BrokerExtension: what a broker does beside storing messages, such as topics and consumer groups that
are replicated: state machines of its own, requests of its own, and work that only the master does.

Everything is called on the loop of the member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from quorumlog.broker.dledger.broker_role import RoleState
from quorumlog.broker.wire.broker_messages import AnyBrokerMessage
from quorumlog.net.frame import Frame
from quorumlog.node import MachineFactory

if TYPE_CHECKING:
    from quorumlog.broker.dledger.dledger_broker import DLedgerBroker
    from quorumlog.broker.serving.broker_session import BrokerSession


class BrokerExtension(Protocol):
    @property
    def machines(self) -> Mapping[str, MachineFactory]:
        """State machines that the member runs beside that of the messages, by name: each has a channel
        of its own."""

    def open(self, broker: DLedgerBroker) -> None:
        """The member runs. `broker.member` appends (`DoorMember.append` with the name of a machine) and
        asks; `broker.log` puts messages; `broker.topics` may be replaced by what knows the queues."""

    def role_changed(self, state: RoleState) -> None:
        """`state.role` is that of a master only once every earlier entry is dispatched here, to the
        machine of the messages and to those of all extensions."""

    def tick(self, now_ms: float) -> None:
        """Every `TICK_MS`, whatever the role. `now_ms`: a clock that goes on while the machine
        sleeps."""

    def request(self, session: BrokerSession, message: AnyBrokerMessage, frame: Frame) -> bool:
        """A request that the broker does not know. True: it is this extension's, and is answered with
        `session.answer` or `session.refuse`, now or later. Raises ProtocolViolation."""

    def lost(self, session: BrokerSession) -> None:
        """Its connection has ended."""

    def close(self) -> None:
        """The member is about to stop."""
