"""The command: `python -m demo`. Status 0 only if nothing is lost and every comparison agrees."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from demo import job
from demo.producing import ProducerEnded
from demo.spark_comparison import SOURCE_NAME
from demo.spark_job import ARCHIVE_NAME, CHECKPOINT_NAME, SPARK_LOG_NAME
from harness.member_processes import MemberFailed
from harness.signals import end_as_ctrl_c_does
from quorumlog import LedgerError

EXIT_NOT_AS_PROMISED = 1


def main(
    rows: Annotated[
        int | None, typer.Option(help="Only the first so many flights. [default: all 336,776]", min=100)
    ] = None,
    folder: Annotated[
        Path, typer.Option("--dir", help="Data directories, logs and the chart; made anew.")
    ] = Path("demo-out"),
    batch: Annotated[int, typer.Option(help="Records of one append.", min=1)] = 128,
    in_flight: Annotated[int, typer.Option(help="Appends on their way at a time.", min=1)] = 4,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data directories afterwards.")] = False,
    spark: Annotated[bool, typer.Option(help="Let Spark read and compare.")] = True,
) -> None:
    """Write real flights into three members, lose the producer once and the leader twice, and show that
    each row is there, once."""
    end_as_ctrl_c_does()
    console = Console()
    began_s = time.perf_counter()
    options = job.Options(folder, rows, batch, in_flight, spark)
    with Progress(
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        try:
            report = job.run(options, progress)
        except Exception as error:
            progress.stop()
            if not _is_expected(error):
                raise
            console.print(f"[bold red]The demo ended early:[/] {_describe(error)}", highlight=False)
            console.print(
                f"What the members said is in {folder / job.MEMBERS_NAME}/*.log", highlight=False
            )
            raise typer.Exit(EXIT_NOT_AS_PROMISED) from None
    console.print()
    report.print(console)
    console.print(f"Chart: {folder / job.CHART_NAME}   whole run: {time.perf_counter() - began_s:.1f} s")
    for text in report.story:
        console.print(text, highlight=False)
    if not report.succeeded:
        console.print("[bold red]Not as promised: see the rows in red. The directories are kept.[/]")
        raise typer.Exit(EXIT_NOT_AS_PROMISED)
    if not keep:
        for name in (job.MEMBERS_NAME, ARCHIVE_NAME, CHECKPOINT_NAME):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in (SOURCE_NAME, SPARK_LOG_NAME, job.RECORDS_NAME):
            (folder / name).unlink(missing_ok=True)


def _is_expected(error: BaseException) -> bool:
    """The members or the machine, not this program; tasks that fail together come as a group."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_expected, error.exceptions))
    return isinstance(error, (LedgerError, MemberFailed, ProducerEnded, TimeoutError))


def _describe(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(_describe, error.exceptions)))
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    typer.run(main)
