"""Our checker beside Porcupine, on the logs of etcd that come with it, and on runs of our own store, as
they were and with one answer changed:

    python -m harness.porcupine.compare [--seeds 20]

It needs go and a Go module proxy.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import msgspec

from harness.porcupine.registers import Operation, judged, of_jepsen, of_store
from sim.kv.promises import settled
from sim.kv.store_run import run_store

HERE = Path(__file__).parent
MOST_STEPS = 3_000_000
WORDS = {True: "ok", False: "illegal", None: "unknown"}


def built(folder: Path) -> Path:
    binary = folder / "porcupine"
    subprocess.run(["go", "build", "-o", str(binary), "."], cwd=HERE, check=True)
    return binary


def verdicts(histories: Sequence[Sequence[Operation]]) -> list[str]:
    """Of Porcupine, of each: ok, illegal or unknown. It needs go."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "histories"
        file.write_bytes(b"".join(msgspec.json.encode(history) + b"\n" for history in histories))
        run = subprocess.run(
            [str(built(Path(folder))), str(file)],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "GOMAXPROCS": "1"},
        )
    return run.stdout.split()


def logs() -> list[Path]:
    listed = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", "github.com/anishathalye/porcupine"],
        cwd=HERE,
        check=True,
        capture_output=True,
        text=True,
    )
    return sorted((Path(listed.stdout.strip()) / "test_data" / "jepsen").glob("etcd_*.log"))


def changed(history: list[Operation], random: Random) -> list[Operation] | None:
    """With the answer of one read taken from another; None: there are no two."""
    reads = [place for place, each in enumerate(history) if each.kind == "read" and not each.unknown]
    if len({history[place].value for place in reads}) < 2:
        return None
    to = random.choice(reads)
    others = [each for each in reads if history[each].value != history[to].value]
    value = history[random.choice(others)].value
    return [
        msgspec.structs.replace(each, value=value) if place == to else each
        for place, each in enumerate(history)
    ]


def histories(seeds: int) -> Iterator[tuple[str, list[Operation]]]:
    """(whose, history)."""
    for path in logs():
        yield "etcd, by Jepsen", of_jepsen(path)
    for seed in range(1, seeds + 1):
        for key, history in sorted(run_store(seed).of_key.items()):
            own = of_store(settled(history))
            yield "ours", own
            other = changed(own, Random(f"{seed}:{key!r}"))
            if other is not None:
                yield "ours, an answer changed", other


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="runs of our own store")
    options = parser.parse_args(arguments)
    rows = list(histories(options.seeds))
    counts: Counter[tuple[str, str, str]] = Counter()
    theirs_of_all = verdicts([history for _, history in rows])
    for (whose, history), theirs in zip(rows, theirs_of_all, strict=True):
        counts[whose, WORDS[judged(history, MOST_STEPS)], theirs] += 1
    disagree = 0
    for (whose, ours, theirs), count in sorted(counts.items()):
        differ = {ours, theirs} == {"ok", "illegal"}
        disagree += count * differ
        print(f"{whose:24} ours {ours:8} Porcupine {theirs:8} {count:5}{'   DIFFERENT' * differ}")
    print(f"{len(rows)} histories, {disagree} of which the two judge differently")
    return 1 if disagree else 0


if __name__ == "__main__":
    sys.exit(main())
