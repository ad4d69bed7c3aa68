"""LogBegin: where this member's log begins, and what follows from that, as `LedgerNode` sees it."""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.config import GroupConfig
from quorumlog.consensus.messages import InstallRequest, InstallResponse, PushEntryRequest
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.entry import Replica
from quorumlog.node.begin.log_drops import LogDrops
from quorumlog.node.begin.log_replacement import LogReplacement
from quorumlog.node.ports import Host
from quorumlog.node.sending.catch_up_pace import CatchUpPace
from quorumlog.node.sending.install_sender import InstallSender
from quorumlog.store.directory.member_directory import MemberDirectory
from quorumlog.store.ledger_store import LogStart


class LogBegin:
    def __init__(
        self,
        replica: Replica,
        config: GroupConfig,
        directory: MemberDirectory,
        raft: RaftNode,
        host: Host,
        pace: CatchUpPace,
        carry_out: Callable[[], None],
    ) -> None:
        """`carry_out`: bring the store to where the core is."""
        self._drops = LogDrops(directory, raft, host, carry_out)
        segment_bytes = config.storage.segment_bytes
        self._replacement = LogReplacement(replica, directory, segment_bytes, raft, host, carry_out)
        self._sender = InstallSender(replica, config.consensus, raft, directory.store, host, pace)

    def drop_before(self, start: LogStart, durable_committed_index: int) -> bool:
        return self._drops.begin(start, durable_committed_index)

    def give_up_below(self, start: LogStart, durable_committed_index: int) -> None:
        self._drops.give_up_below(start, durable_committed_index)

    @property
    def is_dropping(self) -> bool:
        return self._drops.is_under_way

    def must_wait(self, message: PushEntryRequest) -> bool:
        return self._drops.must_wait(message)

    def receive(self, message: InstallRequest | InstallResponse, now_ms: float) -> None:
        """Raises LogReplaced."""
        if isinstance(message, InstallRequest):
            self._replacement.on_request(message, is_dropping=self.is_dropping)
        else:
            self._sender.on_response(message, now_ms)

    def tick(self, now_ms: float) -> None:
        self._sender.tick(now_ms)

    def next_wakeup_ms(self) -> float:
        return self._sender.next_wakeup_ms()

    def problems(self) -> list[str]:
        own = filter(None, [self._drops.problem, self._replacement.problem])
        return [*own, *self._sender.problems()]
