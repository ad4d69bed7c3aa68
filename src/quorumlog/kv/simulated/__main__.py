"""Many runs of stores in virtual time: python -m quorumlog.kv.simulated [FIRST] [STOP]."""

from __future__ import annotations

import sys
from collections import Counter

from quorumlog.kv.simulated.store_run import run_store


def main(first: int = 1, stop: int = 101) -> int:
    failed = 0
    counts: Counter[str] = Counter()
    for seed in range(first, stop):
        result = run_store(seed)
        counts += result.counts
        if result.failure:
            failed += 1
            print(f"seed {seed} has failed:\n{result.failure}")
    keys, undecided = counts["store: keys checked"], counts["store: keys undecided"]
    print(f"{stop - first} seeds, {failed} have failed; {keys} keys checked, {undecided} undecided")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
