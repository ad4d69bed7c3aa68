"""python -m tests.mutants [NAME ...]: does anything notice if a rule is broken?"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.mutants.run import ALL, LEFT_OUT, Outcome, outcomes

WORDS = 110


def main() -> int:
    arguments = _arguments()
    unknown = [name for name in arguments.names if name not in ALL]
    if unknown:
        print(f"no such mutant: {', '.join(unknown)}; there are: {', '.join(ALL)}", file=sys.stderr)
        return 2
    names = arguments.names or list(ALL)
    found: list[Outcome] = []
    errors = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
        task = progress.add_task("mutants", total=len(names))
        for outcome in outcomes(names, arguments.seeds, arguments.jobs):
            found.append(outcome)
            progress.advance(task)
            if arguments.json:
                print(json.dumps(dataclasses.asdict(outcome)), flush=True)
    survivors = [outcome.name for outcome in found if outcome.survived]
    if not arguments.json:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
        console.print(_table(sorted(found, key=lambda outcome: names.index(outcome.name))))
        console.print(f"{len(found)} mutants, {len(survivors)} survived: {' '.join(survivors) or '-'}")
    return 1 if survivors else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants; all of them if none is given")
    parser.add_argument("--seeds", type=int, default=2000, help="runs for each at most (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each instead of a table")
    return parser.parse_args()


def _table(found: list[Outcome]) -> Table:
    table = Table("rule", "mutant", "caught by", "after", "reached", "what it said")
    for outcome in found:
        after = outcome.scenario.replace("_", " ") or f"{outcome.seeds} seeds"
        table.add_row(
            str(outcome.number),
            outcome.sentence,
            outcome.caught_by or ("nobody: harmless alone" if outcome.harmless else "SURVIVED"),
            after,
            f"{outcome.reached:,}",
            escape((outcome.what or outcome.harmless)[:WORDS]),
            style="red" if outcome.survived else "",
        )
    if len(found) == len(ALL):
        for number, why in LEFT_OUT.items():
            table.add_row(str(number), why.partition(":")[0], "left out", "", "", why.partition(": ")[2])
    return table


if __name__ == "__main__":
    sys.exit(main())
