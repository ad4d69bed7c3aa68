"""Leader election: silence, pre-vote, vote, heartbeats, stepping down."""

from __future__ import annotations

import math
from enum import Enum
from random import Random

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.member_state import MemberState, Outbox
from quorumlog.consensus.membership import Membership
from quorumlog.consensus.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    TakeLeadershipRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from quorumlog.consensus.ready import Envelope, Role
from quorumlog.entry import Replica

# ---------------------------------------------------------------- Campaign
# One question to all voters, its answers, and what they mean for the candidate.
#
# Answers that echo another question are not counted here.

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


# ---------------------------------------------------------------- HeartbeatAnswers
# Who has answered this leader, when, which round, and by which clock. The membership that holds when it
# is asked says whose answers count.

LONG_AGO_MS = -math.inf


class HeartbeatAnswers:
    """Heartbeat answers of this leader's term; members that declined a transfer are remembered across
    terms."""

    def __init__(self, config: ConsensusConfig, state: MemberState) -> None:
        self._config = config
        self._state = state
        self._begun_ms = LONG_AGO_MS
        self._answered_ms: dict[Replica, float] = {}
        self._answered_round: dict[Replica, int] = {}
        self._reported_clock: dict[Replica, tuple[int, float]] = {}
        """(what its wall clock said, when that came), of the newest round that each has answered."""
        self._sent_ms: dict[int, float] = {}
        """When each round from the newest confirmed one on was sent."""
        self._newest: dict[Replica, HeartbeatResponse] = {}
        """The newest answer of each member, in whatever term."""

    def begin(self) -> None:
        """Elected: all members count as just heard."""
        self._begun_ms = self._state.now_ms
        self._answered_ms.clear()
        self._answered_round.clear()
        self._reported_clock = {}
        self._sent_ms = {}

    def on_round(self, number: int) -> None:
        self._sent_ms[number] = self._state.now_ms

    def sent_ms_of(self, confirmed_round: int) -> float | None:
        """None: no round is confirmed. Rounds below are asked for no more."""
        for number in [n for n in self._sent_ms if n < confirmed_round]:
            del self._sent_ms[number]
        return self._sent_ms.get(confirmed_round)

    def fresh_round(self, newest_round: int) -> int:
        """The newest confirmed round, once this leader knows the committed index; 0: none."""
        return self.confirmed_round(newest_round) if self._state.has_committed_in_its_term else 0

    def take(self, response: HeartbeatResponse, newest_round: int, *, counts: bool) -> None:
        """`counts`: it confirms that no other member leads."""
        if response.accepted:
            self._newest[response.sender] = response
            self._answered_ms[response.sender] = self._state.now_ms
            if counts and self.round_of(response.sender) < response.round <= newest_round:
                self._answered_round[response.sender] = response.round
                self._reported_clock[response.sender] = response.clock_ms, self._state.now_ms

    def forget(self, replica: Replica) -> None:
        for answers in (self._answered_ms, self._answered_round, self._reported_clock):
            answers.pop(replica, None)

    def has_live_quorum(self) -> bool:
        """A majority, this leader included, has answered within the election time-out."""
        state = self._state
        answered_ms = {**self._answered_ms, state.member: state.now_ms}
        silent_ms = state.now_ms - state.membership.quorum_value(answered_ms, self._begun_ms)
        return silent_ms < self._config.election_timeout_ms

    def confirmed_round(self, newest_round: int) -> int:
        """The newest heartbeat round that a majority has answered."""
        state = self._state
        return int(
            state.membership.quorum_value({**self._answered_round, state.member: newest_round}, 0)
        )

    def round_of(self, replica: Replica) -> int:
        """The newest round that it has answered; 0: none."""
        return self._answered_round.get(replica, 0)

    def quorum_clock_ms(self) -> int:
        """A time in milliseconds that the wall clocks of a quorum have reached: of three the median. -1
        while too few have reported theirs.

        Each clock counts as last reported, however old. An old report, like a stopped clock, can make
        the result late but never early; adding this member's elapsed time would make it depend on one
        clock again.
        """
        state = self._state
        clocks = dict.fromkeys(state.membership.voters(), -1)
        clocks |= {replica: clock_ms for replica, (clock_ms, _) in self._reported_clock.items()}
        clocks[state.member] = state.clock_ms
        return int(state.membership.quorum_value(clocks))

    def clocks_ms(self) -> dict[Replica, int]:
        """The present wall clock of each voter that answers, from its last answer."""
        state = self._state
        clocks = {
            voter: int(clock_ms + state.now_ms - reported_ms)
            for voter, (clock_ms, reported_ms) in self._reported_clock.items()
            if clock_ms >= 0 and state.membership.is_voter(voter) and self.is_live(voter)
        }
        if state.membership.is_voter(state.member) and state.clock_ms >= 0:
            clocks[state.member] = state.clock_ms
        return clocks

    def is_live(self, voter: Replica) -> bool:
        answered_ms = self._answered_ms.get(voter, self._begun_ms)
        return self._state.now_ms - answered_ms < self._config.election_timeout_ms

    def ages_ms(self) -> dict[Replica, float]:
        """Time since the last answer of each member that has answered."""
        return {each: self._state.now_ms - at_ms for each, at_ms in self._answered_ms.items()}

    def takes_over(self, voter: Replica) -> bool:
        newest = self._newest.get(voter)
        return newest is None or newest.takes_over

    def runs_machines(self, voter: Replica) -> bool:
        newest = self._newest.get(voter)
        return newest is None or newest.runs_machines


# ---------------------------------------------------------------- LeaderElector
# Who leads. Silence, pre-vote, vote, heartbeats, stepping down.
#
# A member that misses its leader asks for *pre-votes* for its term + 1, which change nothing at
# anybody, and only a majority of them lets it raise its term and ask for the vote itself. So a member
# that was cut off comes back with the term it left with, and deposes nobody. Three outcomes of a round
# of votes (DLedger's `ParseResult`):
#
#     WAIT_TO_REVOTE      ask again in the same term: answers are missing, or somebody has a leader
#     WAIT_TO_VOTE_NEXT   ask for the next term, beginning with the pre-vote
#     PASSED              a majority has accepted
#
# *Stickiness*: who hears its leader helps nobody else, so an election starts only where a majority
# misses the leader. Every reply carries the replier's own term, and who leads or wants to lead adopts a
# higher one at once: otherwise members with unequal terms could refuse each other for ever.
#
# Raft paper, sections 5.2, 5.4.1 and 6; Ongaro's thesis, 9.6 (pre-vote) and 3.10 (transfer).

MAX_BACK_OFF = 64
"""A damaged member that led in vain waits so many times three election time-outs at most."""


class LeaderElector:
    """Timers and votes of one member. Times in milliseconds of the core's own clock."""

    def __init__(self, config: ConsensusConfig, state: MemberState, outbox: Outbox, rng: Random) -> None:
        self._config = config
        self._state = state
        self._outbox = outbox
        self._random = rng
        self._outcome = VoteOutcome.WAIT_TO_VOTE_NEXT
        self._campaign: Campaign | None = None
        self._next_vote_ms = 0.0
        self._silence_deadline_ms = 0.0
        self._heard_leader_ms = LONG_AGO_MS
        self._leaderless_since_ms = state.now_ms
        """When a leader was last heard, or this member led last."""
        self._connection_lost = False
        """The leader's address refuses connections: a candidate for this reason campaigns at once."""
        self._terms_without_commit = 0
        """Led in a row without committing anything, because of damage."""
        self._leaves_it_until_ms = LONG_AGO_MS
        """Led, and its entries reached too few: the others may try first."""
        self.round = 0
        """Number of the newest heartbeat round of this term of leadership."""
        self._timed_round = 0
        """The newest that the timer began."""
        self._settled_round = 0
        """The one before it: there was time to answer it."""
        self._next_heartbeat_ms = 0.0
        self.answers = HeartbeatAnswers(config, state)

    def start(self) -> None:
        """The first silence is one vote wait."""
        self._leaderless_since_ms = self._state.now_ms
        self._silence_deadline_ms = self._state.now_ms + self._draw_vote_wait()

    def advance(self) -> bool:
        """True if a heartbeat was due: the leader's other timers run with it."""
        state = self._state
        role = state.role
        if role is Role.LEADER:
            self._leaderless_since_ms = state.now_ms
            return state.now_ms >= self._next_heartbeat_ms and self._tick_as_leader()
        if role is Role.FOLLOWER:
            if state.now_ms >= self._silence_deadline_ms:
                self._tick_as_follower()
        elif role is Role.CANDIDATE:
            if state.now_ms >= self._next_vote_ms:
                self._tick_as_candidate()
        elif state.leader is not None and state.now_ms >= self._silence_deadline_ms:
            # It campaigns for nothing, and still must not name a leader that feeds it no more.
            state.lose_leader()
        return False

    def next_wakeup_ms(self) -> float:
        role = self._state.role
        if role is Role.LEADER:
            return self._next_heartbeat_ms
        if role is Role.CANDIDATE:
            return self._next_vote_ms
        waits = role is Role.FOLLOWER or self._state.leader is not None
        return self._silence_deadline_ms if waits else math.inf

    def _tick_as_leader(self) -> bool:
        if not self.answers.has_live_quorum():
            self.step_down()
            return False
        self._next_heartbeat_ms = self._state.now_ms + self._config.heartbeat_interval_ms
        self._settled_round, self._timed_round = self._timed_round, self.round + 1
        self.start_round()
        return True

    def step_down(self) -> None:
        self._state.become_candidate()
        self._wait_to_vote()

    @property
    def _campaigns_from_ms(self) -> float:
        """A member with damaged entries leaves it to the others to lead, unless none of them does
        for three election time-outs; alone in its group it has nobody to wait for. Who does not know
        its log's state leaves it to the others until it does. So does a member whose disk hangs, and one
        that owes committed entries since its log was installed."""
        state = self._state
        if not state.knows_log_state or state.disk_hangs or state.owes_entries:
            return math.inf
        if not self._state.log.damaged or self._state.is_quorum_alone:
            return self._leaves_it_until_ms
        if self._state.first_unproven_index is None:
            self._terms_without_commit = 0  # others have committed what it could not
        waits = 3 * min(1 << max(0, self._terms_without_commit - 1), MAX_BACK_OFF)
        return self._leaderless_since_ms + waits * self._config.election_timeout_ms

    def step_down_without_commit(self) -> None:
        """This leader could not commit because of its damage. If a quorum is damaged, no member can, and
        each attempt costs a term and a no-op: so they become rarer."""
        self._terms_without_commit += 1
        self.step_down()

    def step_down_unheard(self) -> None:
        """This leader's entries do not arrive. Its log is the longest, so it would be elected again at
        once; it says nothing for a while."""
        self._leaves_it_until_ms = self._state.now_ms + 3 * self._config.election_timeout_ms
        if self._state.observer is not None:
            self._state.observer("leader: steps down because its entries do not arrive")
        self.step_down()

    def on_commit(self) -> None:
        self._terms_without_commit = 0

    def on_damage_changed(self) -> None:
        self._terms_without_commit = 0
        if self._state.role is Role.CANDIDATE:
            self._wait_to_vote()

    def on_fitness_changed(self) -> None:
        """The log's state has become known, or is no longer; its disk hangs, or does no longer."""
        assert self._state.role is not Role.LEADER or self._state.knows_log_state
        self._campaign = None
        if self._state.role is Role.CANDIDATE:
            self._wait_to_vote()

    def _tick_as_follower(self) -> None:
        at_once = self._connection_lost and self._state.now_ms >= self._campaigns_from_ms
        self._state.become_candidate()
        # One more wait: a process that was stopped finds its leader's heartbeats in the queue.
        self._wait_to_vote()
        if at_once:
            self._ask_pre_votes()

    def _tick_as_candidate(self) -> None:
        if self._state.now_ms < self._campaigns_from_ms:
            self._next_vote_ms = self._campaigns_from_ms + self._draw_vote_wait()
            return
        campaign = self._campaign
        if campaign is not None:
            self._campaign = None
            extra_wait_ms = self._parse(campaign)
            if extra_wait_ms:
                self._next_vote_ms = self._state.now_ms + extra_wait_ms
                return
        if self._outcome is VoteOutcome.WAIT_TO_REVOTE:
            self._ask_votes(None, campaign)
        else:
            self._ask_pre_votes()

    def _draw_vote_wait(self) -> float:
        return self._random.uniform(self._config.min_vote_interval_ms, self._config.max_vote_interval_ms)

    def _wait_to_vote(self) -> None:
        self._campaign = None
        self._outcome = VoteOutcome.WAIT_TO_VOTE_NEXT
        self._next_vote_ms = self._state.now_ms + self._draw_vote_wait()

    # ---------------------------------------------------------------- campaign

    def _ask_pre_votes(self, transfer_mark: tuple[Replica, int] | None = None) -> None:
        self._outcome = VoteOutcome.WAIT_TO_VOTE_NEXT
        self._ask(Campaign(self._state.term + 1, pre_vote=True, transfer_mark=transfer_mark))

    def _ask_votes(
        self, transfer_mark: tuple[Replica, int] | None, earlier: Campaign | None = None
    ) -> None:
        state = self._state
        assert state.voted_for == state.member, state.voted_for
        assert state.term > state.restart_term, (state.term, state.restart_term)
        self._outcome = VoteOutcome.WAIT_TO_REVOTE
        if transfer_mark is not None:
            state.because = f"{transfer_mark[0].member_id} hands over to it"
        campaign = Campaign(state.term, pre_vote=False, transfer_mark=transfer_mark)
        if earlier is not None and earlier.vote_term == state.term:
            campaign.answers = {v: r for v, r in earlier.answers.items() if r is VoteResult.ACCEPT}
        self._ask(campaign)

    def _ask(self, campaign: Campaign) -> None:
        state = self._state
        self._campaign = campaign
        self._next_vote_ms = state.now_ms + self._draw_vote_wait()
        request = VoteRequest(
            sender=state.member,
            term=state.term,
            vote_term=campaign.vote_term,
            pre_vote=campaign.pre_vote,
            ledger_end=state.ledger_end,
            transfer_mark=campaign.transfer_mark,
        )
        for voter in state.others():
            self._outbox.send(voter, request)
        self._count(campaign, state.member, VoteResult.ACCEPT)

    def on_vote_response(self, response: VoteResponse) -> None:
        if response.membership is not None:
            self._state.hear_of(response.membership_index, response.membership)
        campaign = self._campaign if self._state.may_campaign else None
        if (
            campaign is not None
            and response.vote_term == campaign.vote_term
            and response.pre_vote == campaign.pre_vote
            and self._state.membership.is_voter(response.sender)
        ):
            self._count(campaign, response.sender, response.result)

    def _count(self, campaign: Campaign, voter: Replica, result: VoteResult) -> None:
        """By the membership at the log's end, itself only if it is named there."""
        campaign.record(voter, result)
        if self._state.membership.has_quorum(campaign.accepting):
            self._outcome = VoteOutcome.PASSED
            self._campaign = None
            if campaign.pre_vote:
                self._state.raise_term_and_vote_for_self()
                self._ask_votes(campaign.transfer_mark)
            else:
                self._state.become_leader()
        elif campaign.answers.keys() >= set(self._state.membership.voters()):
            self._campaign = None
            self._next_vote_ms += self._parse(campaign)

    def _parse(self, campaign: Campaign) -> float:
        """Choose the outcome of a round that did not pass; returns what to wait beyond the usual."""
        self._outcome, behind = campaign.outcome(self._state.membership)
        # Who cannot win with this log leaves the next move to those with a longer one.
        return self._config.max_vote_interval_ms if behind else 0.0

    def on_vote_request(self, request: VoteRequest) -> None:
        state = self._state
        if state.leader == request.sender and request.vote_term > state.term:
            # Our leader wants to be elected, so it leads no more.
            state.lose_leader()
            self._heard_leader_ms = LONG_AGO_MS
            self._wait_to_vote()
        result = self._judge(request)
        if not request.pre_vote:
            if result is VoteResult.ACCEPT:
                self._grant(request)
            elif result not in KEEPS_OWN_TERM and request.vote_term > state.term:
                self.adopt_term(request.vote_term)
        index, membership = self._membership_to_tell(result)
        self._outbox.send(
            request.sender,
            VoteResponse(
                sender=state.member,
                term=state.term,
                vote_term=request.vote_term,
                pre_vote=request.pre_vote,
                result=result,
                membership_index=index,
                membership=membership,
            ),
        )

    def _membership_to_tell(self, result: VoteResult) -> tuple[int, Membership | None]:
        if result is VoteResult.ACCEPT or not self._state.knows_log_state:
            return -1, None
        index, membership = self._state.committed_membership
        return index, membership if index >= 0 else None

    def _judge(self, request: VoteRequest) -> VoteResult:
        """Whatever this member's own list says: a new voter that lacks the entry which made it one would
        keep the new half from electing anybody."""
        state = self._state
        if state.role is Role.UNFORMED:
            return VoteResult.REJECT_NOT_A_VOTER
        if request.sender == state.member:
            return VoteResult.REJECT_UNEXPECTED_LEADER
        if request.vote_term < state.term + request.pre_vote:
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if self._is_sticky() and request.transfer_mark != (state.leader, state.term):
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        if request.ledger_end.term < state.runs.end_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if (
            request.ledger_end.term == state.runs.end_term
            and request.ledger_end.index < state.runs.end_index
        ):
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        if request.vote_term == state.term and state.voted_for not in (None, request.sender):
            return VoteResult.REJECT_ALREADY_VOTED
        if self._is_taking_leadership() and request.ledger_end == state.ledger_end:
            return VoteResult.REJECT_TAKING_LEADERSHIP
        return VoteResult.ACCEPT

    def _is_sticky(self) -> bool:
        if self._state.role is Role.LEADER:
            return self.answers.has_live_quorum()
        since = self._state.now_ms - self._heard_leader_ms
        return self._state.leader is not None and since < self._config.election_timeout_ms

    def _grant(self, request: VoteRequest) -> None:
        self._state.grant_vote(request.vote_term, request.sender)
        self._campaign = None
        self._outcome = VoteOutcome.WAIT_TO_VOTE_NEXT
        self._heard_leader_ms = LONG_AGO_MS
        self._expect_leader()

    def adopt_term(self, term: int) -> None:
        self._state.adopt_term(term)
        self._heard_leader_ms = LONG_AGO_MS
        if self._state.role is Role.CANDIDATE:
            self._wait_to_vote()

    def on_role_settled(self) -> None:
        """The memberships name this member again, or no longer."""
        self._campaign = None
        self._outcome = VoteOutcome.WAIT_TO_VOTE_NEXT
        if self._state.role is Role.FOLLOWER and self._state.leader is None:
            self.start()

    @property
    def adopts_terms_of_replies(self) -> bool:
        """This member leads or campaigns: a term older than another member's is of no use to it."""
        return self._state.role in (Role.LEADER, Role.CANDIDATE) or self._campaign is not None

    # ---------------------------------------------------------------- follower

    def follow(self, leader: Replica, term: int) -> None:
        """A message of a leader of this term or a higher one."""
        state = self._state
        if state.leader != leader or state.term != term:
            state.follow(term, leader)
            self._campaign = None
        self._heard_leader_ms = self._leaderless_since_ms = state.now_ms
        self._outcome = VoteOutcome.WAIT_TO_VOTE_NEXT
        self._expect_leader()
        campaign = self._campaign
        if campaign is not None and (
            campaign.transfer_mark != (leader, term) or state.now_ms >= self._next_vote_ms
        ):
            # The leader that hands over goes on with its heartbeats meanwhile.
            self._campaign = None

    def _expect_leader(self) -> None:
        self._connection_lost = False
        self._silence_deadline_ms = self._state.now_ms + self._config.election_timeout_ms

    def on_heartbeat_request(self, request: HeartbeatRequest, *, accepted: bool) -> None:
        self._outbox.send(
            request.sender,
            HeartbeatResponse(
                sender=self._state.member,
                term=self._state.term,
                round=request.round,
                accepted=accepted,
                takes_over=self._state.is_fit_to_lead,
                clock_ms=self._state.clock_ms,
                runs_machines=self._state.runs_machines,
            ),
        )

    def on_connection_lost(self, replica: Replica) -> None:
        """The leader's address no longer answers: its process died, most likely. The majority
        decides."""
        if self._state.role is Role.FOLLOWER and self._state.leader == replica:
            self._heard_leader_ms = LONG_AGO_MS
            self._connection_lost = True
            wait_ms = self._random.uniform(0, self._config.lost_connection_wait_ms)
            self._silence_deadline_ms = min(self._silence_deadline_ms, self._state.now_ms + wait_ms)

    def on_take_leadership(self, request: TakeLeadershipRequest) -> None:
        """Our leader hands over to us: ask at once, with the transfer flag that opens its followers'
        ears."""
        state = self._state
        is_caught_up = state.ledger_end == request.ledger_end
        if state.role is Role.FOLLOWER and is_caught_up and state.is_fit_to_lead:
            self._ask_pre_votes((request.sender, request.term))

    def _is_taking_leadership(self) -> bool:
        campaign = self._campaign
        return (
            campaign is not None
            and campaign.transfer_mark is not None
            and self._state.now_ms < self._next_vote_ms
        )

    # ---------------------------------------------------------------- leader

    def open_term(self) -> None:
        self._campaign = None
        self.answers.begin()
        self.round = self._timed_round = self._settled_round = 0
        self._next_heartbeat_ms = self._state.now_ms + self._config.heartbeat_interval_ms
        self.start_round()

    def start_round(self) -> None:
        self.round += 1
        self.answers.on_round(self.round)
        for replica in self._outbox.connected:
            self._send_heartbeat(replica, self.answers.round_of(replica))
        for replica in self._state.set_back:
            self.tell_set_back(replica)

    def tell_set_back(self, replica: Replica) -> None:
        """With every heartbeat, until it is another directory."""
        state = self._state
        message = HeartbeatRequest(
            sender=state.member,
            term=state.term,
            round=self.round,
            committed_index=-1,
            set_back=state.set_back[replica],
        )
        self._outbox.messages.append(Envelope(replica, message))  # its answers are not taken

    def on_connected(self, replica: Replica) -> None:
        """A flapping connection should depose no leader: a heartbeat cancels the peer's suspicion."""
        if self._state.role is Role.LEADER:
            self._send_heartbeat(replica)

    def _send_heartbeat(self, replica: Replica, answered_round: int = -1) -> None:
        state = self._state
        self._outbox.send(
            replica,
            HeartbeatRequest(
                sender=state.member,
                term=state.term,
                round=self.round,
                committed_index=state.committed_index,
                answered_round=answered_round,
                confirmed_round=self.answers.fresh_round(self.round),
            ),
        )

    def has_answered_lately(self, voter: Replica) -> bool:
        """The last round that there was time to answer, or a later one."""
        is_itself = voter == self._state.member
        return is_itself or self.answers.round_of(voter) >= max(self._settled_round, 1)

    @property
    def confirmed_round(self) -> int:
        return self.answers.confirmed_round(self.round)
