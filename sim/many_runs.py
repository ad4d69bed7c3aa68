"""Many runs, in several processes. Of a world beside the log:

python -m sim.many_runs kv [FIRST STOP]
"""

from __future__ import annotations

import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from sim.broker.broker_run import run_brokers
from sim.etcd.etcd_run import run_etcd
from sim.groups.group_run import run_groups
from sim.kafka.kafka_run import run_kafka
from sim.kv.store_run import run_store
from sim.log.run import FAULTS_MS, RunResult, run_seed
from sim.ran import Ran
from sim.replicas.schedule import run as run_replicas


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


def main(world: str, first: int = 1, stop: int = 101) -> int:
    """Seeds `first` to `stop` - 1 of a world that is no log, one after the other. Prints what failed and
    what the world counted; the exit status."""
    run = _WORLDS[world]
    failed, counts = 0, Counter[str]()
    for seed in range(first, stop):
        ran = run(seed)
        counts += ran.counts
        if ran.failure:
            failed += 1
            print(f"seed {seed} has failed:\n{ran.failure}")
    print(f"{stop - first} seeds, {failed} have failed")
    mark = {"kv": "store"}.get(world, world)
    print(
        ", ".join(f"{name} {n:,}" for name, n in sorted(counts.items()) if name.startswith(f"{mark}: "))
    )
    return 1 if failed else 0


_WORLDS: dict[str, Callable[[int], Ran]] = {
    "kv": run_store,
    "broker": run_brokers,
    "groups": run_groups,
    "kafka": run_kafka,
    "etcd": run_etcd,
    "replicas": run_replicas,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
