"""One picture: every load beside what the disk allows, and every failover."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np

from benchmarks.failover import FailoverTimes
from quorumlog.cli.bench import Result

mpl.use("Agg")  # no display, and none is looked for

from matplotlib import pyplot as plt

_COLUMN_STEP = 1.6
"""Wide enough for the words beside a column of points."""


def draw(path: Path, results: Sequence[Result], failovers: Sequence[FailoverTimes], title: str) -> None:
    """Write a PNG."""
    figure, (loads, times) = plt.subplots(
        1, 2, figsize=(13, 4.5), layout="constrained", width_ratios=(2, 1)
    )
    figure.suptitle(title, fontsize=9)

    places = np.arange(len(results))[::-1]
    rates = [result.measured.records_per_second for result in results]
    raw = [result.raw_records_per_second for result in results]
    loads.barh(places + 0.2, rates, 0.38, color="tab:blue", label="three members")
    loads.barh(
        places - 0.2,
        [0 if math.isnan(value) else value for value in raw],
        0.38,
        color="lightgrey",
        label="three plain writers (raw limit)",
    )
    for place, rate in zip(places, rates, strict=True):
        loads.annotate(f" {rate:,.0f}", (rate, place + 0.2), verticalalignment="center", fontsize=8)
    for place, result in zip(places, results, strict=True):
        for target in result.load.targets:
            if target.figure == "records_per_second":
                loads.plot([target.bound] * 2, [place, place + 0.4], color="tab:green", linewidth=2)
    loads.set_yticks(places, [result.load.name for result in results])
    loads.set_xscale("log")
    loads.set_xlabel("records/s (green: target)")
    loads.legend(fontsize=8, loc="lower right")

    columns = [_COLUMN_STEP * number for number in range(len(failovers))]
    for column, failover in zip(columns, failovers, strict=True):
        spread = np.linspace(-0.15, 0.15, len(failover.seconds))
        times.plot(column + spread, failover.seconds, "o", alpha=0.5, color="tab:blue")
        for value, colour, label in (
            (failover.median_s, "tab:blue", "median"),
            (failover.target_s, "tab:green", "target"),
        ):
            times.plot([column - 0.3, column + 0.3], [value] * 2, color=colour, linewidth=2)
            times.annotate(f" {label} {value:.2f}", (column + 0.3, value), color=colour, fontsize=8)
    times.set_xticks(columns, [failover.signal_name for failover in failovers])
    times.set_xlim(-0.6, _COLUMN_STEP * max(len(failovers), 1) - 0.4)
    times.set_ylim(bottom=0)
    times.set_ylabel("seconds to the next acknowledged append")
    figure.savefig(path, dpi=120)
    plt.close(figure)
