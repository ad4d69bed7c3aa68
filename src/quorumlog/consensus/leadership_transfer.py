"""LeadershipTransfer: handing over on request, and to a preferred member when it has caught up.

During a transfer the leader refuses appends, so that the target's match index can reach the log end:
under load there are always entries on their way. When it has, the target is asked to take over and
campaigns with the transfer flag (leader, term), which passes the stickiness of members that still follow
this leader. It ends after one election time-out at the latest.

A preferred member that is sick would take leadership back and forth for ever. So a hand-over to a
preferred member is tried once per cool-down; and every member starts a cool-down when it sees a
preferred leader go that did not last as long, or is asked by a preferred leader to take over.
"""

from __future__ import annotations

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.elector import LONG_AGO_MS, LeaderElector
from quorumlog.consensus.member_state import MemberState, Outbox
from quorumlog.consensus.messages import TakeLeadershipRequest
from quorumlog.consensus.replication import Replication
from quorumlog.entry import Replica
from quorumlog.errors import LeaderTransferring, TransferFailed


class LeadershipTransfer:
    def __init__(
        self,
        config: ConsensusConfig,
        state: MemberState,
        outbox: Outbox,
        elector: LeaderElector,
        replication: Replication,
    ) -> None:
        self._config = config
        self._state = state
        self._outbox = outbox
        self._elector = elector
        self._replication = replication
        self.target: Replica | None = None
        self._reason = ""
        self.successor: Replica | None = None
        """The presumed leader until this member follows one: the target of its transfer, or the sender
        of a message that waits here."""
        self._deadline_ms = 0.0
        self._is_requested = False
        self._next_check_ms = 0.0
        self._cool_until_ms = LONG_AGO_MS
        self._next_unfit_try_ms = LONG_AGO_MS
        self._leader_since_ms = LONG_AGO_MS

    # ---------------------------------------------------------------- leader

    def check(self, member_id: str) -> Replica:
        """The member by this name. Raises TransferFailed if leadership cannot be handed to it now,
        LeaderTransferring if a transfer runs."""
        if self.target is not None:
            raise LeaderTransferring(f"a transfer to {self.target.member_id} is running")
        named = [v for v in self._state.membership.voters() if v.member_id == member_id]
        if not named:
            raise TransferFailed(f"{member_id} is not a voter of this group")
        # While a directory is replaced the old one is a voter, too; the new one stays.
        named.sort(key=self._outbox.is_connected)
        refusals = {voter: self._refusal_of(voter) for voter in reversed(named)}
        target = next((voter for voter, refusal in refusals.items() if not refusal), None)
        if target is None:
            raise TransferFailed(next(iter(refusals.values())))
        return target

    def _refusal_of(self, target: Replica) -> str:
        """Why it cannot take over; empty if it can."""
        member_id = target.member_id
        if target == self._state.member:
            return f"{member_id} leads already"
        if not self._outbox.is_connected(target):
            return f"{member_id} is not connected with the directory that is a voter"
        if not self._elector.answers.takes_over(target):
            return (
                f"{member_id} holds damaged entries, has no space, or has a disk that hangs, and does"
                " not take over meanwhile"
            )
        if not self._is_near(target):
            return (
                f"{member_id} is {self._lag_of(target)} entries behind, older than this term or"
                f" more than max_transfer_lag_bytes ({self._config.max_transfer_lag_bytes})"
            )
        return ""

    def begin(self, member_id: str, reason: str) -> None:
        """Raises as `check`; nothing has changed then."""
        self._begin(self.check(member_id), reason)

    def _begin(self, target: Replica, reason: str) -> None:
        self.target, self._reason = target, reason
        self._deadline_ms = self._state.now_ms + self._config.election_timeout_ms
        self._is_requested = False
        self.ask_if_caught_up()

    def ask_if_caught_up(self) -> None:
        """The request to take over leaves when the target's match index is the log end."""
        target = self.target
        if target is not None and not self._is_requested and self._lag_of(target) == 0:
            self._is_requested = True
            self._outbox.send(
                target,
                TakeLeadershipRequest(
                    sender=self._state.member, term=self._state.term, ledger_end=self._state.ledger_end
                ),
            )

    def tick(self) -> None:
        """Called with every heartbeat of a leader."""
        now_ms = self._state.now_ms
        if self.target is not None:
            if not self._elector.answers.takes_over(self.target):
                # It became unfit: appends wait no longer, and an unfit leader may try the next at once.
                self.target = None
                self._next_unfit_try_ms = now_ms
            elif now_ms >= self._deadline_ms or not self._outbox.is_connected(self.target):
                self.target = None
            else:
                self._is_requested = False  # the request may have been lost
                self.ask_if_caught_up()
        elif now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + self._config.preferred_check_interval_ms
            self._hand_over_to_preferred()

    def hand_over_unfit(self) -> None:
        """This leader holds damaged entries, is out of space or has a hung disk: transfer to a caught-up
        member that has not reported the same of itself."""
        now_ms = self._state.now_ms
        if self.target is not None or now_ms < self._next_unfit_try_ms:
            return
        membership = self._state.membership
        voters = membership.voters()
        if self._state.lacks_space and not membership.has_quorum(list(filter(self._takes_part, voters))):
            return  # to refuse is clearer than to take what most disks have no room for
        fit = [voter for voter in voters if self._is_fit(voter)]
        if fit:
            # It may not come off, and appends wait meanwhile.
            self._next_unfit_try_ms = now_ms + self._config.preferred_cool_down_ms
            self._begin(min(fit, key=self._lag_of), self._state.unfit_because)

    def hand_over_and_leave(self) -> None:
        """This leader was removed: ask the most advanced follower to take over at once."""
        fit = [voter for voter in self._state.membership.new if self._is_fit(voter)]
        self.target = min(fit, key=self._lag_of, default=None)
        self._reason = "it is no member any more"
        self._is_requested = False
        self.ask_if_caught_up()

    def open_term(self) -> None:
        self.target = None
        self._next_unfit_try_ms = LONG_AGO_MS
        self._next_check_ms = self._state.now_ms + self._config.preferred_check_interval_ms

    def stop(self) -> None:
        """Leadership is lost, to the target or otherwise."""
        if self.target is not None:
            why = f": {self._reason}" if self._reason else ""
            self._state.because = f"it hands over to {self.target.member_id}{why}"
        self.successor, self.target = self.target, None

    def _hand_over_to_preferred(self) -> None:
        preferred_ids = self._config.preferred_leader_ids
        if self._state.member.member_id in preferred_ids or self._state.now_ms < self._cool_until_ms:
            return
        fit = [
            voter
            for member_id in preferred_ids
            for voter in self._state.membership.voters()
            if voter.member_id == member_id and self._is_fit(voter)
            # It would only hand over again, to a member on which the machines run.
            if self._elector.answers.runs_machines(voter)
        ]
        if fit:
            self._cool_down()
            self._begin(min(fit, key=self._lag_of), "it is preferred (preferred_leader_ids)")

    def _takes_part(self, voter: Replica) -> bool:
        return (
            voter != self._state.member
            and self._elector.answers.is_live(voter)
            and self._elector.answers.takes_over(voter)
        )

    def _is_fit(self, voter: Replica) -> bool:
        return (
            voter in self._state.membership.new
            and self._takes_part(voter)
            and self._outbox.is_connected(voter)
            and self._is_near(voter)
        )

    def _lag_of(self, voter: Replica) -> int:
        return self._state.runs.end_index - self._replication.held_index(voter)

    def _is_near(self, voter: Replica) -> bool:
        """It gets what it lacks while appends wait for it."""
        return self._replication.sizes.behind(self._replication.held_index(voter)) is not None

    # ---------------------------------------------------------------- every member

    def on_leader_changed(self, old_leader: Replica | None) -> None:
        lasted_ms = self._state.now_ms - self._leader_since_ms
        if old_leader is not None and lasted_ms < self._config.preferred_cool_down_ms:
            self.cool_down_for(old_leader)
        if self._state.leader is not None:
            self.successor = None
            self._leader_since_ms = self._state.now_ms

    def cool_down_for(self, leader: Replica) -> None:
        """`leader` stops, or asks this member to take over."""
        if leader.member_id in self._config.preferred_leader_ids:
            self._cool_down()

    def _cool_down(self) -> None:
        self._cool_until_ms = self._state.now_ms + self._config.preferred_cool_down_ms
