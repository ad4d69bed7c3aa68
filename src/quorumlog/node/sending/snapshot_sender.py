"""SnapshotSender: pieces of the snapshots of this member's state machines, for members that ask for it.

One piece at a time to each, read beside the loop, at the pace of pushes from files (CatchUpPace), on the
data connection. Who asks says what it wants and from where on; nothing is remembered of it here but the
newest request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quorumlog.consensus.messages import InstallResult, SnapshotRequest, SnapshotResponse
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import Replica, SnapshotId
from quorumlog.figures import now
from quorumlog.node.ports import Host
from quorumlog.node.sending.catch_up_pace import CatchUpPace
from quorumlog.node.sending.feeding import Feeding, Feedings
from quorumlog.store.snapshots import SnapshotFiles

NEVER = float("inf")
MOST_ASKING = 64
"""Members; of more the oldest request is forgotten, and comes again."""
LEAST_PIECE_BYTES = 256
MOST_PIECE_BYTES = 1 << 20
"""As large as a push, within these."""
FORGOTTEN_MS = 30_000

Find = Callable[[SnapshotRequest], SnapshotId | None]
"""`StateMachineCaller.snapshot_for`."""


class SnapshotSender:
    def __init__(
        self,
        replica: Replica,
        push_limit_bytes: int,
        raft: RaftNode,
        files: SnapshotFiles,
        host: Host,
        pace: CatchUpPace,
        find: Find,
    ) -> None:
        self._replica = replica
        self._piece_bytes = min(max(push_limit_bytes, LEAST_PIECE_BYTES), MOST_PIECE_BYTES)
        self._raft = raft
        self._files = files
        self._host = host
        self._pace = pace
        self._find = find
        self._asked: dict[Replica, SnapshotRequest] = {}
        self._reading: set[Replica] = set()
        self._sent: dict[Replica, tuple[SnapshotId, int, float]] = {}
        """(what, how much of it, when): for people."""
        self._feedings = Feedings()
        self._now_ms = 0.0

    def on_request(self, request: SnapshotRequest) -> None:
        self._asked.pop(request.sender, None)
        self._asked[request.sender] = request
        if len(self._asked) > MOST_ASKING:
            del self._asked[next(iter(self._asked))]

    def connection_lost(self, replica: Replica) -> None:
        self._asked.pop(replica, None)

    def tick(self, now_ms: float) -> None:
        self._now_ms = now_ms
        if not self._asked:
            return
        for replica in [each for each in self._asked if each not in self._reading]:
            if self._pace.is_open(replica):
                self._answer(self._asked.pop(replica), now_ms)

    def next_wakeup_ms(self) -> float:
        if not self._asked:
            return NEVER
        waiting = [self._pace.next_ms(each) for each in self._asked if each not in self._reading]
        return min(waiting, default=NEVER)

    def _answer(self, request: SnapshotRequest, now_ms: float) -> None:
        to, found = request.sender, self._find(request)
        if found is None or found != request.wanted:
            self._send(request, found, b"")
            return
        if to in self._raft.replication.installing:
            self._raft.on_install_answered(to, InstallResult.MORE)  # it makes progress
        self._sent[to] = found, request.offset, now_ms + FORGOTTEN_MS
        self._sent = {each: sent for each, sent in self._sent.items() if sent[2] > now_ms}
        self._reading.add(to)
        self._pace.spend(to, self._piece_bytes)
        read = partial(self._files.read_piece, found, request.offset, self._piece_bytes)

        def done(data: object) -> None:
            self._reading.discard(to)
            if isinstance(data, bytes):
                self._feedings.on_sent(to, request.offset + len(data), self._now_ms)
                self._send(request, found, data)
                if request.offset + len(data) == found.total_bytes:
                    self._sent.pop(to, None)  # it asks again if that does not arrive
            elif data is None:
                self._send(request, None, b"")
            else:
                assert isinstance(data, Exception), data
                raise data

        self._host.read_later(read, done)

    def _send(self, request: SnapshotRequest, found: SnapshotId | None, data: bytes) -> None:
        response = SnapshotResponse(
            sender=self._replica,
            term=self._raft.term,
            name=request.name,
            found=found,
            offset=request.offset,
            data=data,
        )
        self._host.send(Envelope(request.sender, response))

    def feeding(self, to: Replica) -> Feeding | None:
        """Of a member that gets a snapshot from here."""
        sent = self._sent.get(to)
        return None if sent is None else self._feedings.of(to, sent[0].total_bytes, self._now_ms)

    def problems(self, now_ms: float) -> list[str]:
        """Who is given what, and how far."""
        return [
            f"{replica.member_id} is given the snapshot of"
            f" {sent.name}{now(f'of entry {sent.index}, {offset} of {sent.total_bytes} bytes')}"
            for replica, (sent, offset, until_ms) in self._sent.items()
            if until_ms > now_ms
        ]
