"""A client that asks a broker for much and does not read the answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import msgspec

from quorumlog.broker import BrokerClient, Message
from quorumlog.broker.broker_port import (
    MOST_OPEN,
    MOST_READING,
    BrokerSession,
)
from quorumlog.broker.client.broker_calls import pulled_of
from quorumlog.broker.wire import OffsetAtRequest, PullRequest, broker_decoder, encode
from quorumlog.errors import ConnectionFull, Forbidden
from quorumlog.log_state.users import Kind, Right, RoleGrant, User, UserRole, Users
from quorumlog.net.access import Access
from quorumlog.net.errors import ErrorResponse
from quorumlog.net.frame import Frame
from tests.broker.serving.served import dialled, hello, served


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
    is_full = False

    def __init__(self) -> None:
        self.unsent = 0

    def send(self, group: str, message: Any, batch: Any = None) -> None:
        self.unsent += 1
        self.is_full = True


def test_what_a_client_does_not_read_is_not_read_for_it() -> None:
    what_is_not_read_is_not_made()


def test_what_waits_for_its_client_is_refused_once_the_right_is_gone() -> None:
    access, server, connection, answers = Access(), Server(), Unread(), []
    grant = RoleGrant(Right.READ, Kind.TOPIC, b"t")
    access.learn(Users(True, b"", (User("bob", ("r",)),), (UserRole("r", (grant,)),)))
    connection.user, connection.peer_name = "bob", "here:1"  # type: ignore[attr-defined]
    session = BrokerSession(cast(Any, server), cast(Any, connection), access)
    connection.is_full = True
    session.answer = lambda message, records=None: answers.append(message)  # type: ignore[method-assign]
    asked = OffsetAtRequest(request_id=1, topic="t", queue_id=0, time_ms=0)
    session.frame(Frame("", asked, None))
    access.learn(Users(True, b"", (User("bob"),)))
    connection.is_full = False
    session.writable()
    server.reads.under_way.pop()(5)
    assert [each.code for each in answers] == [Forbidden.code]


def what_is_not_read_is_not_made() -> None:
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
    assert answered == connection.unsent == MOST_READING
    while answered < 100:
        connection.is_full = False
        session.writable()
        found = read_all()
        assert found, "it goes on"
        answered += found
    connection.is_full = True
    session.later(asked, lambda: 5, answer)
    session.lost()
    connection.is_full = False
    session.writable()
    assert not under_way, "it has gone"


def test_more_requests_than_a_connection_may_have_are_refused() -> None:
    requests_of_a_connection_are_bounded()


def requests_of_a_connection_are_bounded() -> None:
    """Pulls at the end of a queue wait, each with a callback and a timer of its own."""
    with (
        TemporaryDirectory() as folder,
        served(Path(folder), {"t": 1}) as server,
        BrokerClient(server.address) as producer,
        dialled(server.address) as consumer,
    ):
        end = producer.send(Message("t", b"first")).queue_offset + 1
        assert producer.pull("t", 0, 0, wait_ms=60_000).messages, "it is in its queue"
        asked = PullRequest(topic="t", queue_id=0, offset=end, wait_ms=60_000)
        consumer.sendall(hello())
        for number in range(1, MOST_OPEN + 2):
            consumer.sendall(b"".join(encode(msgspec.structs.replace(asked, request_id=number))))
        decoder = broker_decoder()
        answers: list[Frame] = []

        def read(count: int) -> None:
            while len(answers) < count:
                try:
                    answers.extend(decoder.receive_data(consumer.recv(1 << 16)))
                except TimeoutError:
                    raise AssertionError(f"{count} answers were due, {len(answers)} came") from None

        read(2)
        refused = answers[1].message
        assert isinstance(refused, ErrorResponse)
        assert (refused.code, refused.message[:13]) == (ConnectionFull.code, "1000 requests")
        assert refused.retry_after_ms > 0
        assert answers[1].message.request_id == MOST_OPEN + 1
        producer.send(Message("t", b"second"))
        read(2 + MOST_OPEN)
        assert {each.message.request_id for each in answers[2:]} == set(range(1, MOST_OPEN + 1))
        consumer.sendall(b"".join(encode(msgspec.structs.replace(asked, offset=end, request_id=5000))))
        read(3 + MOST_OPEN)
        assert pulled_of(answers[-1]).messages[0].body == b"second"
