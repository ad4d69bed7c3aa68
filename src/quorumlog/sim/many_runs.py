"""Campaign: many lives, in several processes, with what they met added up."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence

from quorumlog.sim.coverage import counted_transitions
from quorumlog.sim.run import FAULTS_MS, RunResult, live


def lives(
    seeds: Sequence[int], jobs: int = 1, faults_ms: float = FAULTS_MS, *, unfair: bool = False
) -> Iterator[RunResult]:
    """Results as they come; with `jobs` above 1 in no particular order."""
    if jobs <= 1:
        for seed in seeds:
            yield counted_run(seed, faults_ms, unfair=unfair)
        return
    # A fork would share this process's threads' locks; a fresh interpreter shares nothing.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(_one, [(seed, faults_ms, unfair) for seed in seeds], chunksize=1)


def _one(task: tuple[int, float, bool]) -> RunResult:
    seed, faults_ms, unfair = task
    return counted_run(seed, faults_ms, unfair=unfair)


def counted_run(seed: int, faults_ms: float = FAULTS_MS, *, unfair: bool = False) -> RunResult:
    transitions: Counter[str] = Counter()
    with counted_transitions(transitions):
        result = live(seed, faults_ms=faults_ms, unfair=unfair)
    result.counts.update(transitions)
    return result
