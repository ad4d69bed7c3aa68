"""Figures: their guarantees, and their JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


class PromisedFigure(NamedTuple):
    """A figure that the project promises on a machine with two cores."""

    figure: str
    """Its name among the figures shown."""
    bound: float
    at_least: bool
    """False: at most."""

    def is_met(self, value: float) -> bool:
        """Nothing that was not measured (NaN) is met."""
        return value >= self.bound if self.at_least else value <= self.bound


class HasTargets(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def targets(self) -> tuple[PromisedFigure, ...]: ...
    def figure(self, name: str) -> float: ...


def target_rows(measured: HasTargets) -> list[dict[str, Any]]:
    return [
        {**target._asdict(), "met": target.is_met(measured.figure(target.figure))}
        for target in measured.targets
    ]


def without_nan(figures: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: values not measured are null."""
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in figures.items()}
