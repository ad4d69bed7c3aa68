"""A client that asks a broker for much and does not read the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from quorumlog.broker.serving.broker_session import MOST_READING, MOST_UNREAD_BYTES, BrokerSession
from quorumlog.broker.wire.broker_messages import OffsetAtRequest


class Reads:
    def __init__(self) -> None:
        self.under_way: list[Callable[[Any], None]] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.under_way.append(done)


class Server:
    def __init__(self) -> None:
        self.reads = Reads()

    def lost(self, session: BrokerSession) -> None:
        """Nobody else knows it."""


class Unread:
    closed = False

    def __init__(self) -> None:
        self.unsent_bytes = 0

    def send(self, group: str, message: Any, batch: Any = None) -> None:
        self.unsent_bytes += 16 << 20


def test_what_a_client_does_not_read_is_not_read_for_it() -> None:
    """400 pulls of 20 KB in all made a member grow by 3 GB."""
    server, connection = Server(), Unread()
    session = BrokerSession(cast(Any, server), cast(Any, connection))
    under_way, answered = server.reads.under_way, 0

    def read_all() -> int:
        count = 0
        while under_way:
            assert len(under_way) <= MOST_READING
            under_way.pop(0)(5)
            count += 1
        return count

    def answer(request_id: int, outcome: Any) -> Any:
        return OffsetAtRequest(request_id=request_id, topic="t", queue_id=0, time_ms=0), None

    for number in range(100):
        asked = OffsetAtRequest(request_id=number, topic="t", queue_id=0, time_ms=0)
        session.later(asked, lambda: 5, answer)
    answered += read_all()
    assert answered < 20
    assert connection.unsent_bytes <= MOST_UNREAD_BYTES + (MOST_READING << 24)
    while answered < 100:
        connection.unsent_bytes = 0
        session.writable()
        found = read_all()
        assert found, "it goes on"
        answered += found
    connection.unsent_bytes = 2 * MOST_UNREAD_BYTES
    session.later(asked, lambda: 5, answer)
    session.lost()
    connection.unsent_bytes = 0
    session.writable()
    assert not under_way, "it has gone"
