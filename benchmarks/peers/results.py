"""Results: every figure of a run, their medians over repetitions, and the ratios to quorumlog."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.peers.system import WORKLOADS, Figures, System

BASELINES = ("quorumlog-sync", "quorumlog-async")
_MEASURED_AS = {"batch-call": "bulk"}
"""quorumlog has one way to send in bulk, which stands against both."""


class Failure(NamedTuple):
    system: str
    workload: str | None
    """None: the members did not start."""
    repetition: int
    reason: str


class Line(NamedTuple):
    """A line of the table: one system under one workload."""

    workload: str
    system: System
    figures: Figures
    """Each the median over the repetitions."""
    repetitions: int
    ratios: dict[str, float]
    """By name of the baseline: its records per second over this system's; above 1 it is faster. NaN
    where it was not measured."""


class Results:
    def __init__(self, systems: Sequence[System]) -> None:
        self.systems = systems
        self.missing: dict[str, str] = {}
        """Name of a system that could not be installed -> why."""
        self.failures: list[Failure] = []
        self._figures: dict[tuple[str, str], list[Figures]] = {}

    def add(self, system: str, workload: str, figures: Figures) -> None:
        self._figures.setdefault((system, workload), []).append(figures)

    def lines(self) -> Iterator[Line]:
        """By workload, the systems in the order in which they are named."""
        for workload in WORKLOADS:
            for system in self.systems:
                found = self._figures.get((system.name, workload))
                if found:
                    figures = medians(found)
                    ratios = {
                        baseline: self._rate_of(baseline, workload) / figures.records_per_second
                        if figures.records_per_second
                        else math.nan
                        for baseline in BASELINES
                    }
                    yield Line(workload, system, figures, len(found), ratios)

    def panels(self) -> dict[str, list[Line]]:
        """The lines by workload; in front of those of a workload that quorumlog has not, quorumlog's of
        the one that stands for it."""
        panels: dict[str, list[Line]] = {}
        for line in self.lines():
            panels.setdefault(line.workload, []).append(line)
        for workload, measured_as in _MEASURED_AS.items():
            if workload in panels:
                ours = [
                    line for line in panels.get(measured_as, ()) if line.system.family == "quorumlog"
                ]
                panels[workload] = ours + panels[workload]
        return panels

    def _rate_of(self, baseline: str, workload: str) -> float:
        found = self._figures.get((baseline, _MEASURED_AS.get(workload, workload)))
        return medians(found).records_per_second if found else math.nan

    def as_json(self) -> dict[str, Any]:
        return {
            "systems": [
                {
                    "name": system.name,
                    "title": system.title,
                    "durability": system.durability,
                    "synced": system.synced,
                    "missing": self.missing.get(system.name),
                }
                for system in self.systems
            ],
            "results": [
                {
                    "workload": line.workload,
                    "system": line.system.name,
                    "how": line.system.shapes[line.workload].how,
                    **without_nan(line.figures._asdict()),
                    "ratios": without_nan(line.ratios),
                    "repetitions": [
                        without_nan(figures._asdict())
                        for figures in self._figures[line.system.name, line.workload]
                    ],
                }
                for line in self.lines()
            ],
            "failures": [failure._asdict() for failure in self.failures],
        }


def medians(found: Sequence[Figures]) -> Figures:
    """Each figure by itself: they need not come from one repetition."""
    return Figures(*(float(value) for value in np.median(np.array(found), axis=0)))


def without_nan(figures: dict[str, float]) -> dict[str, float | None]:
    """JSON knows no NaN: what was not measured is null."""
    return {name: None if math.isnan(value) else value for name, value in figures.items()}
