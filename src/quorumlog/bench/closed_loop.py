"""Loads in closed loops, each beside the raw limit of its syncs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import uvloop

from quorumlog.bench.figures import PromisedFigure, target_rows, without_nan
from quorumlog.bench.raw_limit import RAW_SECONDS_LIMIT, measure_raw_limit
from quorumlog.bench.running_group import RunningGroup
from quorumlog.bench.workloads import AppendLoad, Load, Measured, measure


class Result(NamedTuple):
    """One line of the table; `row` is the same for `--json`."""

    load: Load
    measured: Measured
    raw_records_per_second: float
    """NaN where there is no raw limit: for reads, and without a directory to measure in."""

    @property
    def name(self) -> str:
        return self.load.name

    @property
    def targets(self) -> tuple[PromisedFigure, ...]:
        return self.load.targets

    @property
    def share_of_raw(self) -> float:
        return self.measured.records_per_second / self.raw_records_per_second

    def row(self) -> dict[str, Any]:
        load = {key: value for key, value in asdict(self.load).items() if key not in ("name", "targets")}
        figures = {
            **asdict(self.measured),
            "raw_records_per_second": self.raw_records_per_second,
            "share_of_raw": self.share_of_raw,
        }
        return {"workload": self.name, **load, **without_nan(figures), "targets": target_rows(self)}

    def figure(self, name: str) -> float:
        return self.share_of_raw if name == "share_of_raw" else float(getattr(self.measured, name))


def run_loads(
    loads: Sequence[Load],
    group: RunningGroup,
    seconds: float,
    scratch: str | None,
    report: Callable[[str], None],
) -> Iterator[Result]:
    """Before a load the raw limit of its syncs is measured in `scratch`; `report`: called with each
    step."""
    for load in loads:
        raw = math.nan
        if scratch is not None and isinstance(load, AppendLoad):
            report(f"{load.name}: the disk alone")
            limit = measure_raw_limit(scratch, load.sync_bytes, min(seconds, RAW_SECONDS_LIMIT))
            raw = limit.syncs_per_second * load.sync_records
        report(f"{load.name}: {seconds:g} s")
        yield Result(load, uvloop.run(measure(load, group, seconds)), raw)
