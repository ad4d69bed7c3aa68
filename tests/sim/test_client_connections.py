"""What is on its way between a simulated client and a member when one of them ends."""

from __future__ import annotations

import pytest

import sim.clients
from quorumlog.broker.wire import GROUP, BrokerStatusRequest, broker_request_decoder
from quorumlog.net.frame import Frame, encode_frame
from quorumlog.node import MachineFactory
from quorumlog.testing.member import SimMember
from sim.clients import DataCallback, LostCallback, SimConnection, SimPorts
from tests.sim.scenario import Scenario


class _Connection(SimConnection):
    def __init__(
        self, ports: SimPorts, member: SimMember, told: DataCallback, lost: LostCallback
    ) -> None:
        super().__init__(ports, member, broker_request_decoder(), told, lost)
        self.came: list[object] = []

    def take(self, frame: Frame) -> None:
        assert isinstance(frame.message, BrokerStatusRequest)
        self.came.append(frame.message.request_id)

    def left(self) -> None:
        self.came.append("left")


class _Ports(SimPorts):
    def connect(self, member: SimMember, told: DataCallback, lost: LostCallback) -> _Connection:
        return _Connection(self, member, told, lost)

    def machines_of(self, member_id: str) -> dict[str, MachineFactory]:
        return {}

    def started(self, member: SimMember) -> None: ...


def _ask(connection: _Connection, request_id: int) -> None:
    connection.write(b"".join(encode_frame(GROUP, BrokerStatusRequest(request_id=request_id))))


@pytest.fixture
def scene() -> Scenario:
    return Scenario(checked=False)


def _connected(scene: Scenario) -> tuple[_Connection, list[object]]:
    """And what the client hears."""
    ports = _Ports()
    ports.cluster = scene.cluster
    heard: list[object] = []
    connection = ports.connect(scene.members[0], heard.append, lambda: heard.append("lost"))
    return connection, heard


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_member_that_goes_on_takes_what_clients_that_have_gone_had_sent(
    scene: Scenario, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    monkeypatch.setattr(sim.clients, "LOSES", float(is_lost))
    connection, heard = _connected(scene)
    connection.member.pause(100)
    for request_id in range(3):
        _ask(connection, request_id)
        scene.run_for(7)
    connection.leave()
    scene.run_for(50)
    assert not connection.came and connection.is_up
    scene.run_for(100)
    assert connection.came == ["left"] if is_lost else [0, 1, 2, "left"]
    assert not connection.is_up and not heard


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_a_process_had_said_when_it_ended_reaches_its_clients(
    scene: Scenario, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    monkeypatch.setattr(sim.clients, "LOSES", float(is_lost))
    connection, heard = _connected(scene)
    connection.say([b"done"])
    _ask(connection, 1)
    connection.member.kill()
    connection.break_off()
    scene.run_for(10)
    assert heard == (["lost"] if is_lost else [b"done", "lost"])
    assert not connection.came
