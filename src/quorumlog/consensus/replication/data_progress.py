"""DataProgress: do a leader's entries arrive anywhere, or only its heartbeats?

Heartbeats have a connection of their own and are small. Where a network drops large frames only, or the
disks of most members hang, everybody goes on to follow a leader that can commit nothing. A member
*progresses* if its mark rises, if its machine acknowledges bytes of what it is sent (so a slow link is
progress) unless entries have arrived there that its disk has not taken, or if there is nothing that it
lacks, or no room for it. A leader under which something is not committed while fewer than a majority
progress, itself included, steps down.
"""

from __future__ import annotations

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.member_state import MemberState
from quorumlog.entry import Replica

NAMED_AFTER = 4
"""Election time-outs without progress after which `status` names a member."""
GIVEN_UP_AFTER = 8
"""Election time-outs without a majority that progresses after which a leader steps down: with the
defaults a little longer than the transport needs to give up a dead connection and to dial another."""
MAX_BACK_OFF = 8
"""A leader waits twice as long each time that nothing was committed since it stepped down last, up to so
many times `GIVEN_UP_AFTER`."""


class DataProgress:
    """Of the term that this member leads; how often it gave up is remembered beyond."""

    def __init__(self, config: ConsensusConfig, state: MemberState) -> None:
        self._config = config
        self._state = state
        self._progressed_ms: dict[Replica, float] = {}
        """When each other voter, and each observer that was fed, progressed last."""
        self._back_off = 1
        self._gave_up_at_index = -1
        """The committed index at the last step-down."""

    def begin(self) -> None:
        """Elected: every voter counts as having progressed just now."""
        state = self._state
        if state.committed_index > self._gave_up_at_index:
            self._back_off = 1
        self._progressed_ms = dict.fromkeys(state.others(), state.now_ms)

    def on_membership(self) -> None:
        """Others may count from now on."""
        for voter in self._state.others():
            self.on_connected(voter)

    def on_connected(self, replica: Replica) -> None:
        """An observer is new here at first; a voter that comes back has still to progress."""
        self._progressed_ms.setdefault(replica, self._state.now_ms)

    def note(self, replica: Replica) -> None:
        """It progresses."""
        if replica in self._progressed_ms:
            self._progressed_ms[replica] = self._state.now_ms

    def on_committed(self) -> None:
        self._back_off = 1

    def gives_up(self) -> bool:
        """True once it is time to step down; asked once a heartbeat, and not again in that term."""
        state = self._state
        if state.committed_index >= state.runs.end_index:
            return False
        progressed_ms = {**self._progressed_ms, state.member: state.now_ms}
        silent_ms = state.now_ms - state.membership.quorum_value(progressed_ms)
        if silent_ms < GIVEN_UP_AFTER * self._back_off * self._config.election_timeout_ms:
            return False
        self._back_off = min(2 * self._back_off, MAX_BACK_OFF)
        self._gave_up_at_index = state.committed_index
        return True

    def stalled_since_ms(self, replica: Replica) -> float | None:
        """When a connected member that lacks something progressed last, if that is long ago."""
        since_ms = self._progressed_ms.get(replica, self._state.now_ms)
        silent_ms = self._state.now_ms - since_ms
        return since_ms if silent_ms >= NAMED_AFTER * self._config.election_timeout_ms else None
