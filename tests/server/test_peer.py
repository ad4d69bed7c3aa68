"""Which of the two connections a message takes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quorumlog.config import MemberAddress
from quorumlog.consensus.messages import PushEntryRequest, PushType
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import EntryId, Replica
from quorumlog.server.connection import LoopTurn
from quorumlog.server.peers.name_lookup import NameLookup
from quorumlog.server.peers.peer import Peer
from quorumlog.server.peers.peer_link import PeerLink
from quorumlog.wire.client_messages import HelloResponse

N1 = Replica("n1", "n1-directory")


def push(kind: PushType, number: int = 0) -> Envelope:
    message = PushEntryRequest(
        term=1, push=kind, committed_index=4, number=number, previous=EntryId(4, 1)
    )
    return Envelope(N1, message)


def test_a_commit_goes_with_the_heartbeats_and_one_that_asks_with_the_pushes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[str, PushType, int]] = []

    def record(link: PeerLink, message: PushEntryRequest) -> bool:
        sent.append((link.role, message.push, message.number))
        return True

    async def send_three() -> None:
        nothing: Any = lambda *arguments: None  # noqa: E731
        address = MemberAddress("n1", "127.0.0.1", 1)
        loop = asyncio.get_running_loop()
        peer = Peer(
            LoopTurn(loop), NameLookup(loop), "default", address, nothing, nothing, nothing, nothing
        )
        peer.control.up = peer.data.up = HelloResponse(directory_id=N1.directory_id)
        peer.send(push(PushType.COMMIT))
        peer.send(push(PushType.COMMIT, number=7))
        peer.send(push(PushType.APPEND))

    monkeypatch.setattr(PeerLink, "send", record)
    asyncio.run(send_three())
    assert sent == [
        ("control", PushType.COMMIT, 0),
        ("data", PushType.COMMIT, 7),
        ("data", PushType.APPEND, 0),
    ]
