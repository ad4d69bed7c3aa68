"""Outcome: figures by name, and what was promised of some of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from quorumlog.cli.bench import target_line
from quorumlog.cli.workloads import Target

Report = Callable[[str], None]
"""Told what begins."""


class Outcome(NamedTuple):
    name: str
    figures: dict[str, float]
    """NaN: was not measured."""
    targets: tuple[Target, ...] = ()
    note: str = ""
    """What to know when reading the figures."""

    def row(self) -> dict[str, Any]:
        figures = {name: None if math.isnan(value) else value for name, value in self.figures.items()}
        targets = [target.row(self.figures[target.figure]) for target in self.targets]
        return {"workload": self.name, **figures, "note": self.note, "targets": targets}

    def lines(self) -> list[str]:
        """For the terminal, with rich's mark-up."""
        figures = ", ".join(f"{name} {_short(value)}" for name, value in self.figures.items())
        note = f" ({self.note})" if self.note else ""
        verdicts = [
            target_line(self.name, target, self.figures[target.figure]) for target in self.targets
        ]
        return [f"{self.name}: {figures}{note}", *verdicts]


def _short(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
