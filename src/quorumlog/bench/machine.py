"""The machine that figures were measured on."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import Any, NamedTuple

from quorumlog.bench.figures import without_nan
from quorumlog.bench.raw_limit import measure_raw_limit

PROBE_BYTES = 4096
PROBE_SECONDS = 0.5


class MeasuredMachine(NamedTuple):
    cpu: str
    cores: int
    kernel: str
    python: str
    fdatasync_p50_ms: float
    """One write of 4 KiB and its sync by one process alone; NaN if not measured."""

    def row(self) -> dict[str, Any]:
        return without_nan(self._asdict())

    def describe(self) -> str:
        text = f"{self.cpu}, {self.cores} cores, Linux {self.kernel}, Python {self.python}"
        if not math.isnan(self.fdatasync_p50_ms):
            text += f", 4 KiB + fdatasync {self.fdatasync_p50_ms:.2f} ms"
        return text


def machine_of(scratch: str | None) -> MeasuredMachine:
    """`scratch`: where its disk is measured, if anywhere."""
    p50_ms = math.nan
    if scratch is not None:
        p50_ms = measure_raw_limit(scratch, PROBE_BYTES, PROBE_SECONDS, writers=1).sync_p50_ms
    return MeasuredMachine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        python=platform.python_version(),
        fdatasync_p50_ms=p50_ms,
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()
