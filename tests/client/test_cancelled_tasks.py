"""Tasks that are cancelled at any step of their call, on connections that bring half frames and are
reset: the very asyncio client, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from quorumlog.client import AsyncLedgerClient
from quorumlog.entry import AppendReceipt
from quorumlog.errors import IndexOutOfRange, LedgerError, NotLeader, OutcomeUnknown, PendingFull
from quorumlog.net import system
from quorumlog.net.errors import error_response
from quorumlog.net.frame import Frame, FrameDecoder, encode_frame
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import (
    AppendRequest,
    AppendResponse,
    MemberInfo,
    ReadRequest,
    StatusRequest,
)
from tests.client.protocol.test_client_protocol import Host
from tests.kv.test_client_in_virtual_time import FIRST_PORT, VirtualLoop

PLACES = 3
ADDRESSES = [f"127.0.0.1:{FIRST_PORT + place}" for place in range(PLACES)]
CALLS = 150


class Servers(Host):
    """They share one log. Bytes are under way for a while, in pieces, and a connection ends anywhere."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        super().__init__(seed)
        self.loop = loop
        self.connections: list[Connection] = []
        self.refuses = True

    async def dial(self, place: int, client: Any) -> Any:
        await asyncio.sleep(self.random.uniform(0.0001, 0.01))
        if self.refuses and self.random.random() < 0.1:
            raise ConnectionRefusedError(111, "refused")
        connection = Connection(self, place, client)
        self.connections.append(connection)
        client.connection_made(connection)
        return connection, client

    def answer_to(self, place: int, frame: Frame) -> ClientMessage:
        message = frame.message
        if isinstance(message, Hello):
            return HelloResponse(member_id=f"n{place}", connection_id=f"c{len(self.connections)}")
        if isinstance(message, StatusRequest):
            return msgspec.structs.replace(
                self.status(message, place),
                address=ADDRESSES[place],
                leader_address=ADDRESSES[self.leader],
                members=tuple(MemberInfo(id=f"n{i}", address=a) for i, a in enumerate(ADDRESSES)),
            )
        assert isinstance(message, ReadRequest | AppendRequest), message
        error: LedgerError | None = None
        if place != self.leader:
            error = NotLeader("not me")
        elif isinstance(message, ReadRequest):
            error = IndexOutOfRange(
                "it ends there", ledger_begin_index=0, committed_index=len(self.log) - 1
            )
        elif self.random.random() < 0.1:
            error = PendingFull("full", retry_after_ms=3)
        if error is not None:
            return error_response(message.request_id, error)
        assert isinstance(message, AppendRequest) and frame.batch is not None
        count, first_index = frame.batch.count, len(self.log)
        self.log += [bytes(frame.batch.body(place)) for place in range(count)]
        return AppendResponse(
            request_id=message.request_id,
            term=1,
            first_index=first_index,
            count=count,
            durability="sync",
        )


class Connection:
    def __init__(self, servers: Servers, place: int, client: Any) -> None:
        self._servers, self._place, self._client = servers, place, client
        self._decoder = FrameDecoder()
        self._is_lost = False
        self._there_s = self._back_s = 0.0

    def writelines(self, buffers: list[Any]) -> None:
        self._there_s = self._in_pieces(b"".join(buffers), self._there_s, self._arrive)

    def _in_pieces(self, data: bytes, behind_s: float, taken: Callable[[bytes], None]) -> float:
        draw, loop = self._servers.random, self._servers.loop
        at_s = max(behind_s, loop.time())
        while data:
            size = draw.choice((3, 40, 1 << 20))
            at_s += draw.choice((1e-6, 0.0005, 0.003))
            loop.call_at(at_s, taken, data[:size])
            data = data[size:]
        return at_s

    def _arrive(self, piece: bytes) -> None:
        for frame in [] if self._is_lost else self._decoder.receive_data(piece):
            answer = b"".join(encode_frame("g", self._servers.answer_to(self._place, frame)))
            self._back_s = self._in_pieces(answer, self._back_s, self._come_back)

    def _come_back(self, piece: bytes) -> None:
        while piece and not self._is_lost:
            into = self._client.get_buffer(-1)
            count = min(len(piece), len(into))
            into[:count] = piece[:count]
            self._client.buffer_updated(count)
            piece = piece[count:]

    def is_closing(self) -> bool:
        return self._is_lost

    def abort(self) -> None:
        self.lose(None)

    def lose(self, failure: OSError | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._servers.connections.remove(self)
            self._servers.loop.call_soon(self._client.connection_lost, failure)


async def at_random(servers: Servers, draw: Random, tasks: list[asyncio.Task[Any]]) -> None:
    """Some are cancelled at once, or when their answer is there; connections are reset, others lead."""
    while not all(task.done() for task in tasks):
        await asyncio.sleep(draw.choice((0.0, 0.0005, 0.002, 0.01)))
        under_way = [task for task in tasks if not task.done()]
        chance = draw.random()
        if chance < 0.3 and under_way:
            draw.choice(under_way).cancel()
        elif chance < 0.4 and servers.connections:
            draw.choice(servers.connections).lose(ConnectionResetError(104, "reset"))
        elif chance < 0.43:
            servers.leader, servers.term = draw.randrange(PLACES), servers.term + 1


async def calls(servers: Servers, draw: Random, *, closes: bool) -> None:
    client = AsyncLedgerClient(ADDRESSES, group="g", timeout_ms=5_000)
    appends: dict[bytes, asyncio.Task[AppendReceipt]] = {}
    tasks: list[asyncio.Task[Any]] = []

    def begin(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        tasks.append(asyncio.ensure_future(call))
        return tasks[-1]

    begin(client.end_index())
    chance = asyncio.ensure_future(at_random(servers, draw, tasks))
    for number in range(CALLS):
        body = b"%d" % number
        if draw.random() < 0.7:
            alone = draw.random() < 0.7
            appends[body] = begin(client.append(body) if alone else client.append_batch([body]))
        else:
            begin(client.end_index() if draw.random() < 0.5 else client.status(timeout_ms=1_000))
        await asyncio.sleep(draw.choice((0.0, 0.0, 0.001)))
        if closes and number == CALLS // 2:
            await client.close()
            assert not servers.connections
    async with asyncio.timeout(60):
        await asyncio.wait(tasks)
    await chance
    failures = [task.exception() for task in tasks if not task.cancelled()]
    assert all(isinstance(each, LedgerError | None) for each in failures)
    await asyncio.sleep(6)
    assert client._protocol.next_wakeup_ms() == float("inf"), "something is awaited still"
    await client.close()
    assert not servers.connections
    for body, task in appends.items():
        times = servers.log.count(body)
        if task.cancelled():
            assert times <= 1
        elif (error := task.exception()) is None:
            assert servers.log[task.result().first_index] == body
            assert times == 1
        else:
            assert times <= isinstance(error, OutcomeUnknown), (error, times)


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_task_has_its_outcome_and_every_body_is_written_once_at_most(
    seed: int, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = VirtualLoop()
    monkeypatch.setattr(system, "time", SimpleNamespace(monotonic=loop.time))
    servers = Servers(loop, seed)
    loop.network = servers  # type: ignore[assignment]
    try:
        loop.run_until_complete(calls(servers, Random(seed), closes=closes))
    finally:
        loop.close()
    assert loop.failures == []
