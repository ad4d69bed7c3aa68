"""The command: `python -m nemesis.kv`. Status 0 only if what clients saw can be true."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import typer

from harness.signals import end_as_ctrl_c_does
from nemesis.kv.run import KINDS, run
from quorumlog.kv.endpoint import ENGINES


def main(
    minutes: Annotated[float, typer.Option(help="How long things go wrong.", min=0.05)] = 2.0,
    seed: Annotated[int | None, typer.Option(help="Decides faults and calls. [default: drawn]")] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this; may be repeated. One of {', '.join(KINDS)}.", metavar="NAME"),
    ] = None,
    engine: Annotated[str, typer.Option(help="memory or rocksdb.")] = "memory",
    over: Annotated[str, typer.Option(help="What clients speak: own, or etcd (its gRPC API).")] = "own",
    porcupine: Annotated[
        bool, typer.Option(help="Porcupine judges the histories, too (needs go).")
    ] = False,
    folder: Annotated[Path, typer.Option("--dir", help="Logs, data directories; made anew.")] = Path(
        "nemesis-out/kv"
    ),
) -> None:
    """Kill, stop, cut off and wipe members of a store under clients, and check what these saw.

    Example: python -m nemesis.kv --minutes 0.5 --fault kill --fault wipe --over etcd
    """
    for name in fault or ():
        if name not in KINDS:
            raise typer.BadParameter(f"there is no fault {name!r}; there are {', '.join(KINDS)}")
    if engine not in ENGINES:
        raise typer.BadParameter(f"there is no engine {engine!r}; there are {', '.join(ENGINES)}")
    if over not in ("own", "etcd"):
        raise typer.BadParameter(f"there is no --over {over!r}; there are own, etcd")
    end_as_ctrl_c_does()
    number = random.randrange(1 << 30) if seed is None else seed
    print(f"seed {number}", flush=True)
    report = run(
        folder,
        seed=number,
        minutes=minutes,
        faults=fault or KINDS,
        engine=engine,
        over_etcd=over == "etcd",
        porcupine=porcupine,
        say=lambda line: print(line, flush=True),
    )
    print(f"{report}\nall of it can be true")


if __name__ == "__main__":
    typer.run(main)
