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
    world = Host()
    world.open(*order[:3])
    assert world.told == []
    world.open(order[3])
    assert world.told == ["connected d"]
    assert world.connections.connected_to == Replica("n1", "d")
    world.connections.broke(order[0])
    world.connections.broke(order[1])
    assert world.told == ["connected d", "lost"]
    world.open(order[1])
    assert world.told == ["connected d", "lost"]
    world.open(order[0])
    assert world.told == ["connected d", "lost", "connected d"]


def test_all_four_have_to_lead_to_one_directory() -> None:
    world = Host()
    world.open(OUR_CONTROL, OUR_DATA, THEIR_CONTROL)
    world.open(THEIR_DATA, directory_id="wiped")
    assert world.told == []
    world.open(OUR_CONTROL, OUR_DATA, THEIR_CONTROL, directory_id="wiped")
    assert world.told == ["connected wiped"]


def test_two_processes_on_one_directory_are_not_taken_for_one() -> None:
    world = Host()
    for way in WAYS[:3]:
        world.connections.opened(way, "d", "run 1")
    world.connections.opened(WAYS[3], "d", "run 2")
    assert world.told == []
    world.connections.opened(WAYS[3], "d", "run 1")
    assert world.told == ["connected d"]


def test_a_newer_connection_ends_the_older_one() -> None:
    world = Host()
    world.open(*WAYS)
    world.open(THEIR_CONTROL)
    assert world.told == ["connected d", "lost", "connected d"]


def test_that_nobody_is_there_any_more_is_told_also_after_the_loss() -> None:
    world = Host()
    world.open(*WAYS)
    world.connections.broke(OUR_CONTROL)
    world.connections.gone()
    assert world.told == ["connected d", "lost", "gone"]


def test_what_comes_early_waits_for_the_connection_in_its_order() -> None:
    world = Host()
    world.open(THEIR_DATA, THEIR_CONTROL)
    world.receive(THEIR_DATA, "compare")
    world.receive(THEIR_CONTROL, "heartbeat")
    world.open(OUR_CONTROL)
    world.receive(THEIR_DATA, "push")
    assert world.told == []
    world.open(OUR_DATA)
    assert world.told == ["connected d", "compare", "heartbeat", "push"]
    world.connections.broke(OUR_DATA)
    world.open(OUR_DATA)
    assert world.told[4:] == ["lost", "connected d"], "something came twice"


@pytest.mark.parametrize("breaks", [True, False])
def test_what_came_on_a_connection_that_broke_or_was_replaced_is_lost(breaks: bool) -> None:
    world = Host()
    world.open(THEIR_DATA, THEIR_CONTROL)
    world.receive(THEIR_DATA, "of an older connection")
    world.receive(THEIR_CONTROL, "heartbeat")
    if breaks:
        world.connections.broke(THEIR_DATA)
    world.open(THEIR_DATA, OUR_CONTROL, OUR_DATA)
    assert world.told == ["connected d", "heartbeat"]


def test_what_another_directory_said_is_lost() -> None:
    world = Host()
    world.open(THEIR_DATA, THEIR_CONTROL, directory_id="old")
    world.receive(THEIR_DATA, "of the old directory")
    world.receive(THEIR_CONTROL, "of the old directory, too")
    world.open(*WAYS)
    assert world.told == ["connected d"]


def test_what_waits_is_bounded_and_has_no_gaps() -> None:
    world = Host()
    world.open(THEIR_DATA, THEIR_CONTROL)
    world.receive(THEIR_DATA, "first", HELD_LIMIT_BYTES // 2)
    world.receive(THEIR_DATA, "too much", HELD_LIMIT_BYTES // 2)
    world.receive(THEIR_DATA, "behind a gap")
    world.open(OUR_CONTROL, OUR_DATA)
    assert world.told == ["connected d", "first"]
    world.connections.broke(OUR_CONTROL)
    for number in range(HELD_LIMIT_BYTES // 1024 + 10):
        world.receive(THEIR_CONTROL, str(number))
    world.open(OUR_CONTROL)
    assert len(world.told) == 4 + HELD_LIMIT_BYTES // 1024


def test_what_comes_behind_a_loss_is_lost_although_another_way_makes_room_meanwhile() -> None:
    world = Host()
    world.open(THEIR_DATA, THEIR_CONTROL)
    world.receive(THEIR_DATA, "push 1", HELD_LIMIT_BYTES // 2)
    world.receive(THEIR_CONTROL, "heartbeat", HELD_LIMIT_BYTES // 4)
    world.receive(THEIR_DATA, "push 2", HELD_LIMIT_BYTES // 2)
    world.open(THEIR_CONTROL)
    world.receive(THEIR_DATA, "push 3")
    world.receive(THEIR_CONTROL, "newer heartbeat")
    world.open(OUR_CONTROL, OUR_DATA)
    assert world.told == ["connected d", "push 1", "newer heartbeat"]
    world.open(THEIR_DATA, THEIR_CONTROL)
    world.connections.broke(OUR_DATA)
    world.receive(THEIR_DATA, "of a new connection")
    world.open(OUR_DATA)
    assert world.told[-1] == "of a new connection"


def test_a_closed_one_tells_nobody() -> None:
    world = Host()
    world.open(*WAYS)
    world.connections.close()
    for way in WAYS:
        world.connections.broke(way)
    assert world.told == ["connected d"]
