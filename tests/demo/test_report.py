"""The demo succeeds only if nothing is lost and every comparison agrees."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
from rich.console import Console

from demo.producing import ProducerKill
from demo.report import Report
from demo.spark_comparison import LogContents, compare_summaries
from harness.directories import Comparison
from harness.faults import Failover
from tests.made_rows import made_row

AGREES = Comparison("a", True, "")
DIFFERS = Comparison("b", False, "here")
GOOD_CONTENTS = LogContents(1000, 0, 0, 0, (AGREES,), 1.0)


@pytest.fixture
def good() -> Report:
    told = {"address": "h:1", "ledger_end_index": 1129, "committed_index": 1129}
    return Report(
        rows=1000,
        batch_records=128,
        members=[made_row("n0", role="leader", term=3, **told)],
        starts={"n0": 2},
        seconds_producing=2.0,
        failovers=[
            Failover("SIGKILL", "n0", 1, 2, 10.0, 0.25, 1.0),
            Failover("SIGSTOP", "n1", 2, 3, 20.0, 1.125, 0.5),
        ],
        producer_kill=ProducerKill(5.0, 384, 512, 0.75),
        contents=GOOD_CONTENTS,
        directories=AGREES,
    )


def test_a_run_without_loss_and_difference_succeeds(good: Report) -> None:
    assert good.succeeded


@pytest.mark.parametrize(
    "change",
    [
        {"contents": GOOD_CONTENTS._replace(lost_rows=1)},
        {"contents": GOOD_CONTENTS._replace(comparisons=(AGREES, DIFFERS))},
        {"directories": DIFFERS},
        {"directories": None},
        {"contents": GOOD_CONTENTS._replace(repeated_rows=1)},
    ],
    ids=["a lost row", "a comparison", "directories", "unverified", "a repeated row"],
)
def test_one_thing_that_is_wrong_makes_it_fail(good: Report, change: dict[str, object]) -> None:
    assert not dataclasses.replace(good, **change).succeeded  # type: ignore[arg-type]


def test_the_tables_show_failovers_loss_and_repetition(good: Report) -> None:
    console = Console(width=200, record=True, quiet=False, file=None)
    with console.capture() as captured:
        good.print(console)
    text = captured.get()
    for expected in (
        "0.250 s",
        "1.125 s",
        "500 (batches of 128",
        "rows lost",
        "0.750 s",
        "row 512 (128",
    ):
        assert expected in text, text


def summary(rows: list[tuple[str, int, float | None]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["carrier", "flights", "mean_arr_delay"])


def test_equal_summaries_agree_up_to_rounding() -> None:
    source = summary([("AA", 2, 1.5), ("UA", 1, None)])
    found = summary([("UA", 1, None), ("AA", 2, 1.5 + 1e-12)])
    assert compare_summaries("carrier", found, source).agrees


@pytest.mark.parametrize(
    "found",
    [
        summary([("AA", 3, 1.5), ("UA", 1, None)]),
        summary([("AA", 2, 1.6), ("UA", 1, None)]),
        summary([("AA", 2, None), ("UA", 1, None)]),
        summary([("UA", 1, None)]),
        summary([("AA", 2, 1.5), ("UA", 1, None), ("ZZ", 1, None)]),
    ],
    ids=["count", "mean", "no mean", "a group missing", "a group too many"],
)
def test_summaries_that_differ_are_named(found: pd.DataFrame) -> None:
    result = compare_summaries("carrier", found, summary([("AA", 2, 1.5), ("UA", 1, None)]))
    assert not result.agrees
    assert "AA" in result.detail or "ZZ" in result.detail
