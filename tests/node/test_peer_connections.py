"""When the core hears of a member, and what becomes of frames that come before."""

from __future__ import annotations

from itertools import permutations

import pytest

from quorumlog.entry import Replica
from quorumlog.node.peer_connections import HELD_LIMIT_BYTES, WAYS, PeerConnections, Way

THEIR_CONTROL, THEIR_DATA = Way("control", is_ours=False), Way("data", is_ours=False)
OUR_CONTROL, OUR_DATA = Way("control", is_ours=True), Way("data", is_ours=True)


class Host:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.connections = PeerConnections(
            "n1",
            lambda replica: self.told.append(f"connected {replica.directory_id}"),
            self._lost,
        )

    def _lost(self, replica: Replica, is_gone: bool) -> None:
        assert f"connected {replica.directory_id}" in self.told
        self.told.append("gone" if is_gone else "lost")

    def open(self, *ways: Way, directory_id: str = "d") -> None:
        for way in ways:
            self.connections.opened(way, directory_id)

    def receive(self, way: Way, what: str, size_bytes: int = 0) -> None:
        assert not self.connections.connected_to
        self.connections.hold(way, size_bytes, lambda: self.told.append(what))


@pytest.mark.parametrize("order", list(permutations(WAYS)))
def test_all_four_have_to_stand(order: tuple[Way, ...]) -> None:
    host = Host()
    host.open(*order[:3])
    assert host.told == []
    host.open(order[3])
    assert host.told == ["connected d"]
    assert host.connections.connected_to == Replica("n1", "d")
    host.connections.broke(order[0])
    host.connections.broke(order[1])
    assert host.told == ["connected d", "lost"]
    host.open(order[1])
    assert host.told == ["connected d", "lost"]
    host.open(order[0])
    assert host.told == ["connected d", "lost", "connected d"]


def test_all_four_have_to_lead_to_one_directory() -> None:
    host = Host()
    host.open(OUR_CONTROL, OUR_DATA, THEIR_CONTROL)
    host.open(THEIR_DATA, directory_id="wiped")
    assert host.told == []
    host.open(OUR_CONTROL, OUR_DATA, THEIR_CONTROL, directory_id="wiped")
    assert host.told == ["connected wiped"]


def test_two_processes_on_one_directory_are_not_taken_for_one() -> None:
    host = Host()
    for way in WAYS[:3]:
        host.connections.opened(way, "d", "run 1")
    host.connections.opened(WAYS[3], "d", "run 2")
    assert host.told == []
    host.connections.opened(WAYS[3], "d", "run 1")
    assert host.told == ["connected d"]


def test_a_newer_connection_ends_the_older_one() -> None:
    host = Host()
    host.open(*WAYS)
    host.open(THEIR_CONTROL)
    assert host.told == ["connected d", "lost", "connected d"]


def test_that_nobody_is_there_any_more_is_told_also_after_the_loss() -> None:
    host = Host()
    host.open(*WAYS)
    host.connections.broke(OUR_CONTROL)
    host.connections.gone()
    assert host.told == ["connected d", "lost", "gone"]


def test_what_comes_early_waits_for_the_connection_in_its_order() -> None:
    host = Host()
    host.open(THEIR_DATA, THEIR_CONTROL)
    host.receive(THEIR_DATA, "compare")
    host.receive(THEIR_CONTROL, "heartbeat")
    host.open(OUR_CONTROL)
    host.receive(THEIR_DATA, "push")
    assert host.told == []
    host.open(OUR_DATA)
    assert host.told == ["connected d", "compare", "heartbeat", "push"]
    host.connections.broke(OUR_DATA)
    host.open(OUR_DATA)
    assert host.told[4:] == ["lost", "connected d"], "something came twice"


@pytest.mark.parametrize("breaks", [True, False])
def test_what_came_on_a_connection_that_broke_or_was_replaced_is_lost(breaks: bool) -> None:
    host = Host()
    host.open(THEIR_DATA, THEIR_CONTROL)
    host.receive(THEIR_DATA, "of an older connection")
    host.receive(THEIR_CONTROL, "heartbeat")
    if breaks:
        host.connections.broke(THEIR_DATA)
    host.open(THEIR_DATA, OUR_CONTROL, OUR_DATA)
    assert host.told == ["connected d", "heartbeat"]


def test_what_another_directory_said_is_lost() -> None:
    host = Host()
    host.open(THEIR_DATA, THEIR_CONTROL, directory_id="old")
    host.receive(THEIR_DATA, "of the old directory")
    host.receive(THEIR_CONTROL, "of the old directory, too")
    host.open(*WAYS)
    assert host.told == ["connected d"]


def test_what_waits_is_bounded_and_has_no_gaps() -> None:
    host = Host()
    host.open(THEIR_DATA, THEIR_CONTROL)
    host.receive(THEIR_DATA, "first", HELD_LIMIT_BYTES // 2)
    host.receive(THEIR_DATA, "too much", HELD_LIMIT_BYTES // 2)
    host.receive(THEIR_DATA, "behind a gap")
    host.open(OUR_CONTROL, OUR_DATA)
    assert host.told == ["connected d", "first"]
    host.connections.broke(OUR_CONTROL)
    for number in range(HELD_LIMIT_BYTES // 1024 + 10):
        host.receive(THEIR_CONTROL, str(number))
    host.open(OUR_CONTROL)
    assert len(host.told) == 4 + HELD_LIMIT_BYTES // 1024


def test_what_comes_behind_a_loss_is_lost_although_another_way_makes_room_meanwhile() -> None:
    host = Host()
    host.open(THEIR_DATA, THEIR_CONTROL)
    host.receive(THEIR_DATA, "push 1", HELD_LIMIT_BYTES // 2)
    host.receive(THEIR_CONTROL, "heartbeat", HELD_LIMIT_BYTES // 4)
    host.receive(THEIR_DATA, "push 2", HELD_LIMIT_BYTES // 2)
    host.open(THEIR_CONTROL)
    host.receive(THEIR_DATA, "push 3")
    host.receive(THEIR_CONTROL, "newer heartbeat")
    host.open(OUR_CONTROL, OUR_DATA)
    assert host.told == ["connected d", "push 1", "newer heartbeat"]
    host.open(THEIR_DATA, THEIR_CONTROL)
    host.connections.broke(OUR_DATA)
    host.receive(THEIR_DATA, "of a new connection")
    host.open(OUR_DATA)
    assert host.told[-1] == "of a new connection"


def test_a_closed_one_tells_nobody() -> None:
    host = Host()
    host.open(*WAYS)
    host.connections.close()
    for way in WAYS:
        host.connections.broke(way)
    assert host.told == ["connected d"]
