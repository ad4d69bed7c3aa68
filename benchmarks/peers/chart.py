"""One picture: the records per second of every system, a panel for each workload."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from benchmarks.peers.results import Line, Results
from harness.plot import plt, save

_SYNCED, _CACHED = "tab:blue", "lightsteelblue"
_COLUMNS = 3
_ROOM_FOR_FIGURES = 1.35
"""Of the longest bar: its figure stands behind it and inside the frame."""


def draw(path: Path, results: Results, title: str) -> None:
    """Write a PNG; quorumlog's own bars have an edge."""
    panels = results.panels()
    rows = max(1, -(-len(panels) // _COLUMNS))
    most = max((len(lines) for lines in panels.values()), default=1)
    size = (16, 0.8 + (1.2 + 0.3 * most) * rows)
    figure, axes = plt.subplots(
        rows,
        _COLUMNS,
        figsize=size,
        layout="constrained",
        squeeze=False,
    )
    figure.suptitle(title, fontsize=9)
    for axis, (name, lines) in zip(axes.flat, panels.items(), strict=False):
        _panel(axis, name, lines, most)
    for axis in list(axes.flat)[len(panels) :]:
        axis.axis("off")
    figure.legend(
        handles=[
            Patch(color=_SYNCED, label="acknowledged after a sync on a majority"),
            Patch(color=_CACHED, label="acknowledged from memory"),
        ],
        loc="outside lower center",
        ncols=2,
        fontsize=8,
    )
    save(figure, path)


def _panel(axis: Axes, name: str, lines: list[Line], places_in_all: int) -> None:
    rates = [line.figures.records_per_second for line in lines]
    places = range(len(lines))
    bars = axis.barh(places, rates, color=[_SYNCED if line.system.synced else _CACHED for line in lines])
    for place, bar, line in zip(places, bars, lines, strict=True):
        if line.system.family == "quorumlog":
            bar.set_edgecolor("black")
        axis.annotate(f" {rates[place]:,.0f}", (rates[place], place), va="center", fontsize=8)
    axis.set_yticks(list(places), [line.system.title for line in lines], fontsize=8)
    axis.set_ylim(places_in_all - 0.4, -0.6)  # from the top, bars as thick in every panel
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.set_xlim(0, _ROOM_FOR_FIGURES * max(rates) or 1.0)
    stands_for = ", ".join({line.workload for line in lines} - {name})
    beside = f" (quorumlog: {stands_for})" if stands_for else ""
    axis.set_title(f"{name}{beside}: records/s", fontsize=9)
