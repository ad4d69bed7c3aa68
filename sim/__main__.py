"""python -m sim: runs of simulated clusters, one by one or by the thousand."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer
from rich.table import Table

from quorumlog.cli.options import Json
from quorumlog.cli.output import EXIT_REFUSED, entry_progress, out, print_json
from sim.log.coverage import EXPECTED_ABSENT, expected, missing
from sim.log.run import FAULTS_MS, RunResult, run_seed
from sim.many_runs import run_seeds

MAX_JOBS = 1000
COVERAGE_SEEDS = 1000
"""From so many runs on everything that can be met must have been met."""


def sim(
    seed: Annotated[int, typer.Option(help="The first seed.", min=0)] = 1,
    seeds: Annotated[int, typer.Option(help="How many runs, one a seed.", min=1)] = 1,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1, max=MAX_JOBS)] = 1,
    seconds: Annotated[
        float,
        typer.Option(help="Virtual seconds with faults, before they end.", min=0.1),
    ] = FAULTS_MS / 1000,
    members: Annotated[
        int | None, typer.Option(help="Members; drawn from the seed if not given.", min=1, max=7)
    ] = None,
    lossy_disks: Annotated[
        bool,
        typer.Option(
            "--lossy-disks",
            help="Disks also forget what they have synced, and old copies of directories are put back,"
            " on any number of members. Entries may be lost then, which is reported; nothing wrong may"
            " be served.",
        ),
    ] = False,
    member_changes: Annotated[
        bool,
        typer.Option(
            "--member-changes",
            help="Members come and go in every run of two or more, not in one of six.",
        ),
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print the run of the one seed, an event a line.")
    ] = False,
    json: Json = False,
) -> None:
    """Run through crashes, power losses, partitions and bad disks in virtual time; check everything.

    The very members of production run on a simulated network and disk. The same seed and options are
    the same run, event by event. Status 1 if a promise was broken; the failing seeds are printed.

    Example: python -m sim --seeds 1000 --jobs 2
    """

    if trace or members is not None:
        if seeds != 1:
            raise typer.BadParameter("--trace and --members go with one --seed, not with --seeds")
        tell = print if trace else None
        results = [
            run_seed(
                seed,
                faults_ms=seconds * 1000,
                size=members,
                lossy_disks=lossy_disks,
                member_changes=member_changes,
                tell=tell,
            )
        ]
    else:
        results = _run_seeds(seed, seeds, jobs, seconds * 1000, lossy_disks, member_changes)
    failed = sorted((r for r in results if r.failure), key=lambda r: r.seed)
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.counts)
    is_usual = not lossy_disks and not member_changes
    absent = missing(counts) if seeds >= COVERAGE_SEEDS and is_usual else []
    options = " --lossy-disks" * lossy_disks + " --member-changes" * member_changes
    if json:
        for result in results:
            print_json(_row(result))
    else:
        _print(results, failed, counts, absent, seeds, options)
        if lossy_disks:
            _print_losses(results)
    if failed or absent:
        raise typer.Exit(EXIT_REFUSED)


def _run_seeds(
    first_seed: int, seeds: int, jobs: int, faults_ms: float, lossy_disks: bool, member_changes: bool
) -> list[RunResult]:

    results = []
    with entry_progress("runs") as progress:
        for result in run_seeds(
            range(first_seed, first_seed + seeds),
            jobs,
            faults_ms,
            lossy_disks=lossy_disks,
            member_changes=member_changes,
        ):
            results.append(result)
            progress(len(results), seeds)
    return results


def _row(result: RunResult) -> dict[str, object]:
    return {
        "seed": result.seed,
        "ok": not result.failure,
        "virtual_s": round(result.virtual_ms / 1000, 3),
        "trace_hash": f"{result.trace_hash:08x}",
        "events": result.events,
        "appends": result.appends,
        "acknowledged": result.acknowledged,
        "failure": result.failure,
        "lost": result.lost,
        "diverged": result.diverged,
        "not_whole": result.not_whole,
    }


def _print(
    results: list[RunResult],
    failed: list[RunResult],
    counts: Counter[str],
    absent: list[str],
    seeds: int,
    options: str,
) -> None:
    """`options`: that make a run what it is, besides its seed."""

    console = out()
    for result in failed[:5]:
        console.print(f"seed {result.seed} failed:\n{result.failure}", markup=False)
    if seeds > 1:
        table = Table("what was met", "times")
        for name in sorted({*counts, *expected()}):
            times = sum(n for key, n in counts.items() if key == name or key.startswith(f"{name} "))
            reason = f"0: {EXPECTED_ABSENT[name]}" if name in EXPECTED_ABSENT and not times else ""
            table.add_row(name, reason or f"{times:,}")
        console.print(table)
    for name in absent:
        console.print(f"never met: {name}", markup=False)
    virtual_s = sum(result.virtual_ms for result in results) / 1000
    appends = sum(result.appends for result in results)
    acknowledged = sum(result.acknowledged for result in results)
    console.print(
        f"{len(results):,} runs, {virtual_s:,.0f} virtual seconds, {appends:,} appends,"
        f" {acknowledged:,} acknowledged, {len(failed)} failed"
    )
    if len(results) == 1:
        console.print(f"trace hash {results[0].trace_hash:08x}, {results[0].events:,} events")
    if failed:
        seeds_text = " ".join(str(result.seed) for result in failed)
        console.print(
            f"failing seeds: {seeds_text}\nreplay: python -m sim --seed {failed[0].seed} --trace"
            + options
        )


def _print_losses(results: list[RunResult]) -> None:
    """Run by run; runs without losses are only counted."""

    table = Table("seed", "acknowledged entries lost", "found others holding other entries", "not whole")
    marked = [each for each in results if each.lost or each.diverged or each.not_whole]
    for result in sorted(marked, key=lambda result: result.seed):
        table.add_row(
            str(result.seed),
            " ".join(f"{first}..{last}" for first, last in result.lost),
            " ".join(result.diverged),
            result.not_whole.partition(":")[0],
        )
    console = out()
    if marked:
        console.print(table)
    console.print(
        f"{sum(bool(r.lost) for r in results):,} runs lost acknowledged entries,"
        f" {sum(bool(r.diverged) for r in results):,} diverged,"
        f" {sum(bool(r.not_whole) for r in results):,} did not become whole"
    )


if __name__ == "__main__":
    typer.run(sim)
