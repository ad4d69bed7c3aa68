"""Many runs, in several processes, with what they met added up."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence

from quorumlog.sim.coverage import counted_transitions
from quorumlog.sim.run import FAULTS_MS, RunResult, run_seed


def run_seeds(
    seeds: Sequence[int], jobs: int = 1, faults_ms: float = FAULTS_MS, *, lossy_disks: bool = False
) -> Iterator[RunResult]:
    """Results as they come; with `jobs` above 1 in no particular order."""
    if jobs <= 1:
        for seed in seeds:
            yield counted_run(seed, faults_ms, lossy_disks=lossy_disks)
        return
    # A fork would share this process's threads' locks; a fresh interpreter shares nothing.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(
            _one, [(seed, faults_ms, lossy_disks) for seed in seeds], chunksize=1
        )


def _one(task: tuple[int, float, bool]) -> RunResult:
    seed, faults_ms, lossy_disks = task
    return counted_run(seed, faults_ms, lossy_disks=lossy_disks)


def counted_run(seed: int, faults_ms: float = FAULTS_MS, *, lossy_disks: bool = False) -> RunResult:
    transitions: Counter[str] = Counter()
    with counted_transitions(transitions):
        result = run_seed(seed, faults_ms=faults_ms, lossy_disks=lossy_disks)
    result.counts.update(transitions)
    return result
