"""Many schedules: python -m tests.broker.world [FIRST STOP [KIND ...]], as `schedule.KINDS`."""

from __future__ import annotations

import sys
from collections import Counter

from tests.broker.world.schedule import KINDS, run

TELL_EVERY = 500


def main(first: int = 0, stop: int = 400, kinds: list[str] | None = None) -> int:
    counts = Counter[str]()
    for seed in range(first, stop):
        ran = run(seed, kinds or tuple(KINDS))
        counts += ran.counts
        if ran.failure:
            counts["failed"] += 1
            print(f"seed {seed} has failed:\n{ran.failure}", flush=True)
        if (seed + 1 - first) % TELL_EVERY == 0 or seed + 1 == stop:
            words = (f"{what} {times:,}" for what, times in sorted(counts.items()))
            print(f"{seed + 1 - first} schedules: {', '.join(words)}", flush=True)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3]), kinds=sys.argv[3:]))
