"""A member's own state, all its transitions, and its outgoing messages."""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.consensus.log import LogChanges
from quorumlog.consensus.membership import Membership
from quorumlog.consensus.messages import AnyMessage
from quorumlog.consensus.ready import Envelope, Role
from quorumlog.entry import EntryId, HardState, Replica, SetBack

# ---------------------------------------------------------------- MemberState
# Term, vote, role, leader and committed index. Every transition is a method here.
#
#     UNFORMED --form--> FOLLOWER | OBSERVER          OBSERVER follows and votes, and never campaigns
#
#     FOLLOWER --become_candidate--> CANDIDATE --raise_term_and_vote_for_self--> CANDIDATE
#         ^                              |
#         +---- follow / grant_vote -----+------- become_leader ---> LEADER
#         +---- follow / grant_vote --- adopt_term / become_candidate ---+
#
#     FOLLOWER, CANDIDATE, LEADER <--settle_role--> OBSERVER          as the log's memberships name it
#
# Who may move where, and that a term never falls, is asserted here and decided elsewhere.


class MemberState:
    def __init__(
        self,
        member: Replica,
        founding: tuple[Replica, ...],
        hard_state: HardState,
        log: LogChanges,
        committed_index: int,
        now_ms: float,
    ) -> None:
        self.member = member
        self.role = Role.UNFORMED
        self.because = ""
        """Of which hand-over the role has changed since the last Ready."""
        self.term, self.voted_for = hard_state
        self.restart_term = hard_state.term
        """No vote is ever asked for at or below this term: votes or entries of its own in it, from
        before the restart, may be lost with the tail of its log."""
        self.leader: Replica | None = None
        self.hard_state_changed = False
        self.log = log
        self.runs = log.runs
        self.committed_index = committed_index
        """Never falls (async mode excepted, see EntryHandler), never above the log's end; entries up
        to here never change."""
        self.lacks_space = False
        """The newest data that came found no room on this member's disk."""
        self.disk_hangs = False
        """A sync of this member's has been under way for far too long."""
        self.owed_index = -1
        """The log was installed, and the group had committed entries up to here then: this member does
        not campaign before it holds them. Once it has, it owes nothing more."""
        self.knows_log_state = True
        """The state that the log's control entries lead to; a member that does not know it never
        leads."""
        self.runs_machines = True
        """Its state machines run: otherwise a preferred leader is not preferred."""
        self.set_back: dict[Replica, SetBack] = {}
        """Directories that this process has found set back. Their messages are ignored from then on."""
        self.reported: tuple[int, Membership] | None = None
        """The newest committed membership that another member has reported, and its index."""
        self.now_ms = now_ms
        """The time of this turn; an input, never a clock."""
        self.clock_ms = -1
        """This member's wall clock, an input, too; it is sent to the leader and decides nothing here.
        -1: unknown."""
        self.on_transition: Callable[[Role, int, Replica | None], None] = lambda role, term, leader: None
        """Called with the old role, term and leader, when the new state is complete."""
        self.observer: Callable[[str], None] | None = None
        """Observes steps that no Ready shows; changes nothing."""
        assert self.term >= self.runs.end_term, (self.term, self.runs.end_term)
        assert committed_index <= self.runs.end_index, (committed_index, self.runs.end_index)
        if founding:
            self.form(founding)

    @property
    def ledger_end(self) -> EntryId:
        return self.runs.end

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.voted_for)

    @property
    def first_unproven_index(self) -> int | None:
        """The first index not to be acknowledged, to others or to itself. In a group of one all that was
        ever on disk is committed."""
        return None if self.is_quorum_alone else self.log.damaged.first_unproven(self.committed_index)

    @property
    def owes_entries(self) -> bool:
        if self.owed_index <= self.runs.end_index:
            self.owed_index = -1
        return self.owed_index >= 0

    @property
    def membership(self) -> Membership:
        """The membership whose votes, match indices and heartbeats count: that at the log's end."""
        return self.log.memberships.newest

    @property
    def committed_membership(self) -> tuple[int, Membership]:
        """The newest that is known to be committed, and the index of its entry."""
        return self.log.memberships.holding_at(self.committed_index)

    @property
    def may_campaign(self) -> bool:
        """True if any membership from the committed index to the log's end includes this member. If only
        the newest counted, the longest log could be on a member that may not ask for votes."""
        history, reported = self.log.memberships, self.reported
        if reported is not None and reported[0] > self.committed_index:
            memberships = (reported[1], *history.behind(reported[0]))
        else:
            memberships = (self.committed_membership[1], *history.behind(self.committed_index))
        return any(membership.is_voter(self.member) for membership in memberships)

    @property
    def is_quorum_alone(self) -> bool:
        return self.knows_log_state and self.membership.has_quorum((self.member,))

    @property
    def has_committed_in_its_term(self) -> bool:
        """Only then does a leader know all entries that earlier leaders acknowledged."""
        return self.committed_index >= 0 and self.runs.term_at(self.committed_index) == self.term

    @property
    def is_fit_to_lead(self) -> bool:
        has_sound_disk = not (self.log.damaged or self.lacks_space or self.disk_hangs)
        return has_sound_disk and self.knows_log_state

    @property
    def is_unfit_leader(self) -> bool:
        """A caught-up member that is fit should lead. A leader whose disk hangs continues while nothing
        is committed without it: the others may hang as well."""
        hangs_alone = self.disk_hangs and self.committed_index > self.log.durable_index
        return bool(self.log.damaged) or self.lacks_space or hangs_alone

    @property
    def unfit_because(self) -> str:
        if self.log.damaged:
            return "entries are damaged here"
        return "there is no space here" if self.lacks_space else "the disk here hangs"

    def others(self) -> tuple[Replica, ...]:
        return self.membership.others(self.member)

    @property
    def waits_for(self) -> str:
        """Why a formed member may not campaign, in a sentence; empty if it may."""
        if self.role is not Role.OBSERVER:
            return ""
        index, membership = self.log.memberships.newest_index, self.membership
        if self.reported is not None and self.reported[0] > max(index, self.committed_index):
            index, membership = self.reported
        if self.member in membership.learners:
            return "learner: takes the log, and is counted in nothing until it is promoted"
        names = {replica.member_id for replica in membership.members()}
        if index >= 0 and self.member.member_id not in names:
            return f"observer: {self.member.member_id} is no member of the group since entry {index}"
        return (
            f"observer: directory {self.member.directory_id} is not among the voters;"
            " waits for a membership change"
        )

    # ---------------------------------------------------------------- transitions

    def form(self, founding: tuple[Replica, ...]) -> None:
        assert self.role is Role.UNFORMED, self.role
        assert founding, founding
        self.log.memberships.found(founding)
        self._move(self._passive_role, self.term, None)

    @property
    def _passive_role(self) -> Role:
        return Role.FOLLOWER if self.may_campaign else Role.OBSERVER

    def hear_of(self, index: int, membership: Membership) -> None:
        """Another member has reported a committed membership."""
        if index > self.committed_index and (self.reported is None or index > self.reported[0]):
            self.reported = index, membership

    def settle_role(self) -> None:
        """The memberships from the committed index on have become others."""
        assert self.role is not Role.UNFORMED, self.role
        if not self.may_campaign:
            leader = self.leader if self.leader != self.member else None
            self._move(Role.OBSERVER, self.term, leader)
        elif self.role is Role.OBSERVER:
            self._move(Role.FOLLOWER, self.term, self.leader)

    def follow(self, term: int, leader: Replica) -> None:
        """`leader` has shown that it leads `term`."""
        assert leader != self.member, leader
        assert self.role is not Role.LEADER or term > self.term, (self.role, term, self.term)
        assert self.leader in (None, leader) or term > self.term, (self.leader, leader, term)
        self._move(self._passive_role, term, leader)

    def become_candidate(self) -> None:
        assert self.may_campaign, self.role
        self._move(Role.CANDIDATE, self.term, None)

    def lose_leader(self) -> None:
        """The present leader is no longer known to lead."""
        self._move(Role.CANDIDATE if self.may_campaign else Role.OBSERVER, self.term, None)

    def adopt_term(self, term: int) -> None:
        """Another member has a higher term: store it without a vote."""
        assert term > self.term, (term, self.term)
        self._move(Role.CANDIDATE if self.may_campaign else Role.OBSERVER, term, None)

    def grant_vote(self, term: int, candidate: Replica) -> None:
        """The vote is durable before the answer leaves."""
        assert self.role is not Role.UNFORMED, self.role
        assert term >= self.term, (term, self.term)
        assert term > self.term or self.voted_for in (None, candidate), (self.voted_for, candidate)
        self._move(self._passive_role, term, None, vote=candidate)

    def raise_term_and_vote_for_self(self) -> None:
        """A pre-vote for the next term has passed."""
        assert self.may_campaign and self.role is not Role.LEADER, self.role
        assert self.term + 1 > self.restart_term, (self.term, self.restart_term)
        self._move(Role.CANDIDATE, self.term + 1, None, vote=self.member)

    def become_leader(self) -> None:
        """A majority has voted for this member in its current term."""
        assert self.role is Role.CANDIDATE, self.role
        assert self.voted_for == self.member, self.voted_for
        assert self.term > self.restart_term, (self.term, self.restart_term)
        assert self.term > self.runs.end_term, (self.term, self.runs.end_term)
        self._move(Role.LEADER, self.term, self.member)

    def commit_up_to(self, index: int) -> None:
        assert self.committed_index <= index <= self.runs.end_index, (
            self.committed_index,
            index,
            self.runs.end_index,
        )
        self.committed_index = index

    def lose_committed_from(self, index: int) -> None:
        """Async mode only: a power loss has taken committed entries from `index` on from the group."""
        assert index <= self.committed_index, (index, self.committed_index)
        self.committed_index = index - 1

    def _move(
        self, role: Role, term: int, leader: Replica | None, *, vote: Replica | None = None
    ) -> None:
        assert term >= self.term, (term, self.term)
        before = (self.role, self.term, self.leader)
        if term > self.term:
            self.term = term
            self.voted_for = None
            self.hard_state_changed = True
        if vote is not None and vote != self.voted_for:
            self.voted_for = vote
            self.hard_state_changed = True
        self.role = role
        self.leader = leader
        assert (role is Role.LEADER) == (leader == self.member), (role, leader)
        if before != (role, term, leader):
            self.on_transition(*before)


# ---------------------------------------------------------------- Outbox
# Who is connected, and what leaves with the next Ready: nothing to who is not connected.


class Outbox:
    def __init__(self) -> None:
        self.connected: tuple[Replica, ...] = ()
        """Sorted: nothing may depend on the order in which connections opened."""
        self._syncs: set[Replica] = set()
        self.messages: list[Envelope] = []
        self.after_durable: list[Envelope] = []

    def connect(self, replica: Replica, *, syncs: bool = False) -> None:
        (self._syncs.add if syncs else self._syncs.discard)(replica)
        self.connected = tuple(sorted({*self.connected, replica}))

    def disconnect(self, replica: Replica) -> None:
        self._syncs.discard(replica)
        self.connected = tuple([other for other in self.connected if other != replica])

    def is_connected(self, replica: Replica) -> bool:
        return replica in self.connected

    def syncs(self, replica: Replica) -> bool:
        """The peer is connected and acknowledges only synced entries, so it holds them for good."""
        return replica in self._syncs

    def send(self, to: Replica, message: AnyMessage) -> None:
        """May leave as soon as this turn's term and vote are synced."""
        if to in self.connected:
            self.messages.append(Envelope(to, message))

    def send_after_durable(self, to: Replica, message: AnyMessage) -> None:
        """Promises something that only the disk can keep: leaves when this turn is durable."""
        if to in self.connected:
            self.after_durable.append(Envelope(to, message))
