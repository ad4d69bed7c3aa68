"""What does not belong here: frames, peers, directories, bodies. Each is told why, and harms nobody."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from quorumlog import (
    Durability,
    GroupConfig,
    LedgerClient,
    LedgerServer,
    LocalCluster,
    MemberAddress,
    StoreConfig,
    connect,
    connect_async,
)
from quorumlog.batch import EntryBatch
from quorumlog.errors import BodyTooLarge, Overloaded, UnknownGroup
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.server.free_ports import free_ports
from quorumlog.wire.client_messages import AppendRequest, AppendResponse, ReadRequest, ReadResponse
from tests.waiting import eventually, row_of

SMALL = StoreConfig(
    segment_bytes=256 * 1024, index_segment_bytes=32 * 1024, reserve_step_bytes=64 * 1024
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, storage=SMALL) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[LedgerClient]:
    with connect(cluster.servers) as client:
        yield client


def dial(cluster: LocalCluster, member: int = 0) -> socket.socket:
    address = cluster.members[member]
    stranger = socket.create_connection((address.host, address.port))
    stranger.settimeout(60)
    return stranger


def answers(stranger: socket.socket) -> list[object]:
    """Every message until the member closes the connection."""
    decoder = FrameDecoder()
    messages: list[object] = []
    while data := _received(stranger):
        messages += [frame.message for frame in decoder.receive_data(data)]
    return messages


def _received(stranger: socket.socket) -> bytes:
    try:
        return stranger.recv(65536)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    ("group", "change", "named"),
    [
        ("other", {}, "other"),
        ("default", {"member_id": "n9"}, "n9"),
        ("default", {"to_member_id": "n1"}, "n1"),
        ("default", {"segment_bytes": 12345}, "segment_bytes"),
        (
            "default",
            {"durability": Durability.ASYNC},
            "n1 has flush = async, member n0 of group default has flush = sync: give all members the"
            " same --flush",
        ),
        ("default", {"cluster_id": "0123456789abcdef"}, "0123456789abcdef"),
    ],
)
def test_a_peer_that_does_not_belong_is_told_why_and_let_go(
    cluster: LocalCluster, client: LedgerClient, group: str, change: dict[str, object], named: str
) -> None:
    hello = Hello(
        role="control",
        member_id="n1",
        directory_id="d" * 32,
        to_member_id="n0",
        members=",".join(f"{m.member_id}={m}" for m in cluster.members),
        segment_bytes=SMALL.segment_bytes,
        durability=Durability.SYNC,
    )
    with dial(cluster) as stranger:
        stranger.sendall(b"".join(encode_frame(group, msgspec.structs.replace(hello, **change))))
        (answer,) = answers(stranger)
    assert isinstance(answer, HelloResponse)
    assert answer.code != 200
    assert named in answer.message
    client.append(b"the group goes on")


def _frame() -> bytes:
    return b"".join(encode_frame("default", Hello(role="client")))


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(b"\x16\x03\x01" + bytes(200), id="another-protocol"),
        pytest.param(_frame()[:12] + b"\xff\xff\xff\x7f" + _frame()[16:], id="too-long"),
        pytest.param(_frame()[:-1] + bytes([_frame()[-1] ^ 1]), id="flipped-bit"),
        pytest.param(b"".join(encode_frame("default", AppendRequest())), id="no-hello"),
        pytest.param(
            _frame()
            + b"".join(
                encode_frame(
                    "default",
                    ReadResponse(first_index=0, count=0, ledger_begin_index=0, committed_index=0),
                )
            ),
            id="an-answer-from-a-client",
        ),
        pytest.param(b"".join(encode_frame("default", Hello(role="king"))), id="unknown-role"),
    ],
)
def test_nonsense_closes_its_own_connection_only(
    cluster: LocalCluster, client: LedgerClient, nonsense: bytes
) -> None:
    with dial(cluster) as stranger:
        stranger.sendall(nonsense)
        assert all(isinstance(answer, HelloResponse) for answer in answers(stranger))
    client.append(b"the member goes on")


def test_a_follower_refuses_a_read_that_was_meant_for_the_leader(
    cluster: LocalCluster, client: LedgerClient
) -> None:
    """It would answer without the newest entries; a leader that was stopped and replaced as well."""
    index = client.append(b"newest").first_index
    leader = cluster.leader()
    follower = next(i for i, m in enumerate(cluster.members) if m.member_id != leader)
    request = ReadRequest(first_index=index, from_leader=True)
    with dial(cluster, follower) as stranger:
        stranger.sendall(_frame() + b"".join(encode_frame("default", request)))
        decoder = FrameDecoder()
        messages: list[object] = []
        while len(messages) < 2:
            messages += [frame.message for frame in decoder.receive_data(_received(stranger))]
    refusal = messages[1]
    assert isinstance(refusal, ErrorResponse)
    assert refusal.code == 404
    assert refusal.leader_id == leader


def test_a_frame_cut_short_by_a_close_is_forgotten(cluster: LocalCluster, client: LedgerClient) -> None:
    with dial(cluster) as stranger:
        stranger.sendall(_frame()[:-3])
    before = client.append(b"before").first_index
    assert client.append(b"after").first_index > before


def test_a_body_over_the_limit_is_refused_with_the_limit(client: LedgerClient) -> None:
    with pytest.raises(BodyTooLarge, match=str(SMALL.entry_limit_bytes - 48)):
        client.append(b"x" * SMALL.segment_bytes)
    client.append(b"x" * (SMALL.entry_limit_bytes - 48))


def test_a_group_that_is_not_served_is_named(cluster: LocalCluster) -> None:
    with (
        connect(cluster.servers, group="accounts", timeout_ms=2000) as client,
        pytest.raises(UnknownGroup, match="accounts"),
    ):
        client.append(b"x")


@pytest.mark.parametrize("name", ["hardstate", "durable"])
def test_a_member_that_forgot_its_promises_comes_back_as_an_observer(name: str) -> None:
    with LocalCluster(3, storage=SMALL) as cluster, connect(cluster.servers) as client:
        client.append_batch([b"%d" % i for i in range(100)])
        victim = next(m for m in cluster.running if m != cluster.leader())
        cluster.kill(victim)
        (cluster.data_dir(victim) / name).write_bytes(b"\xff" * 8192)
        cluster.restart(victim)
        eventually(lambda: row_of(client, victim).role == "observer")
        eventually(lambda: "membership" in row_of(client, victim).waits_for)
        eventually(lambda: name in str(row_of(client, victim).problems))
        last = client.append(b"two voters are enough").first_index
        eventually(lambda: row_of(client, victim).committed_index >= last, what="the observer is fed")


@pytest.mark.parametrize(
    ("listed", "flush", "named"),
    [
        (2, "sync", ("lists the members", "n2=127.0.0.1:")),
        (3, "async", ("has flush = async", "has flush = sync", "--flush")),
    ],
    ids=["members", "flush"],
)
def test_options_that_differ_are_shown_by_status(
    tmp_path: Path, listed: int, flush: str, named: tuple[str, ...]
) -> None:
    ports = free_ports(3)
    three = tuple(MemberAddress(f"n{i}", "127.0.0.1", port) for i, port in enumerate(ports))

    def server(member_id: str, members: tuple[MemberAddress, ...], flush: str) -> LedgerServer:
        storage = replace(SMALL, flush=flush)
        return LedgerServer(
            [GroupConfig(member_id, members, str(tmp_path / member_id), storage=storage)]
        )

    async def problems() -> str:
        servers = [server("n0", three[:listed], "sync"), server("n1", three, flush)]
        for one in servers:
            await one.start()
        try:
            async with connect_async(f"{three[0]},{three[1]}") as client:
                async with asyncio.timeout(60):
                    while True:
                        rows = [row for row in await client.status() if row.reachable]
                        found = " ".join(str(row.problems) for row in rows)
                        if all(text in found for text in named):
                            assert {row.role for row in rows} == {"unformed"}
                            return found
        finally:
            for one in servers:
                await one.stop()

    found = asyncio.run(problems())
    assert "n0" in found
    assert "n1" in found


def test_a_connection_that_sends_more_than_it_may_is_told_to_come_back(tmp_path: Path) -> None:
    address = MemberAddress("n0", "127.0.0.1", free_ports(1)[0])
    config = GroupConfig(
        "n0", (address,), str(tmp_path / "n0"), storage=SMALL, max_connection_bytes=2000
    )

    async def outcomes() -> list[object]:
        server = LedgerServer([config])
        await server.start()
        try:
            async with connect_async(str(address)) as client:
                await client.append(b"led")
                reader, writer = await asyncio.open_connection(address.host, address.port)
                for buffer in encode_frame("default", Hello(role="client")):
                    writer.write(buffer)
                for request_id in (1, 2):
                    batch = EntryBatch.from_bodies([bytes(1500)])
                    for buffer in encode_frame("default", AppendRequest(request_id=request_id), batch):
                        writer.write(buffer)
                decoder = FrameDecoder()
                messages: list[object] = []
                while len(messages) < 3:
                    data = await reader.read(65536)
                    messages += [frame.message for frame in decoder.receive_data(data)]
                writer.close()
                # A client comes back by itself.
                await asyncio.gather(*(client.append_batch([bytes(1500)]) for _ in range(20)))
                return messages[1:]
        finally:
            await server.stop()

    found = sorted(asyncio.run(outcomes()), key=lambda message: message.request_id)
    assert isinstance(found[0], AppendResponse)
    assert isinstance(found[1], ErrorResponse)
    refusal = error_of(found[1])
    assert isinstance(refusal, Overloaded)
    assert "max_connection_bytes" in str(refusal)
    assert refusal.retry_after_ms > 0
