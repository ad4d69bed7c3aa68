"""Which of the two connections a message takes."""

from __future__ import annotations

import asyncio
from typing import Any

from quorumlog.config import MemberAddress
from quorumlog.consensus.messages import PushEntryRequest, PushType
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import EntryId, Voter
from quorumlog.server.connection import LoopTurn
from quorumlog.server.peer import Peer

N1 = Voter("n1", "n1-directory")


class RecordingPeer(Peer):
    """Its links are not dialled; what would go out on them is kept."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        nothing: Any = lambda *arguments: None  # noqa: E731
        address = MemberAddress("n1", "127.0.0.1", 1)
        super().__init__(LoopTurn(loop), "default", address, nothing, nothing, nothing, nothing)
        self.sent: list[tuple[str, PushType, int]] = []

    def _send_on(self, link: Any, envelope: Envelope) -> None:
        message = envelope.message
        assert isinstance(message, PushEntryRequest)
        self.sent.append((link.role, message.push, message.number))


def push(kind: PushType, number: int = 0) -> Envelope:
    message = PushEntryRequest(
        term=1, push=kind, committed_index=4, number=number, previous=EntryId(4, 1)
    )
    return Envelope(N1, message)


def test_a_commit_goes_with_the_heartbeats_and_one_that_asks_with_the_pushes() -> None:
    async def sent() -> list[tuple[str, PushType, int]]:
        peer = RecordingPeer(asyncio.get_running_loop())
        peer.send(push(PushType.COMMIT))
        peer.send(push(PushType.COMMIT, number=7))
        peer.send(push(PushType.APPEND))
        return peer.sent

    assert asyncio.run(sent()) == [
        ("control", PushType.COMMIT, 0),
        ("data", PushType.COMMIT, 7),
        ("data", PushType.APPEND, 0),
    ]
