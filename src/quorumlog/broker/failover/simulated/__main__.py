"""Many runs: python -m quorumlog.broker.failover.simulated [FIRST] [STOP]."""

from __future__ import annotations

import sys
from collections import Counter

from quorumlog.broker.failover.simulated.failover_run import run_failover


def main(first: int = 1, stop: int = 101) -> int:
    failed, counts = 0, Counter[str]()
    for seed in range(first, stop):
        result = run_failover(seed)
        counts += result.counts
        if result.failure:
            failed += 1
            print(f"seed {seed} has failed:\n{result.failure}")
    print(f"{stop - first} seeds, {failed} have failed")
    print(", ".join(f"{what} {times}" for what, times in sorted(counts.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
