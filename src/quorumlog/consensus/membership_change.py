"""MembershipChange: the memberships of the log, which one a leader may append next and which one it has
to.

One change at a time, only once the leader has committed an entry of its term, and only if a quorum of
the new half answered the last round of heartbeats: otherwise nothing could be committed from the change
on. A joint membership is finished, by the leader of that time, once it is committed through an entry of
the leader's own term; two leaders of one term could come about otherwise.

Raft paper, section 6; Ongaro's thesis, 4.1 (with the correction of 2015) and 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.elector import LeaderElector
from quorumlog.consensus.leadership_transfer import LeadershipTransfer
from quorumlog.consensus.member_state import MemberState
from quorumlog.consensus.membership import Membership
from quorumlog.consensus.ready import Role
from quorumlog.consensus.replication import Replication
from quorumlog.entry import EntryId, EntryKind, Replica
from quorumlog.errors import LeaderNotReady, MembershipRefused


class MembershipChange:
    def __init__(
        self,
        config: ConsensusConfig,
        state: MemberState,
        elector: LeaderElector,
        replication: Replication,
        transfer: LeadershipTransfer,
        check_may_propose: Callable[[], None],
    ) -> None:
        self._state = state
        self._history = state.log.memberships
        self._elector = elector
        self._replication = replication
        self._transfer = transfer
        self._check_may_propose = check_may_propose
        self._retry_ms = config.heartbeat_interval_ms
        self._judged_index: int | None = None
        self.settled_changes = -1
        self.settled_reported: tuple[int, Membership] | None = None
        """The state by which the role was settled last, with `MembershipHistory.changes`."""

    # ---------------------------------------------------------------- every member

    def on_appended(self, index: int, membership: Membership) -> None:
        """Entry `index`, which is appended, says that these are the members from there on."""
        if index <= self._history.newest_index:
            assert self._history.holding_at(index) == (index, membership), (index, membership)
            return
        assert index <= self._state.runs.end_index, (index, self._state.ledger_end)
        self._history.append(index, membership)
        if self._state.role is Role.LEADER:
            self._replication.on_membership()

    def on_read(self, held: Sequence[tuple[int, Membership]]) -> None:
        """The memberships in the log were read: (index of the entry, membership), the first of them
        committed."""
        self._history.take(held)

    def settle_role(self) -> None:
        """A leader that no membership names any more leads up to the commit of the entry that says so,
        and no further; a member named anew may campaign."""
        state = self._state
        index, reported = state.committed_index, state.reported
        is_settled = self._history.newest_index <= index and (reported is None or reported[0] <= index)
        # With nothing above the committed index it may rise, with every append, and say nothing new.
        judged_index, changes = None if is_settled else index, self._history.changes
        if state.role is Role.UNFORMED or (
            changes == self.settled_changes
            and judged_index == self._judged_index
            and reported == self.settled_reported
        ):
            return
        self._judged_index, self.settled_changes, self.settled_reported = judged_index, changes, reported
        if state.may_campaign == (state.role is Role.OBSERVER):
            if state.role is Role.LEADER:
                self._transfer.hand_over_and_leave()
            state.settle_role()
            self._elector.on_role_settled()

    @property
    def are_known(self) -> bool:
        return self._state.role is not Role.UNFORMED and self._state.knows_log_state

    @property
    def ever_known(self) -> frozenset[Replica]:
        """Founders, and replicas that were members by an entry seen since this member's start. A replica
        replaced before that is in the log's state."""
        named = [replica for _, each in self._history.held for replica in each.members()]
        return frozenset((*self._history.founding, *named))

    @property
    def living(self) -> tuple[Membership, ...]:
        """From the newest that is known to be committed to the one at the log's end."""
        index, committed = self._state.committed_membership
        return (committed, *self._history.behind(max(index, self._state.committed_index)))

    @property
    def version(self) -> tuple[int, bool]:
        """Another one whenever `living` is."""
        return self._history.changes, self._history.newest_index <= self._state.committed_index

    # ---------------------------------------------------------------- leader

    def propose(self, membership: Membership, *, size_bytes: int = 0) -> EntryId:
        """One entry with the voters from there on, which holds at once. Raises as `check`; nothing has
        changed then."""
        self.check(membership)
        entry = self._replication.append(1, EntryKind.MEMBERSHIP, size_bytes)
        self.on_appended(entry.index, membership)
        return entry

    def due(self) -> Membership | None:
        """The entry that this leader has to append now: the end of a change."""
        state = self._state
        is_due = (
            state.role is Role.LEADER
            and state.membership.is_joint
            and self._is_settled
            and self._transfer.target is None
        )
        return state.membership.final() if is_due else None

    @property
    def _is_settled(self) -> bool:
        """The present membership is committed, through an entry of the own term."""
        state = self._state
        return (
            self._history.newest_index <= state.committed_index
            and self._replication.acks.first_index <= state.committed_index
        )

    def check(self, wanted: Membership) -> None:
        """Raises as `RaftNode.propose` does, or MembershipRefused with the reason."""
        self._check_may_propose()
        state, present = self._state, self._state.membership
        if self._replication.acks.first_index > state.committed_index:
            raise LeaderNotReady(
                "this leader has not committed an entry of its term yet", retry_after_ms=self._retry_ms
            )
        if wanted == self.due():
            return
        if present.is_joint or not self._is_settled:
            raise self._refusal("another change of the members is under way", passes=True)
        assert wanted.old == present.new, (wanted, present)
        self._check_names(wanted)
        for voter in wanted.new:
            if voter not in present.new and not self._replication.has_caught_up(voter):
                raise self._refusal(f"{voter.member_id} has not caught up with the log", passes=True)
        silent = [voter for voter in wanted.new if not self._elector.has_answered_lately(voter)]
        answering = [voter for voter in wanted.new if voter not in silent]
        if not Membership.of(wanted.new).has_quorum(answering):
            names = ", ".join(voter.member_id for voter in silent)
            raise self._refusal(
                f"{len(answering)} of {len(wanted.new)} voters would answer, too few for anything to be"
                f" committed: {names} has to answer first",
                passes=True,
            )

    def _check_names(self, wanted: Membership) -> None:
        members: tuple[Replica, ...] = (*wanted.new, *wanted.learners)
        names = [replica.member_id for replica in members]
        if not wanted.new:
            raise self._refusal("there would be no voter: another member has to be added first")
        if len(set(names)) < len(names):
            raise self._refusal(f"a member would be in it twice: {', '.join(sorted(names))}")

    def _refusal(self, reason: str, *, passes: bool = False) -> MembershipRefused:
        """`passes`: it is worth while to ask again."""
        return MembershipRefused(reason, retry_after_ms=self._retry_ms if passes else 0)
