"""What looking at rights takes of a request: `python -m benchmarks.checks`.

The session of each port gets the same frame again and again, by turns without users and as a user that
may do that. What is behind it only decodes what it would decode anyway, since the check leaves that to
it. Printed is the least processor time of 41 turns each, since whatever else runs only adds to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

from quorumlog.batch import EntryBatch
from quorumlog.broker.broker_port import BrokerSession
from quorumlog.broker.client.broker_calls import UniqKeys, encode_messages
from quorumlog.broker.message import Message
from quorumlog.broker.wire import PullRequest, SendRequest
from quorumlog.kv.endpoint import _Client
from quorumlog.kv.requests import CommandRequest, Put, decode_command_of_client, encode
from quorumlog.log_state.users import NO_USERS, Kind, Right, RoleGrant, User, UserRole, Users
from quorumlog.net.access import Access
from quorumlog.net.frame import Frame
from quorumlog.server.clients.client_session import ClientSession
from quorumlog.wire.client_messages import AppendRequest

TURNS, TIMES = 60, 1_000
GRANTS = tuple(RoleGrant(Right.ADMIN, kind, b"orders") for kind in Kind if kind is not Kind.CLUSTER)
BOB = Users(True, b"", (User("bob", ("r",)),), (UserRole("r", GRANTS),))


class Asked(Protocol):
    def frame(self, frame: Frame) -> None: ...


def connection() -> Any:
    def refuse(*given: object) -> None:
        raise AssertionError(given)

    return SimpleNamespace(user="bob", peer_name="here:1", is_full=False, closed=False, send=refuse)


def log_session(access: Access) -> Asked:
    driver: Any = SimpleNamespace(stopped=False, enter=lambda connection, frame: None)
    users: Any = SimpleNamespace(access=access)
    return ClientSession(connection(), {"orders": driver}, lambda number: None, users)


def store_session(access: Access) -> Asked:
    def request(client: Any, request: CommandRequest) -> None:
        decode_command_of_client(request.command)
        client._pending.clear()
        client._pending_bytes = 0

    endpoint: Any = SimpleNamespace(access=access, service=SimpleNamespace(request=request))
    client = _Client(endpoint, connection())
    client._is_greeted = True
    return client


def broker_session(access: Access) -> Asked:
    def submit(work: object, done: object) -> None:
        session._open = session._reads._under_way = 0

    server: Any = SimpleNamespace(
        puts=SimpleNamespace(add=lambda records, waits, answer: None),
        reads=SimpleNamespace(submit=submit),
        store=None,
    )
    session = BrokerSession(server, connection(), access)
    return session


def framed(group: str, message: Any, batch: Any = None) -> Frame:
    return Frame(group, message, batch)


def append(number: int) -> Frame:
    return framed("orders", AppendRequest(request_id=number))


def put(number: int) -> Frame:
    command = encode(Put(b"orders/1", b"x" * 100))
    return framed("", CommandRequest(request_id=number, command=command))


def pull(number: int) -> Frame:
    return framed("broker", PullRequest(request_id=number, topic="orders", queue_id=0, offset=0))


def send(number: int) -> Frame:
    encoded = encode_messages([Message("orders", b"x" * 100)], 0, UniqKeys(), bytes(8))
    return framed("broker", SendRequest(request_id=number), EntryBatch(encoded.buffer, encoded.sizes))


def microseconds(session: Asked, frames: list[Frame]) -> float:
    began_s = time.process_time()
    for frame in frames:
        session.frame(frame)
    return (time.process_time() - began_s) * 1e6 / len(frames)


def checked(
    session_of: Callable[[Access], Asked], frame_of: Callable[[int], Frame]
) -> tuple[float, float]:
    """Of a request without users, and what they add."""
    off, on = Access(), Access()
    off.learn(NO_USERS)
    on.learn(BOB)
    sessions = [session_of(access) for access in (off, on)]
    turns = [
        [microseconds(each, [frame_of(number) for number in range(TIMES)]) for each in sessions]
        for _ in range(TURNS)
    ]
    without, with_users = (min(each) for each in zip(*turns, strict=True))
    return without, with_users - without


def main() -> None:
    print("| request | its session without users, us | users add, us |")
    print("| --- | --- | --- |")
    for session_of, frame_of in (
        (log_session, append),
        (store_session, put),
        (broker_session, send),
        (broker_session, pull),
    ):
        without, added = checked(session_of, frame_of)
        print(f"| {frame_of.__name__} | {without:.2f} | {added:.2f} |", flush=True)


if __name__ == "__main__":
    main()
