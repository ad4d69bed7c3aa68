"""InstallSender: the start of this log, for members whose logs end before it begins.

Each piece names the snapshots of this member's machines, which the receiver asks for by itself
(`SnapshotSender`): it takes over the start once it has them. The same are named while they are here: one
that takes longer to arrive than the next takes to be made would never be whole.

It goes in pieces on the data connection, one at a time to each member and at the pace of pushes from
files (CatchUpPace). The receiver names where to go on, whatever connection brought what it has; once it
has all it begins anew on the log that it got, and is compared again when it is back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.messages import InstallRequest, InstallResponse, InstallResult
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import EntryId, Replica, SnapshotId
from quorumlog.figures import now
from quorumlog.log_state.log_state import EMPTY
from quorumlog.node.ports import Host
from quorumlog.node.sending.catch_up_pace import CatchUpPace
from quorumlog.store.ledger_store import LOG_ORIGIN, LedgerStore, LogStart
from quorumlog.store.state_files import START_NAME, encode_start

NEVER = float("inf")
LEAST_PIECE_BYTES = 256
MOST_PIECE_BYTES = 64 << 10
"""As large as a push, within these."""
MOST_BACK_OFF = 16.0


@dataclass(slots=True)
class _Installation:
    begin: EntryId
    content: bytes
    offset: int = 0
    send_at_ms: float = 0.0
    """When the next piece goes, or the same again."""
    wait_ms: float = 0.0
    snapshots: tuple[SnapshotId, ...] = ()
    """Named last."""


class InstallSender:
    def __init__(
        self,
        replica: Replica,
        config: ConsensusConfig,
        raft: RaftNode,
        store: LedgerStore,
        host: Host,
        pace: CatchUpPace,
        snapshots: Callable[[int, tuple[SnapshotId, ...]], tuple[SnapshotId, ...]],
    ) -> None:
        """`snapshots`: see `StateMachineCaller.good_snapshots`."""
        self._replica = replica
        self._resend_ms = float(config.push_resend_ms)
        self._piece_bytes = min(max(config.push_limit_bytes, LEAST_PIECE_BYTES), MOST_PIECE_BYTES)
        self._raft = raft
        self._store = store
        self._host = host
        self._pace = pace
        self._snapshots = snapshots
        self._installations: dict[Replica, _Installation] = {}
        self.installed: set[Replica] = set()
        """Everybody that was to get the start of this log, until somebody takes them out."""

    def tick(self, now_ms: float) -> None:
        """Once a turn."""
        installing = self._raft.replication.installing
        if not installing and not self._installations:
            return
        self.installed.update(installing)
        begin = self._store.begin.entry_id
        if begin != self._raft.begin:
            return  # the new start is on its way to the disk
        known = self._installations
        self._installations = {}
        for replica in installing:
            installation = known.get(replica)
            if installation is None or installation.begin != begin:
                named = () if installation is None else installation.snapshots
                installation = _Installation(begin, self._content(), snapshots=named)
            self._installations[replica] = installation
            if now_ms >= installation.send_at_ms and self._pace.is_open(replica):
                self._send(replica, installation, now_ms)

    def _content(self) -> bytes:
        return encode_start(self._store.start or LogStart(LOG_ORIGIN, EMPTY.encode()))

    def _send(self, replica: Replica, installation: _Installation, now_ms: float) -> None:
        named = self._snapshots(installation.begin.index, installation.snapshots)
        installation.snapshots = named
        offset, total_bytes = installation.offset, len(installation.content)
        data = installation.content[offset : offset + self._piece_bytes]
        message = InstallRequest(
            sender=self._replica,
            term=self._raft.term,
            begin=installation.begin,
            committed_index=self._raft.committed_index,
            file=START_NAME,
            offset=offset,
            total_bytes=total_bytes,
            data=data,
            last=offset + len(data) == total_bytes,
            snapshots=named,
        )
        self._pace.spend(replica, len(data))
        self._host.send(Envelope(replica, message))
        most_ms = MOST_BACK_OFF * self._resend_ms
        installation.wait_ms = min(2 * installation.wait_ms or self._resend_ms, most_ms)
        installation.send_at_ms = now_ms + installation.wait_ms

    def on_response(self, response: InstallResponse, now_ms: float) -> None:
        installation = self._installations.get(response.sender)
        if (
            installation is None
            or response.term != self._raft.term
            or response.begin != installation.begin
        ):
            return
        if response.result is not InstallResult.MORE:
            del self._installations[response.sender]
        elif response.file != START_NAME or not 0 <= response.offset <= len(installation.content):
            return
        elif response.offset < len(installation.content):
            installation.offset = response.offset
            installation.send_at_ms, installation.wait_ms = now_ms, 0.0
        self._raft.on_install_answered(response.sender, response.result)

    def next_wakeup_ms(self) -> float:
        if not self._installations:
            return NEVER
        return min(
            max(each.send_at_ms, self._pace.next_ms(replica))
            for replica, each in self._installations.items()
        )

    def problems(self) -> list[str]:
        """Who is being installed, and how far."""
        return [
            f"{replica.member_id} lacks entries that are no longer here: it is given the start of the"
            f" log{now(f'behind entry {each.begin.index}, {each.offset} of {len(each.content)} bytes')}"
            for replica, each in self._installations.items()
        ]
