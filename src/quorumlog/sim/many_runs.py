"""Many runs, in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from functools import partial

from quorumlog.sim.run import FAULTS_MS, RunResult, run_seed


def run_seeds(
    seeds: Sequence[int], jobs: int = 1, faults_ms: float = FAULTS_MS, *, lossy_disks: bool = False
) -> Iterator[RunResult]:
    """Results as they come; with `jobs` above 1 in no particular order."""
    run = partial(run_seed, faults_ms=faults_ms, lossy_disks=lossy_disks)
    if jobs <= 1:
        yield from map(run, seeds)
        return
    # A fork would share this process's threads' locks; a fresh interpreter shares nothing.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=1)
