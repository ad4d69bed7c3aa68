"""Batches through crashes at every step: each row in the log once, in order. And with any rule left out,
rows are lost or come twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumlog.staging import Batch, BatchRules, NewestManifest, RowsGone, SinkCommits
from quorumlog.staging.commits import Commit
from quorumlog.staging.manifests import Manifest, Verdict, judge
from tests.staging.model_query import run, run_writers

SEEDS = 60
MOST_SEEDS = 400
"""In which a mistake has to show."""


@pytest.mark.parametrize("seed", range(0, SEEDS, 10))
def test_each_row_is_in_the_log_once_and_in_order(seed: int) -> None:
    for each in range(seed, seed + 10):
        run(each)
        run_writers(each)


class LooksBeforeItConnects(SinkCommits):
    """Judges by the manifest that was the newest before other drivers were fenced."""

    def commit(self, batch: Batch, rules: BatchRules) -> Commit:
        seen = self.newest()
        newest, self.newest = self.newest, lambda: seen  # type: ignore[method-assign]
        try:
            return super().commit(batch, rules)
        finally:
            self.newest = newest  # type: ignore[method-assign]


class DoesNotFinish(SinkCommits):
    """Appends its manifest behind one that is not replayed."""

    def commit(self, batch: Batch, rules: BatchRules) -> Commit:
        with self._staging.session(self.producer) as session:
            newest = self.newest()
            is_new = (
                judge(newest.batch if newest else None, batch, rules, self.producer) is Verdict.FOLLOWS
            )
            if newest is not None and not is_new:
                self._finish(newest)
                return Commit(newest.index, was_new=False)
            return self._commit(session, newest, batch)


class LetsGoTooSoon(SinkCommits):
    """Moves the hold on before the rows are replayed."""

    def _replay(self, standing: NewestManifest) -> None:
        self._staging.move_hold(self.hold_name, standing.index)
        super()._replay(standing)


class HoldsNothing(SinkCommits):
    def begin(self) -> Batch | None:
        newest = self.newest()
        return None if newest is None else newest.batch

    def _check_held(self, batch: Batch) -> None:
        pass


class BelievesThatItHolds(SinkCommits):
    """Does not look whether another driver has moved the hold past its rows."""

    def _check_held(self, batch: Batch) -> None:
        pass


class ForgetsToMatch(SinkCommits):
    """Takes whatever comes, also what stands already."""

    def commit(self, batch: Batch, rules: BatchRules) -> Commit:
        with self._staging.session(self.producer) as session:
            newest = self.newest()
            if newest is not None:
                self._finish(newest)
            return self._commit(session, newest, batch)


class ReplaysFromTheBegin(SinkCommits):
    """Does not ask how much of it is in the log."""

    def _replay_once(self, manifest: Manifest) -> None:
        with self._log.session(self.rows_producer) as session:
            batches = self._staging.batches(manifest.batch.ranges)
            session.append(session.last_sequence + 1, batches)


MISTAKES: list[Callable[..., SinkCommits]] = [
    LooksBeforeItConnects,
    DoesNotFinish,
    LetsGoTooSoon,
    HoldsNothing,
    BelievesThatItHolds,
    ForgetsToMatch,
    ReplaysFromTheBegin,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda kind: kind.__name__)
def test_a_rule_left_out_loses_or_repeats_rows(mistake: type[SinkCommits]) -> None:
    for seed in range(MOST_SEEDS):
        try:
            run(seed, mistake)
            run_writers(seed, mistake)
        except (AssertionError, RowsGone):
            return
    pytest.fail(f"{mistake.__name__} was noticed by none of {MOST_SEEDS} runs")
