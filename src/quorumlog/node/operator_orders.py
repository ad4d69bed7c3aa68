"""OperatorOrders: control entries that an operator asks the leader to write, and their outcome."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from quorumlog.errors import ClockNotReset, LeaderNotReady, LedgerError, LevelNotReported, OutcomeUnknown
from quorumlog.figures import now
from quorumlog.log_state.control_entries import LEVEL, ClockReset, LevelReached
from quorumlog.log_state.log_state import Reset
from quorumlog.log_state.users import UserOrder, change_of
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.node.ports import Member

MOST_APART_MS = 60_000
"""Clocks of a quorum may differ by so much from the time that a reset says."""
RETRY_MS = 200


class FinishedUpgrade(NamedTuple):
    at_index: int
    """Of the LEVEL entry; -1: the log was at that level before."""
    level: int


ResetOutcome = Reset | LedgerError
UpgradeOutcome = FinishedUpgrade | LedgerError
UsersOutcome = int | LedgerError
"""The index of the USERS entry."""


class OperatorOrders:
    def __init__(self, member: Member, log_state: LogStateKeeper) -> None:
        self._member = member
        self._raft = member.raft
        self._log_state = log_state
        self._written: list[tuple[int, Callable[[], None], Callable[[LedgerError], None]]] = []
        """(index, callback for "committed" or "not known"), by index."""

    def reset_clock(self, done: Callable[[ResetOutcome], None]) -> None:
        """The log's time begins anew at the time of a quorum's clocks."""
        try:
            self._refuse_unless_leading()
            time_ms = self._agreed_ms()
            index = self._member.propose_control(ClockReset(time_ms)).index
        except LedgerError as error:
            done(error)
        else:
            self._written.append((index, lambda: done(Reset(index, time_ms)), done))

    def finish_upgrade(self, done: Callable[[UpgradeOutcome], None]) -> None:
        """The log may have entries of the level of this release from now on."""
        try:
            self._refuse_unless_leading()
            if self._log_state.level >= LEVEL:
                done(FinishedUpgrade(-1, LEVEL))
                return
            self._refuse_unless_all_answer()
            index = self._member.propose_control(LevelReached(LEVEL)).index
        except LedgerError as error:
            done(error)
        else:
            self._written.append((index, lambda: done(FinishedUpgrade(index, LEVEL)), done))

    def change_users(
        self, order: UserOrder, secret: bytes, done: Callable[[UsersOutcome], None]
    ) -> None:
        """`secret`: 32 random bytes. Orders are judged by the whole log, one after the other."""
        try:
            self._refuse_unless_leading()
            change = change_of(self._log_state.appended_state().users, order, secret)
            index = self._member.propose_control(change).index
        except LedgerError as error:
            done(error)
        else:
            self._written.append((index, lambda: done(index), done))

    def _refuse_unless_leading(self) -> None:
        refusal = self._member.refusal_unless_leading()
        if refusal is not None:
            raise refusal

    def _refuse_unless_all_answer(self) -> None:
        """Who is away may run another release when it comes back than it has told."""
        status, silent_ms = self._raft.status(), self._member.config.consensus.election_timeout_ms
        connected = self._raft.connected
        silent = [
            each.member_id
            for each in status.membership.members()
            if each != status.replica
            and (each not in connected or status.answered_ms_ago.get(each, math.inf) > silent_ms)
        ]
        members = status.membership.members()
        for other in connected:
            if other.member_id in silent and other not in members:
                raise LevelNotReported(
                    f"{other.member_id} runs on another directory than the one that is a member:"
                    f" quorumlog member replace {other.member_id} comes first"
                )
        if silent:
            raise LevelNotReported(
                f"{', '.join(silent)} does not answer {status.replica.member_id}, which leads, so"
                " its release is unknown: start it with this one, or remove it if it is lost"
                f" (quorumlog member remove {silent[0]}); if it runs, and was started or there was"
                " an election a moment ago, ask again once `quorumlog status` shows it in step"
            )

    def _agreed_ms(self) -> int:
        """What a quorum's clocks say. Raises LeaderNotReady, ClockNotReset."""
        status, clocks = self._raft.status(), self._raft.answers.clocks_ms()
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
        while self._written and self._written[0][0] <= index:
            _, committed, _ = self._written.pop(0)
            committed()

    def lose(self) -> None:
        written, self._written = self._written, []
        for _, _, lost in written:
            lost(OutcomeUnknown("leadership was lost before that was committed: ask again"))
