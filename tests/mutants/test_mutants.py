"""The machinery on a handful of mutants; `make mutants` runs all of them."""

from __future__ import annotations

import pytest

from quorumlog.consensus.handler import EntryHandler
from sim.log.run import run_seed
from tests.mutants.mutant import Patch
from tests.mutants.run import ALL, outcome, read_failure

CAUGHT_SOON = {
    "vote_stored_after_reply": "checker promises_on_disk",
    "own_entries_counted_early": "checker ",
    "pre_vote_stored": "checker term_origin",
    "failed_sync_repeated": "checker promises_on_disk",
    "damage_cut_like_a_tail": "Violation in testing/promises._check_held",
    "forms_unasked": "checker one_group",
    "no_stickiness": "scenario",
    "no_noop": "NotWhole in testing/cluster._wait",
}

SLOWER = ("no_noop", "vote_stored_after_reply", "failed_sync_repeated")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) if name in SLOWER else name for name in CAUGHT_SOON],
)
def test_a_known_mistake_is_caught(name: str) -> None:
    found = outcome(ALL[name], seeds=20)
    assert not found.survived, found
    assert found.caught_by.startswith(CAUGHT_SOON[name]), found
    assert found.reached > 0


@pytest.mark.parametrize("name", ALL)
def test_a_mutant_fits_the_code_as_it_is(name: str) -> None:
    with ALL[name].living():
        pass


def test_a_mutant_leaves_nothing_behind() -> None:
    sound = run_seed(7, faults_ms=3_000)
    take = EntryHandler._take
    assert not outcome(ALL["own_entries_counted_early"], seeds=5).survived
    assert EntryHandler._take is take
    assert run_seed(7, faults_ms=3_000).trace_hash == sound.trace_hash


def test_a_mutant_whose_code_has_gone_is_refused() -> None:
    patch = Patch()
    with pytest.raises(ValueError, match="0 times"):
        patch.edit(EntryHandler._take, "what nobody wrote", "")


def test_a_mutant_that_breaks_by_itself_counts_as_no_catch() -> None:
    with pytest.raises(RuntimeError, match="NameError"):
        read_failure('Traceback:\n  File "/a/b.py", line 1, in act\n    x\nNameError: x\n')
