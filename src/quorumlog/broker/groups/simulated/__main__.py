"""Many runs of consumer groups: python -m quorumlog.broker.groups.simulated [FIRST] [STOP]."""

from __future__ import annotations

import sys
from collections import Counter

from quorumlog.broker.groups.simulated.group_run import run_groups


def main(first: int = 1, stop: int = 101) -> int:
    failed, counts = 0, Counter[str]()
    for seed in range(first, stop):
        result = run_groups(seed)
        counts += Counter({k: n for k, n in result.counts.items() if k.startswith("groups: ")})
        if result.failure:
            failed += 1
            print(f"seed {seed} has failed:\n{result.failure}")
    print(f"{stop - first} seeds, {failed} have failed; {dict(sorted(counts.items()))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
