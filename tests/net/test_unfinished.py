"""What has come in part is held, and bounded over all connections."""

from __future__ import annotations

import asyncio
import logging
import struct

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.net import limits as limits_module
from quorumlog.net.connection import Connection
from quorumlog.net.frame import FROM_CLIENT_BYTES, MAGIC, encode_frame
from quorumlog.net.limits import UNFINISHED_S, ProcessLimits
from quorumlog.wire.client_messages import MachineReadRequest, StatusRequest
from tests.net.test_listener import CLIENT, PEER, Port, Streams, answer, is_closed, open_port, run

MOST = 1_000


class Connections:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits_module, "UNFINISHED_BYTES", MOST)
        self.limits = ProcessLimits(lambda: 10_000, lambda: 0)
        self.closed: list[str] = []
        self.reasons: list[str] = []

    def enter(self, *names: str) -> None:
        for name in names:

            def close(reason: str, name: str = name) -> None:
                self.closed.append(name)
                self.reasons.append(reason)

            self.limits.enter(name, close)

    def hold(self, name: str, size_bytes: int, now_s: float, *, is_client: bool = True) -> None:
        self.limits.unfinished(name, size_bytes, is_client=is_client, now_s=now_s)


def test_whoever_began_first_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    all_of = Connections(monkeypatch)
    all_of.enter("a", "b", "c", "d")
    all_of.hold("a", 400, 0.0)
    all_of.hold("b", 600, 1.0)
    all_of.hold("c", 300, UNFINISHED_S)
    assert all_of.closed == ["a"]
    assert "400 bytes are held for it, and 1300 for all" in all_of.reasons[0]
    all_of.hold("b", 0, 0.0)
    all_of.hold("b", 500, UNFINISHED_S)
    assert all_of.closed == ["a"], "what it has begun is whole, and something else has begun"
    all_of.hold("d", 900, UNFINISHED_S)
    assert all_of.closed == ["a"], "it may be that all of them come to their ends"
    all_of.hold("d", 1_300, UNFINISHED_S)
    assert all_of.closed == ["a", "c"], "as long as it is not twice as much"
    for name in ("b", "c", "d"):
        all_of.limits.leave(name)
    all_of.enter("e")
    all_of.hold("e", 2_000, 100.0)
    assert all_of.closed == ["a", "c"], "nothing is counted of those that have gone"


def test_what_a_closed_connection_receives_meanwhile_closes_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    all_of = Connections(monkeypatch)
    all_of.enter("a", "b")
    all_of.hold("a", 600, 0.0)
    all_of.hold("b", 600, 1.0)
    all_of.hold("b", 601, 1.0 + UNFINISHED_S)
    all_of.hold("a", 601, 1.0 + UNFINISHED_S)
    assert all_of.closed == ["a"]


def test_members_are_not_closed_for_what_clients_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    all_of = Connections(monkeypatch)
    all_of.enter("member", "client", "other")
    all_of.hold("member", 900, 0.0, is_client=False)
    all_of.hold("client", 900, 1.0)
    all_of.hold("other", 200, 100.0)
    assert all_of.closed == ["client"]


def half_frame(frame_bytes: int, sent_bytes: int) -> bytes:
    tail = struct.pack("<IIII", 0, frame_bytes, 100, 1)
    return (MAGIC + bytes(4) + tail).ljust(sent_bytes, b"\0")


async def dial_half(port: Port, hello: object, sent_bytes: int) -> Streams:
    streams = await port.dial(hello)
    assert await answer(streams) is not None
    streams[1].write(half_frame(16 << 20, sent_bytes))
    return streams


def test_half_frames_are_held_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """40 connections with 15 MiB each made a member grow by 600 MB, for ever."""
    monkeypatch.setattr(limits_module, "UNFINISHED_BYTES", 1 << 20)
    caplog.set_level(logging.WARNING)

    async def scene() -> None:
        async with open_port() as port:
            member = await dial_half(port, PEER, 900_000)
            first = await dial_half(port, CLIENT, 900_000)
            second = await dial_half(port, CLIENT, 900_000)
            third = await dial_half(port, CLIENT, 900_000)
            assert await is_closed(first)
            for streams in (member, second, third):
                assert not streams[0].at_eof()
            second[1].close()
            third[1].close()
            while port.limits.open_connections > 1:
                await asyncio.sleep(0)
            last = await port.dial(CLIENT, StatusRequest(request_id=1))
            await answer(last)
            held = [of.size_bytes for of in port.limits._unfinished.values()]
            assert held[0] == 0 and held[1] > 0

    run(scene)
    assert "it does not arrive completely, or waits" in caplog.text


def test_nothing_is_held_of_a_connection_that_is_lost() -> None:
    """Its session may live until cycles are looked for."""

    async def scene() -> None:
        async with open_port() as port:
            made: list[Connection] = []
            connect = port._connect

            def kept(connection: Connection) -> None:
                made.append(connection)
                connect(connection)

            port.listener._connect = kept  # type: ignore[method-assign]
            streams = await dial_half(port, CLIENT, 900_000)
            while not made[0].decoder.unfinished_bytes:
                await asyncio.sleep(0)
            streams[1].transport.abort()
            while port.limits.open_connections:
                await asyncio.sleep(0)
            assert not made[0].decoder.unfinished_bytes

    run(scene)


def test_whole_frames_are_not_held() -> None:
    async def scene() -> None:
        async with open_port() as port:
            streams = await port.dial(CLIENT)
            await answer(streams)
            batch = EntryBatch.from_bodies([bytes(1 << 20)])
            for buffer in encode_frame("default", StatusRequest(), batch):
                streams[1].write(bytes(buffer))
            while len(port.said) < 2:
                await asyncio.sleep(0)
            assert [of.size_bytes for of in port.limits._unfinished.values()] == [0, 0]

    run(scene)


@pytest.mark.parametrize("hello", [CLIENT, PEER])
def test_what_a_client_of_the_log_says_beside_entries_is_bounded(hello: object) -> None:
    async def scene() -> None:
        async with open_port() as port:
            streams = await port.dial(hello)
            await answer(streams)
            question = MachineReadRequest(machine="m", question=bytes(FROM_CLIENT_BYTES))
            for buffer in encode_frame("default", question):
                streams[1].write(bytes(buffer))
            if hello is CLIENT:
                assert await is_closed(streams)
                return
            while len(port.said) < 2:
                await asyncio.sleep(0)

    run(scene)
