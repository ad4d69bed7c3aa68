"""The command: `python -m nemesis.failover`. Status 0 only if nothing that was acknowledged is lost."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from harness.signals import end_as_ctrl_c_does
from nemesis.failover.run import FAULTS, run


def main(
    coordinator: Annotated[str, typer.Option(help="etcd, kv or zookeeper.")] = "etcd",
    rounds: Annotated[int, typer.Option(help="So many faults, one after the other.", min=1)] = 12,
    fault: Annotated[
        list[str] | None, typer.Option(help=f"Only this one; may be repeated: {', '.join(FAULTS)}.")
    ] = None,
    in_sync_replicas: Annotated[
        int, typer.Option(help="1: an async master, which goes on alone.", min=1, max=3)
    ] = 2,
    lease_ms: Annotated[int, typer.Option(help="Of whoever leads.", min=1_000)] = 2_000,
    with_users: Annotated[
        bool, typer.Option("--users", help="Brokers have users, and nobody gets in without a right.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Decides whom they hit. [default: drawn]")] = None,
) -> None:
    """Kill, pause and cut off brokers with a coordinator, and look for what was acknowledged.

    Example: python -m nemesis.failover --coordinator kv --rounds 6
    """
    unknown = set(fault or ()) - set(FAULTS)
    if unknown:
        raise typer.BadParameter(f"no fault {', '.join(sorted(unknown))}: there are {', '.join(FAULTS)}")
    end_as_ctrl_c_does()
    number = random.randrange(1 << 30) if seed is None else seed
    with tempfile.TemporaryDirectory() as folder:
        report = run(
            Path(folder),
            coordinator,
            rounds=rounds,
            seed=number,
            faults=fault or FAULTS,
            in_sync_replicas=in_sync_replicas,
            lease_ms=lease_ms,
            has_users=with_users,
        )
    print(f"seed {number}: {report}")
    raise typer.Exit(1 if report.lost or report.let_in else 0)


if __name__ == "__main__":
    typer.run(main)
