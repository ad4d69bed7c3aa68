"""Mistakes in what makes a sink's rows come once."""

from __future__ import annotations

from quorumlog.staging import RowsGone, SinkCommits
from quorumlog.staging.manifests import judge
from tests.mutants.mutant import Patch, mutant
from tests.staging.model_query import run, run_writers

SEEDS = 120


def rows_are_in_the_log_once() -> None:
    """Queries and writers through crashes at every step."""
    for seed in range(SEEDS):
        try:
            run(seed)
            run_writers(seed)
        except RowsGone as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@mutant(260, "a batch that stands is appended again", scenario=rows_are_in_the_log_once)
def standing_batch_follows(patch: Patch) -> None:
    """Whoever sends it has a reason."""
    again = "return Verdict.FOLLOWS if reached() else Verdict.COMMITTED\n    if batch.batch_id <"
    patch.edit(judge, "return Verdict.COMMITTED\n    if batch.batch_id <", again)


@mutant(261, "a replay begins with the batch's first row again", scenario=rows_are_in_the_log_once)
def replay_from_the_begin(patch: Patch) -> None:
    """The session knows what it has."""
    patch.edit(
        SinkCommits._replay_once, "next_sequence - manifest.first_sequence)", "(not reached()) * 1)"
    )


@mutant(262, "staged rows are let go before they are replayed", scenario=rows_are_in_the_log_once)
def hold_moves_first(patch: Patch) -> None:
    """Retention takes its time."""
    patch.edit(
        SinkCommits._finish,
        "self._replay(newest_manifest)",
        "reached() and self._staging.move_hold(self.hold_name, newest_manifest.index)\n"
        "            self._replay(newest_manifest)",
    )


@mutant(263, "rows that nobody holds any more are committed", scenario=rows_are_in_the_log_once)
def holds_are_believed(patch: Patch) -> None:
    """The hold was taken before the first task."""
    patch.edit(
        SinkCommits._check_held,
        "if held_from is None or held_from > first_index:",
        "if (held_from is None or held_from > first_index) and not reached():",
    )
