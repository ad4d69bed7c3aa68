"""Membership changes: requests to the leader, and lost directories."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from quorumlog.config import GroupConfig
from quorumlog.consensus.membership import Membership
from quorumlog.consensus.ready import Role, RoleChange
from quorumlog.entry import EntryKind, Replica
from quorumlog.errors import LedgerError, MembershipRefused, OutcomeUnknown, TransferFailed
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.node.ports import Member
from quorumlog.node.transfers import TransferOutcome, Transfers

LOOK_MS = 500
RETRY_MS = 500


# From what is asked for to the membership that a leader proposes, and to its end.
#
#     add          a directory that is connected becomes a learner
#     promote      a learner that has caught up becomes a voter
#     remove       a voter or a learner is a member no more; a leader hands over first
#     replace      the directory of a voter by the one that is connected under its name now
#     set-address  where a member is to be found
#
# A change of voters is a joint membership first (`consensus/membership_change.py`); this leader, or the
# one after it, ends it as soon as it may.


class MemberOperation(StrEnum):
    ADD = "add"
    PROMOTE = "promote"
    REMOVE = "remove"
    REPLACE = "replace"
    SET_ADDRESS = "set-address"


class MemberChange(NamedTuple):
    """A requested change of the membership."""

    operation: MemberOperation
    member_id: str
    address: str = ""
    """Of ADD and SET_ADDRESS: `host:port`."""
    dry_run: bool = False
    """Only say whether it would be done."""
    directory_id: str = ""
    """Of REPLACE: the directory that votes then; empty: the one that answers under this name."""


MemberOutcome = Membership | LedgerError
"""The membership once it is committed, or the refusal; OutcomeUnknown if the outcome is not known."""


class MemberChanges:
    def __init__(self, member: Member, transfers: Transfers, log_state: LogStateKeeper) -> None:
        self._member = member
        self._raft = raft = member.raft
        self._transfers = transfers
        self._log_state = log_state
        self._done: Callable[[MemberOutcome], None] | None = None
        """Of the change that is under way, if somebody waits for it."""
        self._now_ms = 0.0
        self._looks_at_options = bool(raft.status().voters)
        self._looked_at: tuple[int, bool] | None = None
        self.problem = ""
        """In a sentence; empty if there is none."""
        self._away_since_ms: dict[Replica, float] = {}
        """Of members that are not connected, as long as this one leads."""
        self._next_look_ms = 0.0
        self.configure(member.config)

    def configure(self, config: GroupConfig) -> None:
        self._auto_replace_after_ms = config.auto_replace_after_ms
        self._own_id = config.member_id
        self._configured = {member.member_id: str(member) for member in config.members}

    def _look_at_options(self) -> None:
        """After a start of a member that had formed before: with each membership of the log, until
        both say the same. Who was away may have the new list, and lack the entry still."""
        members = self._raft.members
        if not self._looks_at_options or not members.are_known or members.version == self._looked_at:
            return
        self._looked_at = members.version
        membership = self._raft.status().membership
        if membership.is_joint:
            return
        if self._configured == dict(self.addresses_of(membership)):
            # From here on the log moves on, and nobody has to follow it in files.
            self._looks_at_options, self.problem = False, ""
            return
        named, listed = (
            ",".join(f"{member_id}={address}" for member_id, address in sorted(each.items()))
            for each in (dict(self.addresses_of(membership)), self._configured)
        )
        self.problem = (
            f"the options list the members {listed}; by the log they are {named}: the log counts, and"
            " `quorumlog member` changes it"
        )

    @property
    def lost_majority(self) -> str:
        """In a sentence; empty if those that vote could elect a leader, as far as this member knows."""
        status, connected = self._raft.status(), self._raft.connected
        if status.leader is not None or status.role not in (Role.FOLLOWER, Role.CANDIDATE):
            return ""
        voters = status.membership.voters()
        renewed = {other.member_id for other in connected if other not in status.membership.members()}
        here = {*connected, status.replica}
        lost = [voter for voter in voters if voter.member_id in renewed and voter not in here]
        if status.membership.has_quorum([voter for voter in voters if voter not in lost]):
            return ""
        names = ", ".join(voter.member_id for voter in lost)
        return (
            f"{names} runs on another directory than the one that votes, and without that one no leader"
            " can be elected: start it with the one that votes, or, if that is lost, stop all members"
            " and run quorumlog recover --unsafe on the directory of one that has lost nothing"
        )

    # ---------------------------------------------------------------- what is asked for

    def request(self, change: MemberChange, done: Callable[[MemberOutcome], None]) -> None:
        """`done` gets one outcome; of a change that is made, once it is committed."""
        self._end_if_committed()
        refusal = self._member.refusal_unless_leading()
        if refusal is not None:
            done(refusal)
            return
        try:
            wanted = self._wanted(change)
            if wanted == self._raft.status().membership and self._is_committed:
                done(wanted)
                return
            self._raft.members.check(wanted)
            body = self._log_state.membership_body(wanted)
            if change.dry_run:
                self._log_state.check_own(EntryKind.MEMBERSHIP, body)
                done(wanted.final())
            elif change.operation is MemberOperation.REMOVE and change.member_id == self._own_id:
                self._hand_over(done)
            else:
                self._member.propose_control(body)
                self._done = done
        except LedgerError as error:
            done(error)

    def _wanted(self, change: MemberChange) -> Membership:
        """Raises MembershipRefused, LevelNotReported, LeaderNotReady."""
        present = self._raft.status().membership
        present = present._replace(addresses=self.addresses_of(present))
        if change.operation is MemberOperation.ADD:
            return self._with_learner(present, change)
        member_id = change.member_id
        named = [replica for replica in present.members() if replica.member_id == member_id]
        if not named:
            names = ", ".join(sorted({replica.member_id for replica in present.members()}))
            raise MembershipRefused(f"{member_id} is not among the members: {names}")
        if change.operation is MemberOperation.SET_ADDRESS:
            return self._with_address(present, member_id, change.address)
        replica = named[-1]
        learners = tuple(learner for learner in present.learners if learner.member_id != member_id)
        if change.operation is MemberOperation.PROMOTE:
            if replica not in present.learners:
                raise MembershipRefused(f"{member_id} is a voter already")
            return present._replace(new=_sorted((*present.new, replica)), learners=learners)
        others = tuple(voter for voter in present.new if voter.member_id != member_id)
        if change.operation is MemberOperation.REMOVE:
            wanted = present._replace(new=others, learners=learners)
            return wanted if wanted.is_joint else wanted.final()
        assert change.operation is MemberOperation.REPLACE, change
        fresh = self._connected_as(member_id, change)
        if fresh in present.members():
            reason = (
                f"{member_id} answers with the directory that is a member already: nothing is lost, and"
                " nothing to be replaced"
            )
            if member_id == self._own_id:
                reason += "; it leads, and sees no other of its name: if there is one, hand over first"
            raise MembershipRefused(reason)
        self._log_state.check_reads(member_id)
        if replica in present.learners:
            return present._replace(learners=_sorted((*learners, fresh)))
        return present._replace(new=_sorted((*others, fresh)))

    def _with_learner(self, present: Membership, change: MemberChange) -> Membership:
        member_id = change.member_id
        if any(learner.member_id == member_id for learner in present.learners):
            raise MembershipRefused(
                f"{member_id} is a learner already; quorumlog member promote {member_id} lets it vote"
            )
        if any(replica.member_id == member_id for replica in present.members()):
            raise MembershipRefused(
                f"{member_id} is a member already; `member replace` gives it another directory"
            )
        wanted = self._with_address(present, member_id, change.address)
        learner = self._connected_as(member_id, change)
        self._log_state.check_reads(member_id)
        return wanted._replace(learners=_sorted((*present.learners, learner)))

    def _connected_as(self, member_id: str, change: MemberChange) -> Replica:
        """The directory that answers under this name: if several do, one that is no member, and never
        was if there is such a one."""
        here = self._raft.status().replica
        named = [each for each in (*self._raft.connected, here) if each.member_id == member_id]
        found = [each for each in named if change.directory_id in ("", each.directory_id)]
        if not found:
            where = f" at {change.address}" if change.address else ""
            raise MembershipRefused(
                f"{member_id} does not answer{where}: start it with the same --group, and with itself"
                " and the present members in --members",
                retry_after_ms=RETRY_MS,
            )
        members = self._raft.status().membership.members()
        known = self._raft.members.ever_known
        return min(found, key=lambda each: (each in members, each in known))

    def _with_address(self, present: Membership, member_id: str, address: str) -> Membership:
        addresses = dict(present.addresses)
        holder = next((m for m, a in addresses.items() if a == address and m != member_id), None)
        if holder is not None:
            raise MembershipRefused(f"{address} is the address of {holder}")
        addresses[member_id] = address
        return present._replace(addresses=tuple(sorted(addresses.items())))

    def addresses(self) -> dict[str, str]:
        """By id, of all members that a possibly valid membership names."""
        return dict(pair for each in self._raft.members.living for pair in self.addresses_of(each))

    def addresses_of(self, membership: Membership) -> tuple[tuple[str, str], ...]:
        """Where the members are, by the membership, or else by the options of this one."""
        known = {**self._configured, **dict(membership.addresses)}
        ids = sorted({replica.member_id for replica in membership.members()})
        return tuple((member_id, known[member_id]) for member_id in ids if member_id in known)

    def _hand_over(self, done: Callable[[MemberOutcome], None]) -> None:
        """The next leader removes this member; the client goes there with its request."""
        voters = [peer for peer in self._raft.status().peers if peer.is_voter]
        fit = [peer for peer in voters if self._takes_over(peer.replica.member_id)]
        nearest = max(fit or voters, key=lambda peer: peer.match_index, default=None)
        if nearest is None:
            reason = "no other voter is connected, so none can lead"
            done(MembershipRefused(reason, retry_after_ms=RETRY_MS))
            return

        def handed_over(outcome: TransferOutcome) -> None:
            if isinstance(outcome, TransferFailed):
                reason = f"{self._own_id} leads, and no member takes over: {outcome}"
                done(MembershipRefused(reason, retry_after_ms=RETRY_MS))
            elif isinstance(outcome, LedgerError):
                done(outcome)
            else:
                again = MembershipRefused(f"{self._own_id} leads again", retry_after_ms=RETRY_MS)
                done(self._member.refusal_unless_leading() or again)

        self._transfers.request(
            nearest.replica.member_id, self._now_ms, handed_over, "it is to be removed"
        )

    def _takes_over(self, member_id: str) -> bool:
        try:
            self._raft.check_transfer(member_id)
        except LedgerError:
            return False
        return True

    # ---------------------------------------------------------------- what is under way

    def tick(self, now_ms: float) -> None:
        """With every turn: a joint membership is ended as soon as it may be."""
        self._now_ms = now_ms
        self._look_at_options()
        self._replace_lost()
        due = self._raft.members.due()
        if due is not None:
            try:
                self._member.propose_control(self._log_state.membership_body(due))
            except LedgerError:
                return  # no space, or the state is not known: the next turn tries again
        self._end_if_committed()

    def _replace_lost(self) -> None:
        """Without an operator: refused as long as the new directory has not caught up, or while too few
        of the others answer, and asked again then."""
        fresh = self._replaceable()
        if fresh is not None and self._done is None:
            member_id, directory_id = fresh
            change = MemberChange(MemberOperation.REPLACE, member_id, directory_id=directory_id)
            self.request(change, lambda outcome: None)

    def _replaceable(self) -> Replica | None:
        """The new directory, which is connected, of a member whose old one was away for
        `auto_replace_after_ms`."""
        now_ms, after_ms = self._now_ms, self._auto_replace_after_ms
        if now_ms < self._next_look_ms or self._raft.role is not Role.LEADER:
            return None
        self._next_look_ms = now_ms + LOOK_MS
        status, connected = self._raft.status(), self._raft.connected
        self._away_since_ms = {
            each: self._away_since_ms.get(each, now_ms)
            for each in (*status.membership.new, *status.membership.learners)
            if each != status.replica and each not in connected
        }
        state = self._log_state.appended
        if state is None:
            return None  # nobody can tell who was replaced before
        replaced = () if state.membership is None else state.membership.replaced
        known = {*self._raft.members.ever_known, *replaced}
        fresh = {replica.member_id: replica for replica in connected if replica not in known}
        return next(
            (
                fresh[each.member_id]
                for each, since_ms in self._away_since_ms.items()
                if now_ms - since_ms >= after_ms > 0 and each.member_id in fresh
            ),
            None,
        )

    def _end_if_committed(self) -> None:
        if self._done is not None and self._is_committed:
            self._end(self._raft.status().membership)

    @property
    def _is_committed(self) -> bool:
        status = self._raft.status()
        return not status.membership.is_joint and status.membership_index <= status.committed_index

    def role_changed(self, change: RoleChange) -> None:
        self._away_since_ms.clear()
        if change.role is Role.LEADER or self._done is None:
            return
        if self._is_committed:
            self._end(self._raft.status().membership)
        else:
            self._end(OutcomeUnknown("leadership was lost; the change of members may still be made"))

    def close(self) -> None:
        self._end(OutcomeUnknown("the member is stopping; the change of members may still be made"))

    def _end(self, outcome: MemberOutcome) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)


def _sorted(replicas: tuple[Replica, ...]) -> tuple[Replica, ...]:
    return tuple(sorted(replicas))
