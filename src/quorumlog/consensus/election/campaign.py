"""Campaign: one question to all voters, its answers, and what they mean for the candidate.

Answers that echo another question are not counted here.
"""

from __future__ import annotations

from enum import Enum

from quorumlog.consensus.membership import Membership
from quorumlog.consensus.messages import VoteResult
from quorumlog.entry import Replica

LOG_REFUSALS = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)

KEEPS_OWN_TERM = (
    VoteResult.REJECT_ALREADY_HAS_LEADER,
    VoteResult.REJECT_UNKNOWN_LEADER,
    VoteResult.REJECT_UNEXPECTED_LEADER,
    VoteResult.REJECT_NOT_A_VOTER,
)
"""A vote refused for one of these reasons leaves the voter's term alone; any other raises it."""


class VoteOutcome(Enum):
    WAIT_TO_REVOTE = "WAIT_TO_REVOTE"
    WAIT_TO_VOTE_NEXT = "WAIT_TO_VOTE_NEXT"
    PASSED = "PASSED"


class Campaign:
    __slots__ = ("answers", "pre_vote", "transfer_mark", "vote_term")

    def __init__(
        self, vote_term: int, *, pre_vote: bool, transfer_mark: tuple[Replica, int] | None
    ) -> None:
        self.vote_term = vote_term
        self.pre_vote = pre_vote
        self.transfer_mark = transfer_mark
        self.answers: dict[Replica, VoteResult] = {}
        """By voter, so that a repeated answer counts once."""

    def all_but(self, *results: VoteResult) -> list[Replica]:
        return [voter for voter, result in self.answers.items() if result not in results]

    @property
    def accepting(self) -> list[Replica]:
        return [voter for voter, result in self.answers.items() if result is VoteResult.ACCEPT]

    def record(self, voter: Replica, result: VoteResult) -> None:
        # A vote once given is a promise for its term; a pre-vote may be thought better of.
        if self.pre_vote or self.answers.get(voter) is not VoteResult.ACCEPT:
            self.answers[voter] = result

    def outcome(self, membership: Membership) -> tuple[VoteOutcome, bool]:
        """Of a round that did not pass, and whether too many voters have longer logs for it ever to."""
        assert not membership.has_quorum(self.accepting), self.answers
        no_voter = VoteResult.REJECT_NOT_A_VOTER
        missing = not membership.has_quorum(self.all_but(no_voter))
        behind = not missing and not membership.has_quorum(self.all_but(no_voter, *LOG_REFUSALS))
        has_leader = VoteResult.REJECT_ALREADY_HAS_LEADER in self.answers.values()
        # A pre-vote raised no term, so there is none to ask again in.
        if not self.pre_vote and (missing or behind or has_leader):
            return VoteOutcome.WAIT_TO_REVOTE, behind
        return VoteOutcome.WAIT_TO_VOTE_NEXT, behind
