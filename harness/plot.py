"""matplotlib on a machine without a display: pictures become files."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # no display, and none is looked for

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

__all__ = ["plt", "save"]


def save(figure: Figure, path: Path) -> None:
    """Write a PNG and forget the figure."""
    figure.savefig(path, dpi=120)
    plt.close(figure)
