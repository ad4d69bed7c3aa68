"""Many runs of stores in virtual time: python -m quorumlog.kv.simulated [FIRST] [STOP]."""

from __future__ import annotations

import sys

from quorumlog.kv.simulated.store_run import run_store


def main(first: int = 1, stop: int = 101) -> int:
    failed = 0
    for seed in range(first, stop):
        failure = run_store(seed).failure
        if failure:
            failed += 1
            print(f"seed {seed} has failed:\n{failure}")
    print(f"{stop - first} seeds, {failed} have failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
