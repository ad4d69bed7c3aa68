"""Two versions in turns: `python -m benchmarks.turns ../other`, a checkout where `make setup` was run;
or TLS beside plain: `python -m benchmarks.turns --tls`; or members that are scraped once a second beside
members that are not: `python -m benchmarks.turns --scraped`.

Three members of each run side by side and get the same load by turns, so that what the machine does
meanwhile meets both. Printed is the processor time of all members for a record, and the medians of the
ratios of neighbouring turns, which are steadier than either.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

HERE = Path(__file__).resolve()
LOADS = "one-writer,64-writers,256-writers,batches"


def main(
    other: Annotated[Path, typer.Argument(help="Another checkout, with its own .venv.")] = HERE.parents[
        1
    ],
    loads: Annotated[str, typer.Option(help="Of `quorumlog bench`, separated by commas.")] = LOADS,
    turns: Annotated[int, typer.Option(help="Of each version and load.")] = 14,
    seconds: Annotated[float, typer.Option(help="Of one turn.")] = 1.0,
    tls: Annotated[bool, typer.Option("--tls", help="This checkout speaks TLS.")] = False,
    scraped: Annotated[
        bool,
        typer.Option("--scraped", help="/metrics of this checkout's members is asked every second."),
    ] = False,
) -> None:
    """Compare the processor time per record of this checkout with another one's, and how many a second.

    Example: python -m benchmarks.turns ../before
    """
    options = [*(["--tls"] if tls else []), *(["--scraped"] if scraped else [])]
    print("| load | other, us a record | this one, us | ratio | records a second, ratio |")
    print("| --- | --- | --- | --- | --- |")
    for load in loads.split(","):
        before, now = _in_turns((other.resolve(), HERE.parents[1]), load, turns, seconds, options)
        dearer, faster = (
            statistics.median(one[of] / two[of] for one, two in zip(now, before, strict=True))
            for of in (0, 1)
        )
        medians = [f"{statistics.median(one[0] for one in each):.4g}" for each in (before, now)]
        print(f"| {load} | {medians[0]} | {medians[1]} | {dearer:.3f} | {faster:.3f} |", flush=True)


def _in_turns(
    roots: tuple[Path, Path], load: str, turns: int, seconds: float, options: list[str]
) -> list[list[tuple[float, float]]]:
    """Microseconds for a record and records a second, a row for each version."""
    found: list[list[tuple[float, float]]] = [[], []]
    with tempfile.TemporaryDirectory(prefix="bench-turns-") as folder, ExitStack() as stack:
        groups = [
            stack.enter_context(_group(root, Path(folder) / str(number), options if number else []))
            for number, root in enumerate(roots)
        ]
        for group in groups:
            assert group.stdout is not None
            assert group.stdout.readline() == "ready\n", "a version does not start"
        for turn in range(turns):
            for number in (0, 1) if turn % 2 == 0 else (1, 0):
                one = groups[number]
                assert one.stdin is not None and one.stdout is not None
                one.stdin.write(f"{load} {seconds}\n")
                one.stdin.flush()
                cpu_us, per_second = map(float, one.stdout.readline().split())
                found[number].append((cpu_us, per_second))
        for group in groups:
            assert group.stdin is not None
            group.stdin.close()
    return found


def _group(root: Path, folder: Path, options: list[str]) -> subprocess.Popen[str]:
    """A process with that version's members; it ends with its standard input."""
    return subprocess.Popen(
        [root / ".venv/bin/python", HERE, "--members", folder, *options],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _serve(folder: Path, options: list[str]) -> None:
    """Within the other version: only what both have."""
    if "--tls" in options:
        from harness.encryption import encrypt, encrypted_clients

        encrypt(folder.with_suffix(".tls"))
        with encrypted_clients():
            _serve(folder, [each for each in options if each != "--tls"])
        return
    import uvloop

    from benchmarks.links import servers_leader_first
    from harness.member_processes import MemberProcesses
    from quorumlog.bench.workloads import LOADS_BY_NAME, measure
    from quorumlog.server.free_ports import free_ports

    pages = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(free_ports(3))}
    more: dict[str, Any] = {}
    if "--scraped" in options:
        more["command_of"] = lambda each: ("serve", "--admin", pages[each])
    with MemberProcesses(folder, **more) as members:
        if more:
            threading.Thread(target=_scrape, args=(list(pages.values()),), daemon=True).start()
        uvloop.run(servers_leader_first(members))
        print("ready", flush=True)
        for line in sys.stdin:
            load, seconds = line.split()
            found = uvloop.run(measure(LOADS_BY_NAME[load], members.running_group, float(seconds)))
            print(found.cpu_seconds_per_million, found.records_per_second, flush=True)


def _scrape(addresses: list[str]) -> None:
    while True:
        for address in addresses:
            with suppress(OSError):  # it starts, or has ended
                urllib.request.urlopen(f"http://{address}/metrics", timeout=5).read()
        time.sleep(1.0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--members"]:
        _serve(Path(sys.argv[2]), sys.argv[3:])
    else:
        typer.run(main)
