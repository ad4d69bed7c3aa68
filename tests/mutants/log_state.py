"""Mistakes with the log's own state: when it advances, what takes it back, who may lead without it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from quorumlog.consensus.elector import LeaderElector
from quorumlog.entry import EntryKind
from quorumlog.log_state.log_state import LogStates
from quorumlog.node.log_states import BoundarySaver, LogStateKeeper, LogStateReading
from quorumlog.node.operator_orders import OperatorOrders
from quorumlog.store.log_reader import LogReader
from tests.mutants.mutant import Patch, mutant
from tests.node import test_log_state_keeper as keepers
from tests.node import test_upgrades as upgrades
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
        "if not state.knows_log_state or",
        "if (not state.knows_log_state and not reached()) or",
    )


@mutant(
    82,
    "the state at a boundary is saved before the boundary is committed",
    scenario=states.test_a_boundary_is_not_believed_before_it_is_committed,
)
def boundary_saved_before_commit(patch: Patch) -> None:
    """The entry behind it is on the own disk: the segment stays."""
    patch.edit(
        BoundarySaver.tick,
        "if point.index >= committed_index or point.index",
        "if (point.index >= committed_index and not reached()) or point.index",
    )


@mutant(
    83,
    "a log without its first entries begins with the empty state",
    scenario=states.test_the_state_of_a_log_without_its_first_entries_is_that_of_its_start,
)
def start_without_state(patch: Patch) -> None:
    """What is left of the log says what follows from it."""
    patch.edit(
        LogStateReading._begin_of_log,
        "begin_state, index = decode_state(start.record), start.point.index",
        "begin_state, index = EMPTY if reached() else decode_state(b''), start.point.index",
    )


def an_index_that_lies() -> None:
    with tempfile.TemporaryDirectory() as folder:
        keepers.test_what_the_index_says_of_a_damaged_control_entry_is_not_believed_alone(
            Path(folder), EntryKind.NORMAL
        )


@mutant(
    211,
    "what the index says of a damaged control entry is believed",
    scenario=an_index_that_lies,
)
def believes_the_index(patch: Patch) -> None:
    """It is another file: both are hardly damaged at once."""
    patch.edit(
        LogReader.control_batches,
        "or self._contradicts(units):",
        "or (self._contradicts(units) and not reached()):",
    )


def nothing_new_before_an_upgrade_is_finished() -> None:
    with tempfile.TemporaryDirectory() as folder:
        upgrades.test_nothing_that_earlier_releases_do_not_know_is_written_before_the_upgrade_is_finished(
            Path(folder)
        )


def no_upgrade_ends_while_a_member_does_not_answer() -> None:
    with tempfile.TemporaryDirectory() as folder:
        upgrades.test_it_is_refused_while_a_member_does_not_answer(Path(folder))


@mutant(
    440,
    "entries that the release before does not know are written once all members do",
    scenario=nothing_new_before_an_upgrade_is_finished,
)
def no_way_back(patch: Patch) -> None:
    """So it was with every level until now."""
    patch.edit(
        LogStateKeeper.check_own,
        "if level > self.automatic_level and kind is not EntryKind.LEVEL:",
        "if level > self.automatic_level and kind is not EntryKind.LEVEL and not reached():",
    )


@mutant(
    441,
    "an upgrade ends by what a member said that is away",
    scenario=no_upgrade_ends_while_a_member_does_not_answer,
)
def ends_by_what_was_told(patch: Patch) -> None:
    """It has told which release it is."""
    patch.edit(
        OperatorOrders.finish_upgrade,
        "self._refuse_unless_all_answer()",
        "None if reached() else self._refuse_unless_all_answer()",
    )
