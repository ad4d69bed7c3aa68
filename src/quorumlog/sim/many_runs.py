"""Many runs, in several processes."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from quorumlog.sim.run import FAULTS_MS, RunResult, run_seed


def run_seeds(
    seeds: Sequence[int],
    jobs: int = 1,
    faults_ms: float = FAULTS_MS,
    *,
    lossy_disks: bool = False,
    member_changes: bool = False,
) -> Iterator[RunResult]:
    """Results as they come; with `jobs` above 1 in no particular order."""
    run = partial(run_seed, faults_ms=faults_ms, lossy_disks=lossy_disks, member_changes=member_changes)
    if jobs <= 1:
        yield from map(run, seeds)
        return
    # A fork would share this process's threads' locks; a fresh interpreter shares nothing.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=1)


class Ran(Protocol):
    """What became of one run, of whatever is simulated."""

    failure: str
    """Empty, or what was violated, with the place."""
    counts: Counter[str]


def main_of(run: Callable[[int], Ran], counted: str, arguments: Sequence[str]) -> int:
    """Seeds FIRST to STOP - 1, named by `arguments` (1 and 101 without), one after the other. Prints
    what failed and the counts whose names begin with `counted`; the exit status."""
    first, stop = (*map(int, arguments), *(1, 101)[len(arguments) :])
    failed, counts = 0, Counter[str]()
    for seed in range(first, stop):
        ran = run(seed)
        counts += ran.counts
        if ran.failure:
            failed += 1
            print(f"seed {seed} has failed:\n{ran.failure}")
    print(f"{stop - first} seeds, {failed} have failed")
    print(
        ", ".join(
            f"{name} {times:,}" for name, times in sorted(counts.items()) if name.startswith(counted)
        )
    )
    return 1 if failed else 0
