"""The run: set up, then all systems in turn, again and again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.peers.cache import Cache, Unavailable
from benchmarks.peers.results import Failure, Results
from benchmarks.peers.system import MeasuringFailed, System

WARM_UP_WORKLOAD = "64-writers"
Report = Callable[[str], None]


def set_up(systems: Sequence[System], cache: Cache, results: Results, report: Report) -> list[System]:
    """Install all of them before anything is measured; those that cannot be are named in `results`."""
    installed = []
    for system in systems:
        report(f"{system.name}: setting up")
        try:
            system.set_up(cache)
        except (Unavailable, OSError) as error:
            results.missing[system.name] = str(error)
        else:
            installed.append(system)
    return installed


def measure_all(
    systems: Sequence[System],
    workloads: Sequence[str],
    repetitions: int,
    seconds: float,
    folder: Path,
    results: Results,
    report: Report,
    after_each: Callable[[], None],
) -> None:
    """Each repetition takes every system in turn, so that a slow hour of the machine strikes all alike;
    every second one backwards, so that what one leaves behind does not always strike the same next one.
    Only one system's members exist at a time, on empty directories under `folder`, which are removed."""
    for repetition in range(1, repetitions + 1):
        for system in systems if repetition % 2 else reversed(systems):

            def failed(workload: str | None, error: Exception) -> None:
                results.failures.append(Failure(system.name, workload, repetition, str(error)))  # noqa: B023

            data = folder / system.name
            shutil.rmtree(data, ignore_errors=True)
            data.mkdir(parents=True)
            report(f"repetition {repetition} of {repetitions}: {system.title} starts")
            try:
                with system.running(data) as running:
                    # Nobody's first seconds count: Java compiles what it runs often, caches fill.
                    running.measure(WARM_UP_WORKLOAD, seconds)
                    for workload in workloads:
                        if workload not in system.shapes:
                            continue
                        report(f"repetition {repetition} of {repetitions}: {system.title}, {workload}")
                        try:
                            figures = running.measure(workload, seconds)
                        except MeasuringFailed as error:
                            failed(workload, error)
                        else:
                            results.add(system.name, workload, figures)
            except (MeasuringFailed, OSError) as error:
                failed(None, error)
            finally:
                shutil.rmtree(data, ignore_errors=True)
            # What one system left in the page cache is not written back at the next one's expense.
            os.sync()
            after_each()
