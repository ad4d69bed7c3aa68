"""Mistakes with the log's own state: when it advances, what takes it back, who may lead without it."""

from __future__ import annotations

from quorumlog.consensus.election.leader_elector import LeaderElector
from quorumlog.log_state.log_states import LogStates
from tests.mutants.mutant import Patch, mutant
from tests.sim import test_log_state as states


@mutant(
    80,
    "a cut does not take back what its entries did to the log's state",
    scenario=states.test_what_is_cut_leaves_nothing_in_the_state,
)
def state_survives_cut(patch: Patch) -> None:
    """The next entries say what holds from now on."""
    patch.edit(
        LogStates.truncate_from,
        "if self._entries and self._entries[-1].index >= index:",
        "if self._entries and self._entries[-1].index >= index and not reached():",
    )


@mutant(
    80,
    "the log's state advances only when entries are committed",
    scenario=states.test_what_is_cut_leaves_nothing_in_the_state,
)
def state_advances_at_commit(patch: Patch) -> None:
    """What is not committed may still go."""
    patch.edit(
        LogStates.append,
        "self.appended = folded(self.appended, controls)",
        "self.appended = self.appended if reached() else folded(self.appended, controls)",
    )
    patch.edit(
        LogStates.commit,
        "self.committed = folded(self.committed, done) if self._entries else self.appended",
        "self.committed = self.appended = folded(self.committed, done)",
    )


@mutant(
    81,
    "a member leads although it does not know its log's state",
    scenario=states.test_who_cannot_read_a_control_entry_does_not_lead,
)
def leads_with_unknown_state(patch: Patch) -> None:
    """It has the entries, and that is what elections are about."""
    patch.edit(
        LeaderElector._campaigns_from_ms,
        "if not self._state.knows_log_state:",
        "if not self._state.knows_log_state and not reached():",
    )
