"""What a leader's machine can tell of a slow or a dead way: bytes that are acknowledged, a full link."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from quorumlog import ConsensusConfig, LocalCluster, connect
from quorumlog.batch import EntryBatch
from quorumlog.config import KIB, MIB, UNSENT_LIMIT_BYTES, MemberAddress
from quorumlog.consensus.messages import (
    PushEntryRequest,
    PushEntryResponse,
    PushResult,
    PushType,
    RangeResponse,
)
from quorumlog.consensus.ready import Envelope, PeerStatus
from quorumlog.entry import Replica
from quorumlog.figures import without_figures
from quorumlog.net.connection import LoopTurn
from quorumlog.net.frame import encode_frame
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.server.peers import peer_link
from quorumlog.server.peers.dialler import Dialler, NameLookup
from quorumlog.server.peers.peer import RemoteMember
from quorumlog.server.peers.peer_link import PeerLink
from quorumlog.server.peers.stalled_peers import SHOWN_S, DroppedMessages, StalledPeers
from tests.waiting import eventually

PATIENCE_S = 20


BATCH = EntryBatch.from_bodies([b"x" * MIB])
PUSH = PushEntryRequest(
    sender=Replica("n0", "d0"), term=1, push=PushType.APPEND, committed_index=-1, count=1, batch=BATCH
)
ACK = PushEntryResponse(
    sender=Replica("n0", "d0"), term=1, push=PushType.APPEND, result=PushResult.SUCCESS, index=0
)
REPAIR = RangeResponse(sender=Replica("n0", "d0"), term=1, number=1, count=1, batch=BATCH)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def linked(work: Callable[[PeerLink, socket.socket], object]) -> None:
    """`work(link, other)`: a link that is up, and the other end, which nobody reads."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
        server.setblocking(False)
        ups: list[PeerLink] = []
        link = PeerLink(
            Dialler(LoopTurn(loop), NameLookup(loop)),
            "default",
            MemberAddress("n1", *server.getsockname()),
            "data",
            lambda role, to: Hello(role=role, member_id="n0", to_member_id=to),
            ups.append,
            lambda link: None,
            lambda link: None,
            lambda error: None,
        )
        link.start()
        other, _ = await loop.sock_accept(server)
        with other:
            response = HelloResponse(code=200, member_id="n1", directory_id="d1")
            await loop.sock_sendall(other, b"".join(encode_frame("default", response)))
            await until(lambda: ups == [link])
            await work(link, other)
        link.close()


def test_bytes_move_as_long_as_the_other_machine_takes_them_and_a_greeting_is_too_little() -> None:
    async def work(link: PeerLink, other: socket.socket) -> None:
        assert not link.has_moved(), "a greeting passes where large frames do not"
        link.send(PUSH)
        await until(link.has_moved)  # its buffers take what its process does not read
        for _ in range(20):
            link.send(PUSH)
        await until(lambda: not link.has_moved())  # nothing fits into them any more
        other.setblocking(False)
        received = 0
        while received < MIB:
            received += len(await asyncio.get_running_loop().sock_recv(other, MIB))
        await until(link.has_moved)

    uvloop.run(linked(work))


def test_bytes_that_move_behind_the_newest_push_say_nothing_of_it() -> None:
    async def work(link: PeerLink, other: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection = link._connection
        assert connection is not None
        other.setblocking(False)

        async def all_read() -> None:
            while connection.acknowledged_bytes < connection.sent_bytes:
                await asyncio.wait_for(loop.sock_recv(other, MIB), PATIENCE_S)

        link.send(REPAIR)
        await all_read()
        assert not link.has_moved()
        link.send(REPAIR)
        link.send(PUSH)
        link.send(REPAIR)
        await all_read()
        assert link.has_moved(), "what goes in front of the push is what it waits for"
        assert not link.has_moved()
        link.send(REPAIR)
        await all_read()
        assert not link.has_moved()
        link.send(PUSH)
        await all_read()
        assert link.has_moved()

    uvloop.run(linked(work))


def test_a_link_that_is_full_says_so_and_one_that_is_down_does_not() -> None:
    async def work(link: PeerLink, other: socket.socket) -> None:
        accepted = 0
        while link.send(PUSH):
            accepted += 1
            await asyncio.sleep(0)
            assert accepted < 200
        assert accepted * MIB > UNSENT_LIMIT_BYTES
        other.close()
        await until(lambda: link.up is None)
        assert link.send(PUSH), "lost with its connection, of which the core hears"
        assert not link.has_moved()

    uvloop.run(linked(work))


def test_what_a_full_link_drops_is_counted_and_a_push_is_not_dropped() -> None:
    async def work(link: PeerLink, other: socket.socket) -> None:
        nothing: Any = lambda *arguments: None  # noqa: E731
        loop = asyncio.get_running_loop()
        peer = RemoteMember(
            Dialler(LoopTurn(loop), NameLookup(loop)),
            "default",
            link.peer,
            nothing,
            nothing,
            nothing,
            nothing,
        )
        peer.data = link
        n1 = Replica("n1", "d1")
        while peer.send(Envelope(n1, PUSH)):
            await asyncio.sleep(0)
        assert peer.dropped.problem(time.monotonic()) == "", "its dispatcher knows"
        for _ in range(3):
            assert not peer.send(Envelope(n1, ACK))
        assert "3 messages" in peer.dropped.problem(time.monotonic())

    uvloop.run(linked(work))


def test_dropped_messages_are_one_problem_however_many_they_are() -> None:
    dropped = DroppedMessages("n1")
    assert dropped.problem(1000) == ""
    said = []
    for second in range(1000, 1180):
        dropped.note(second)
        said.append(dropped.problem(second))
    assert len(set(map(without_figures, said))) == 1
    assert "121 messages" in said[120]
    assert "180 messages" in dropped.problem(1179 + SHOWN_S - 1)
    assert dropped.problem(1179 + SHOWN_S) == ""


def test_what_finds_no_room_is_in_status_and_the_group_goes_on_once_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with LocalCluster(3) as cluster, connect(cluster.servers) as log:
        monkeypatch.setattr(peer_link, "UNSENT_LIMIT_BYTES", -1)
        eventually(lambda: any("dropped" in problem for row in log.status() for problem in row.problems))
        monkeypatch.undo()
        log.append(b"the way is free again")


def test_who_gets_no_entries_is_named_with_the_time_and_what_to_look_at() -> None:
    peer = PeerStatus(Replica("n1", "d1"), True, "APPEND", 4, -1, stalled_since_ms=70_000.0)
    stalled = StalledPeers()
    (sentence,) = stalled.problems([peer], 75_000.0, 1_000_000_005.0)
    assert sentence.startswith(
        "n1 answers heartbeats and has taken no entries since 2001-09-09 01:46:40"
    )
    assert "MTU" in sentence
    (sentence_of_silent,) = stalled.problems([peer], 76_000.0, 1_000_000_006.0, [peer.replica])
    assert "answers no heartbeats" in sentence_of_silent and "MTU" not in sentence_of_silent
    assert stalled.problems([peer], 76_000.0, 1_000_000_099.0) == [sentence], "a clock that was set"
    assert stalled.problems([replace(peer, stalled_since_ms=None)], 77_000.0, 1_000_000_007.0) == []


def test_status_names_a_follower_that_takes_entries_and_syncs_none() -> None:
    timing = ConsensusConfig(heartbeat_interval_ms=50, max_heartbeat_leak=20)
    released = threading.Event()
    with LocalCluster(3, consensus=timing) as cluster, connect(cluster.servers) as log:
        log.append(b"before")
        leader = cluster.leader()
        sick = next(member for member in cluster.running if member != leader)
        driver = cluster.server(sick).drivers[0]

        def problems() -> list[str]:
            leading = cluster.server(leader).drivers[0]
            return [problem for problem in leading.status.problems() if sick in problem]

        driver._flush.submit(released.wait, lambda result: None)
        try:
            log.append(b"without it")
            eventually(problems, timeout_s=PATIENCE_S)
            (problem,) = problems()
            assert "synced none since 20" in problem
            assert "look at its disk" in problem
        finally:
            released.set()
        eventually(lambda: not problems(), timeout_s=PATIENCE_S)
        assert cluster.leader() == leader
