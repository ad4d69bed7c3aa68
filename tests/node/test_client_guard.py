"""What a client says ends its connection; what breaks within the member ends the member."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.client_guard import answering, is_of_client
from quorumlog.errors import LeaderNotReady, ProtocolViolation, RangeDamaged, StoreFailure
from quorumlog.log_state.log_state import EMPTY, LogStates
from quorumlog.node import NodeHandle
from quorumlog.stray_log import QUIET_S, StrayLog, is_loopback
from quorumlog.version import IS_COMPILED
from tests.node.cell import Cell


class Asked:
    """A client's session."""

    def __init__(self) -> None:
        self.violations: list[str] = []

    def violate(self, violation: ProtocolViolation) -> None:
        self.violations.append(str(violation))


def entered(act: Callable[[], object], client: object) -> None:
    """In the next turn of a member, which is now."""
    NodeHandle(lambda: None, lambda turn: turn()).enter(lambda: act() and None, client)


def raising(error: Exception) -> Callable[[], object]:
    def act() -> object:
        raise error

    return act


def break_an_invariant() -> None:
    LogStates(EMPTY, 5).append(3, [])


def reaches_the_member(act: Callable[[], object], client: Asked) -> list[bool]:
    """What `act` raises: on the member's thread, in its next turn and in an answer within one."""

    def answer(outcome: None) -> None:
        act()

    reached: list[bool] = []
    for call in (lambda: entered(act, client), lambda: answering(answer, client)(None)):
        try:
            call()
            reached.append(False)
        except Exception:  # any of them would stop the member
            reached.append(True)
    return reached


def clients_end_their_connections_and_the_member_by_its_own_errors_alone() -> None:
    for error in (KeyError("k"), OverflowError("n"), ProtocolViolation("no"), LeaderNotReady("later")):
        client = Asked()
        assert reaches_the_member(raising(error), client) == [False, False], error
        assert len(client.violations) == 2, error
    client = Asked()
    for breaking in (break_an_invariant, raising(StoreFailure("the disk refuses"))):
        assert reaches_the_member(breaking, client) == [True, True], breaking
    assert not client.violations


def test_clients_end_their_connections_and_the_member_by_its_own_errors_alone() -> None:
    clients_end_their_connections_and_the_member_by_its_own_errors_alone()


def test_an_error_without_a_client_to_blame_is_the_members() -> None:
    with pytest.raises(KeyError):
        entered(raising(KeyError("k")), object())


@pytest.mark.skipif(IS_COMPILED, reason="what is compiled takes no stub, and no other method")
def test_a_refusal_in_the_midst_of_what_the_core_has_decided_is_the_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on with a core that is ahead of its store."""
    cell = Cell(tmp_path, members=1)
    cell.until(lambda: cell.leader().committed_index >= 0, "the first commit")
    node = cell.leader()

    def refuse(batch: EntryBatch) -> None:
        raise RangeDamaged("it cannot be read")

    with monkeypatch.context() as broken:
        broken.setattr(node.store, "append", refuse)
        node.append(EntryBatch.from_bodies([b"x"]), 0, lambda outcome: None)
        with pytest.raises(StoreFailure) as raised:
            node.turn()
    assert not is_of_client(raised.value)
    cell.kill("n0")


def test_strangers_get_a_line_a_minute_that_counts_those_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = [0.0]
    strays = StrayLog(logging.getLogger("quorumlog.tests.strays"), lambda: clock[0])
    for second in range(int(2 * QUIET_S) + 1):
        clock[0] = second
        strays.closing(f"10.0.0.1:{second}", "no frame")
    assert caplog.messages == [
        "closing the connection of 10.0.0.1:0: no frame",
        "closing the connection of 10.0.0.1:60: no frame (and 59 more since the last line of these)",
        "closing the connection of 10.0.0.1:120: no frame (and 59 more since the last line of these)",
    ]


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("h", False)],
)
def test_which_addresses_other_machines_reach(host: str, is_own: bool) -> None:
    assert is_loopback(host) == is_own
