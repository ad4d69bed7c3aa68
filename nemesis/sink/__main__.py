"""python -m nemesis.sink: kills and damaged checkpoints; each row is in the copy once, in order."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

import quorumlog.spark
from harness.signals import end_as_ctrl_c_does
from nemesis.sink.cases import CASES, Case
from nemesis.sink.copying import SETTINGS
from nemesis.sink.killing import KillsFailed, run_kills


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m nemesis.sink", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="0: none")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--dir", type=Path, default=Path("nemesis-out/sink"))
    parser.add_argument("--case", action="append", choices=[*CASES, "none"], help="only these")
    given = parser.parse_args()
    end_as_ctrl_c_does()  # so that no member and no driver is left
    shutil.rmtree(given.dir, ignore_errors=True)
    print(f"seed {given.seed}", flush=True)
    try:
        if given.kills:
            print(run_kills(given.dir / "kills", kills=given.kills, seed=given.seed), flush=True)
        names = [name for name in given.case or CASES if name != "none"]
        if names:
            run_cases(given.dir, names)
    except KillsFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 0


def run_cases(folder: Path, names: list[str]) -> None:
    spark = quorumlog.spark.session("nemesis", "local[2]", **SETTINGS)
    for name in names:
        with Case(spark, folder / name) as case:
            CASES[name](case)
            case.check()
            print(f"{name}: {case.copies.rows} rows are in the copy, each once, in order", flush=True)
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
