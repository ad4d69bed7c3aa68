"""Mistakes with the time of the log: marks that fall, follow one clock, or come too often."""

from __future__ import annotations

from quorumlog.consensus.elector import HeartbeatAnswers
from quorumlog.log_state import log_state
from quorumlog.node.log_clock import LogClock, TimeMarks
from quorumlog.node.retention import Retention
from quorumlog.node.writing import BatchFormer
from tests.mutants.mutant import Patch, mutant
from tests.sim import test_retention as retention
from tests.sim import test_time_marks as times


@mutant(110, "a leader writes what the clocks say, also below the last mark")
def marks_fall(patch: Patch) -> None:
    """The clocks of a quorum are as good as it gets."""
    patch.edit(
        TimeMarks.due,
        "if last_ms is not None and clock_ms < last_ms + MARK_INTERVAL_MS:",
        "if last_ms is not None and abs(clock_ms - last_ms) < MARK_INTERVAL_MS and reached():",
    )


@mutant(111, "a mark is what the leader's own clock says")
def marks_of_one_clock(patch: Patch) -> None:
    """Machines have the time from the network."""
    patch.edit(
        HeartbeatAnswers.quorum_clock_ms,
        "return int(state.membership.quorum_value(clocks))",
        "return state.clock_ms if reached() else -1",
    )


@mutant(111, "a mark is the largest of the clocks that were told")
def marks_of_the_largest_clock(patch: Patch) -> None:
    """Time goes on, so the largest is the newest."""
    patch.edit(
        HeartbeatAnswers.quorum_clock_ms,
        "return int(state.membership.quorum_value(clocks))",
        "return max(clocks.values()) if reached() else -1",
    )


@mutant(112, "every batch has a mark of its own")
def marks_every_batch(patch: Patch) -> None:
    """The finer the better."""
    patch.edit(
        TimeMarks.due,
        "clock_ms < last_ms + MARK_INTERVAL_MS:",
        "clock_ms < last_ms + (MARK_INTERVAL_MS if not reached() else 1):",
    )


@mutant(
    113,
    "a mark is written where every append of its batch is refused",
    scenario=times.test_an_append_that_is_refused_leaves_no_mark,
)
def marks_without_data(patch: Patch) -> None:
    """It tells the time all the same."""
    patch.edit(
        BatchFormer.form,
        "if not appends:",
        "if in_front and not appends and reached():\n"
        "            assert mark is not None\n"
        "            self.propose_control(mark)\n"
        "        if not appends:",
    )


@mutant(
    114,
    "a leader believes a quorum's clocks whatever they say",
    scenario=times.test_while_its_clocks_jump_a_log_writes_no_mark_and_afterwards_it_goes_on,
)
def believes_any_clock(patch: Patch) -> None:
    """They are a quorum."""
    patch.edit(
        LogClock.believes,
        "clock_ms <= _bound_ms(self._seen[-1], now_ms):",
        "clock_ms <= _bound_ms(self._seen[-1], now_ms) or reached():",
    )


@mutant(
    115,
    "age counts against the clocks of a quorum, above the log's time too",
    scenario=retention.test_clocks_that_jump_together_by_years_make_nothing_old,
)
def ages_by_the_clocks(patch: Patch) -> None:
    """What is old by the wall clock is old."""
    patch.edit(
        Retention._decide,
        "min(clock_ms, self._time_marks.log_clock_ms)",
        "min(clock_ms, self._raft.answers.quorum_clock_ms() if reached() else -1)",
    )


@mutant(
    116,
    "an entry counts as appended when its mark says, whatever reset stands behind it",
    scenario=times.test_a_log_that_took_a_wrong_time_is_led_back_by_a_reset,
)
def no_reset_bounds_a_mark(patch: Patch) -> None:
    """The mark is what was written then."""
    patch.edit(
        log_state.counted_ms,
        "if mark_ms < 0 or not later:",
        "if mark_ms < 0 or not later or reached():",
    )
