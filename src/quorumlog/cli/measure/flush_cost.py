"""quorumlog bench flush: what a sync costs on a disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quorumlog.cli.options import Json
from quorumlog.cli.output import err, out, print_json
from quorumlog.errors import ConfigError


def flush(
    directory: Annotated[
        Path,
        typer.Option("--dir", help="Measure the disk that this directory lies on.", metavar="DIR"),
    ] = Path(),
    rounds: Annotated[int, typer.Option(help="Syncs of each way and size.", min=1, metavar="N")] = 200,
    json: Json = False,
) -> None:
    """What a sync costs on this disk, for each way to flush; needs no running group.

    Example: quorumlog bench flush --dir /var/lib/quorumlog --rounds 200
    """
    from quorumlog.bench.flush_cost import measure_flush_costs
    from quorumlog.cli.measure.bench_tables import flush_table_of

    if not directory.is_dir():
        raise ConfigError(f"--dir {directory} is not a directory; name one on the disk to measure")
    with err().status("preparing files") as status:
        costs = measure_flush_costs(directory, rounds, status.update)
    if json:
        for cost in costs:
            print_json(cost.row())
    else:
        out().print(flush_table_of(costs))
