"""ClockResets: the log's time begins anew, by an operator's order, at the time of a quorum's clocks."""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.consensus.raft_node import RaftNode
from quorumlog.entry import EntryId
from quorumlog.errors import ClockNotReset, LeaderNotReady, LedgerError, LevelNotTold, OutcomeUnknown
from quorumlog.figures import now
from quorumlog.log_state.control_entries import ClockReset, ControlBody
from quorumlog.log_state.counted_times import Reset

MOST_APART_MS = 60_000
"""Clocks of a quorum may differ by so much from the time that a reset says."""
RETRY_MS = 200

ResetOutcome = Reset | LedgerError
Done = Callable[[ResetOutcome], None]


class ClockResets:
    def __init__(
        self,
        raft: RaftNode,
        refusal_unless_leading: Callable[[], LedgerError | None],
        propose: Callable[[ControlBody], EntryId],
    ) -> None:
        """`propose`: see `BatchFormer.propose_control`."""
        self._raft = raft
        self._refusal_unless_leading = refusal_unless_leading
        self._propose = propose
        self._written: list[tuple[Reset, Done]] = []
        """By index."""

    def request(self, done: Done) -> None:
        """`done` gets the reset once it is committed, or why not."""
        refusal = self._refusal_unless_leading()
        if refusal is not None:
            done(refusal)
            return
        try:
            time_ms = self._agreed_ms()
            entry = self._propose(ClockReset(time_ms))
        except LevelNotTold as error:
            done(ClockNotReset(str(error)))  # a member does not know the entry
        except LedgerError as error:
            done(error)
        else:
            self._written.append((Reset(entry.index, time_ms), done))

    def _agreed_ms(self) -> int:
        """What a quorum's clocks say. Raises LeaderNotReady, ClockNotReset."""
        status, clocks = self._raft.status(), self._raft.clocks_ms
        membership = status.membership
        if not membership.has_quorum(clocks):
            raise LeaderNotReady(
                "the clocks of a quorum are not known yet: ask again", retry_after_ms=RETRY_MS
            )
        quorum_ms = int(membership.quorum_value(clocks, -1))
        agreeing = [each for each, ms in clocks.items() if abs(ms - quorum_ms) <= MOST_APART_MS]
        if not membership.has_quorum(agreeing):
            own_ms = clocks.get(status.replica, quorum_ms)
            offsets = [
                f"{voter.member_id} {(clocks[voter] - own_ms) / 1000:+.1f} s"
                if voter in clocks
                else f"{voter.member_id} does not answer"
                for voter in membership.voters()
            ]
            figures = now(f"{', '.join(offsets)}, against {status.replica.member_id}")
            raise ClockNotReset(
                f"the clocks of a quorum differ by more than {MOST_APART_MS // 1000} s{figures}:"
                " set them right first"
            )
        return quorum_ms

    def commit(self, index: int) -> None:
        """Everything up to `index` is committed, of a term that this member leads."""
        while self._written and self._written[0][0].index <= index:
            reset, done = self._written.pop(0)
            done(reset)

    def lose(self) -> None:
        """This member leads no more."""
        written, self._written = self._written, []
        for _, done in written:
            done(OutcomeUnknown("leadership was lost before the reset of the clock was committed"))
