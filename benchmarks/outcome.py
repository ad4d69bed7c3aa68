"""Outcome: figures by name, and what was promised of some of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.status import Status
from rich.table import Table

from quorumlog.bench.figures import PromisedFigure, target_rows, without_nan

Report = Callable[[str], None]
"""Told what begins."""


def reporter(console: Console, status: Status) -> Report:
    """The line that stands on a terminal; elsewhere, as in a job, a line each on stderr."""

    def line(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    return status.update if console.is_terminal else line


class Outcome(NamedTuple):
    name: str
    figures: dict[str, float]
    """NaN: was not measured."""
    targets: tuple[PromisedFigure, ...] = ()
    note: str = ""
    """What to know when reading the figures."""

    def row(self) -> dict[str, Any]:
        figures = without_nan(self.figures)
        return {"workload": self.name, **figures, "note": self.note, "targets": target_rows(self)}

    def figure(self, name: str) -> float:
        return self.figures[name]


def outcome_table_of(outcomes: Sequence[Outcome]) -> Table:
    """A column for each outcome, a row for each figure that one of them has."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for outcome in outcomes:
        table.add_column(outcome.name, justify="right")
    for figure in dict.fromkeys(name for outcome in outcomes for name in outcome.figures):
        table.add_row(figure, *(_short(outcome.figures.get(figure, math.nan)) for outcome in outcomes))
    table.caption = "; ".join(dict.fromkeys(outcome.note for outcome in outcomes if outcome.note))
    return table


def _short(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
