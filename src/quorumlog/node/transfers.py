"""Transfers: handing leadership over on request, and before this member stops.

Appends wait meanwhile, unproposed, and proposed ones are committed and answered before the core is asked
to transfer: no client is left with an unknown outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Role, RoleChange
from quorumlog.errors import LeaderTransferring, LedgerError, TransferFailed
from quorumlog.node.pending_appends import PendingAppends

TransferOutcome = RoleChange | LedgerError

NEVER = float("inf")
RETRY_MS = 25
"""Until members that could not take over from a stopping member are asked again."""
STOP_TIMEOUTS = 2
"""Election time-outs within which a member that stops looks for a successor."""


class Transfers:
    """At most one at a time."""

    def __init__(self, raft: RaftNode, pending: PendingAppends, election_timeout_ms: float) -> None:
        self._raft = raft
        self._pending = pending
        self._timeout_ms = election_timeout_ms
        self._to = ""
        """Target of a transfer that waits for proposed entries; empty if none does."""
        self._why = ""
        self._begin_by_ms = NEVER
        self._done: Callable[[TransferOutcome], None] | None = None
        """Whom to tell of the request that waits, or that the core carries out."""
        self._stop_done: Callable[[str], None] | None = None
        self._stop_by_ms = NEVER
        self._next_try_ms = NEVER
        self._failed: set[str] = set()
        """Members that did not take over from this one, which stops."""
        self._reason = ""

    @property
    def holds_appends(self) -> bool:
        return bool(self._to) or self._raft.transfer.target is not None

    def request(
        self, to_member_id: str, now_ms: float, done: Callable[[TransferOutcome], None], why: str
    ) -> None:
        """`done` gets the role change that followed, or why there was none. `why` it is asked for, in
        words."""
        try:
            self._raft.check_transfer(to_member_id)
            if self._done is not None:
                raise LeaderTransferring(f"a transfer to {self._to} is about to begin")
        except LedgerError as error:
            done(error)
            return
        self._done = done
        self._to, self._why = to_member_id, why
        # A hung disk of this leader's own may keep it from committing what its successor would commit.
        self._begin_by_ms = now_ms + self._timeout_ms / 2

    def find_successor(self, now_ms: float, done: Callable[[str], None]) -> None:
        """Of a member that stops: the most advanced follower, or else the next; all are asked again
        after a moment.

        `done` gets why there is no successor, within two election time-outs. Or nothing: once one has
        committed in its term, for which it may need this member, or if this member does not lead or no
        other voter is connected.
        """
        assert self._stop_done is None, "a member stops once"
        if self._raft.role is not Role.LEADER:
            done("")
            return
        self._stop_done = done
        self._stop_by_ms = now_ms + STOP_TIMEOUTS * self._timeout_ms
        self._next_try_ms = now_ms
        self._reason = "it was given no time"

    def next_wakeup_ms(self) -> float:
        begin_by_ms = self._begin_by_ms if self._to else NEVER
        if self._stop_done is None:
            return begin_by_ms
        can_try = self._done is None and self._raft.role is Role.LEADER
        return min(begin_by_ms, self._stop_by_ms, self._next_try_ms if can_try else NEVER)

    def tick(self, now_ms: float) -> None:
        if self._to and (not self._pending.proposed_count or now_ms >= self._begin_by_ms):
            to, self._to = self._to, ""
            try:
                self._raft.transfer_leadership(to, self._why)
            except LedgerError as error:
                self._end(error)
        elif not self._to and self._raft.transfer.target is None and self._raft.role is Role.LEADER:
            self._end(TransferFailed("the member did not take over within an election time-out"))
        if self._stop_done is not None:
            self._tick_of_stop(now_ms, self._stop_done)

    def role_changed(self, change: RoleChange) -> None:
        if change.role is not Role.LEADER and change.leader_id is not None:
            self._to = ""
            self._end(change)

    def close(self) -> None:
        self._to = ""
        self._end(TransferFailed("the member is stopping"))

    def _end(self, outcome: TransferOutcome) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)

    def _tick_of_stop(self, now_ms: float, done: Callable[[str], None]) -> None:
        raft = self._raft
        reason = ""
        if raft.role is Role.LEADER:
            voters = [peer for peer in raft.status().peers if peer.is_voter]
            if voters and now_ms < self._stop_by_ms:
                if now_ms >= self._next_try_ms and self._done is None:
                    by_match_index = sorted(voters, key=lambda peer: peer.match_index, reverse=True)
                    self._try_one_of([peer.replica.member_id for peer in by_match_index], now_ms)
                return
            if voters:
                reason = self._reason
        elif raft.term_at(raft.committed_index) < raft.term and now_ms < self._stop_by_ms:
            return
        self._stop_done = None
        self._to = ""
        done(reason)

    def _try_one_of(self, names: list[str], now_ms: float) -> None:
        self._next_try_ms = now_ms + RETRY_MS
        if self._failed.issuperset(names):
            self._failed.clear()
        for name in names:
            if name not in self._failed and self._done is None:
                self.request(name, now_ms, partial(self._tried, name), "it stops")

    def _tried(self, name: str, outcome: TransferOutcome) -> None:
        if isinstance(outcome, LedgerError):
            self._failed.add(name)
            self._reason = f"{name}: {outcome}"
