"""Ask the script of real etcds and of ours, and keep what they answer:

python -m harness.etcd [--side 3.6] [--side ours]
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from harness.etcd.answers import ALL, OURS, SIDES, Recorded, Step, replay
from harness.etcd.builds import etcd
from harness.etcd.servers import Side, ours, running


@contextmanager
def started(side: str, folder: Path) -> Iterator[Side]:
    """One of SIDES. Raises Unavailable."""
    context = ours(folder) if side == OURS else running(etcd(side).server, folder)
    with context as found:
        yield found


def main(side: Annotated[list[str] | None, typer.Option(help="[default: all]")] = None) -> None:
    """Keep what real etcds and our own members answer to the script, in answers.json."""
    found: dict[str, dict[str, list[Step]]] = {}
    for each in side or SIDES:
        with tempfile.TemporaryDirectory() as folder, started(each, Path(folder) / each) as running_side:
            found[each] = {name: replay(running_side, name) for name in ALL}
        print(f"{each}: {sum(map(len, found[each].values()))} answers", flush=True)
    recorded = Recorded()
    recorded.record(found)
    for subject, steps in recorded.differences().items():
        print(f"{subject}: {len(steps)} answers differ")


if __name__ == "__main__":
    typer.run(main)
