"""Pipelines beside writers, while members are killed and stopped, drivers killed, and old segments go.

    python -m nemesis.pipelines [--minutes 4] [--objects] [--spark local[2]]

Two drivers archive into one place at once, others audit, compact and replay the archive, each again and
again. Every acknowledged row has to stand once in the archive or the log behind it, nothing else may be
left, and an audit has to find one log. Status 0 only if that is so.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from harness.signals import end_as_ctrl_c_does
from nemesis.pipelines.run import Failed, Options, run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nemesis.pipelines", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of faults")
    parser.add_argument("--writers", type=int, default=2)
    parser.add_argument("--spark", default="", help="master; without it drivers use threads")
    parser.add_argument("--objects", action="store_true", help="archive into an object store")
    parser.add_argument("--dir", type=Path, default=Path("nemesis-out/pipelines"))
    given = parser.parse_args()
    end_as_ctrl_c_does()  # so that no member and no driver is left
    shutil.rmtree(given.dir, ignore_errors=True)
    given.dir.mkdir(parents=True)
    print(f"seed {given.seed}", flush=True)
    options = Options(given.dir, given.minutes, given.seed, given.writers, given.spark, given.objects)
    try:
        run(options, lambda line: print(line, flush=True))
    except Failed as error:
        print(f"FAILED: {error}\nsee {given.dir}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
