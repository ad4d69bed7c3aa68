"""quorumlog pipeline stats | replay | compact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumlog.cli.options import (
    DEFAULT_GROUP,
    FirstIndex,
    Json,
    OptionalServers,
    StopIndex,
    StoppedDirectory,
    Timeout,
    named_path,
    split_servers,
)
from quorumlog.cli.output import entry_progress, out, print_json, say, spoken_size
from quorumlog.cli.pipeline.choices import (
    ArchivePlace,
    OptionalGroup,
    Spark,
    engine_of,
    place_of,
)
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.pipelines.engine import LocalEngine
    from quorumlog.pipelines.places import Place
    from quorumlog.pipelines.replaying import Replayed
    from quorumlog.pipelines.statistics import Statistics
    from quorumlog.spark.pipelines.spark_engine import SparkEngine

KEY_FORMS = "json:PATH, arrow:COLUMN or prefix:BYTES"
ToServers = Annotated[
    str | None,
    typer.Option("--to-servers", help="Addresses of the log that gets the entries.", metavar="LIST"),
]
ToGroup = Annotated[
    str, typer.Option("--to-group", help="Name of the log that gets the entries.", metavar="NAME")
]
Id = Annotated[
    str,
    typer.Option(
        "--id", help="A name for this run: the same again goes on with it, and repeats nothing."
    ),
]


def stats(
    context: typer.Context,
    servers: OptionalServers = None,
    path: StoppedDirectory = None,
    archive: ArchivePlace = None,
    first_index: FirstIndex = None,
    stop_index: StopIndex = None,
    key: Annotated[str, typer.Option("--key", help=f"Count by key: {KEY_FORMS}.", metavar="KEY")] = "",
    top: Annotated[int, typer.Option("--top", help="So many keys.", min=1, max=10_000)] = 10,
    spark: Spark = "",
    group: OptionalGroup = None,
    timeout: Timeout = 30.0,
    json: Json = False,
) -> None:
    """Count entries and bytes by minute, by term, by size, and by key where one is given.

    Example: quorumlog pipeline stats --path n0 --key json:customer
    """
    place = place_of(context, servers, path, archive, group, timeout)
    from quorumlog.pipelines.statistics import statistics

    with engine_of(spark, [place]) as engine, entry_progress("counting") as report:
        found = statistics(
            place,
            first_index=first_index,
            stop_index=stop_index,
            key=key,
            top=top,
            engine=engine,
            report=report,
        )
    if json:
        _print(found)
        return
    _show(found)


def _print(found: Any) -> None:
    import msgspec

    print_json(msgspec.to_builtins(found))


def _show(found: Statistics) -> None:
    from rich.table import Table

    from quorumlog.append_times import time_of

    say(
        f"{found.group}: {found.entries} entries and {found.control_entries} of the log's own,"
        f" {found.first_index} to {found.last_index}; {spoken_size(found.body_bytes)} of bodies, the"
        f" largest {spoken_size(found.largest_body_bytes)}"
    )

    def table(*columns: str) -> Table:
        return Table(*columns, box=None, pad_edge=False)

    minutes = table("minute (UTC)", "entries", "bytes", "entries/s")
    for each in found.minutes:
        time = time_of(each.time_ms)
        at = f"{time:%Y-%m-%d %H:%M}" if time is not None else "no time mark"
        minutes.add_row(at, str(each.entries), spoken_size(each.bytes), str(each.entries_per_s))
    terms = table("term", "entries", "bytes")
    for term in found.terms:
        terms.add_row(str(term.term), str(term.entries), spoken_size(term.bytes))
    sizes = table("body of at least", "entries")
    for size in found.sizes:
        sizes.add_row(spoken_size(size.from_bytes), str(size.entries))
    keys = table(f"key (of {found.distinct_keys})", "entries", "bytes")
    for key in found.keys:
        keys.add_row(key.key, str(key.entries), spoken_size(key.bytes))
    for each_table in (minutes, terms, sizes, keys):
        if each_table.row_count:
            out().print()
            out().print(each_table)


def replay(
    context: typer.Context,
    to_servers: ToServers = None,
    run_id: Id = "",
    servers: OptionalServers = None,
    path: StoppedDirectory = None,
    archive: ArchivePlace = None,
    first_index: FirstIndex = None,
    stop_index: StopIndex = None,
    only: Annotated[
        str,
        typer.Option("--only", help="Only bodies with contains:TEXT or prefix:TEXT.", metavar="FILTER"),
    ] = "",
    again: Annotated[
        bool,
        typer.Option("--again", help="Also into the very log that the entries are of: twice, then."),
    ] = False,
    rate: Annotated[
        float,
        typer.Option(
            "--rate", help="At most so many entries a second; 0: no limit.", min=0, metavar="N"
        ),
    ] = 0,
    to_group: ToGroup = DEFAULT_GROUP,
    spark: Spark = "",
    group: OptionalGroup = None,
    timeout: Timeout = 30.0,
    json: Json = False,
) -> None:
    """Append entries of a log or an archive to another log, each exactly once, in order.

    Interrupted and repeated with the same --id, it goes on where it was.

    Example: quorumlog pipeline replay --archive orders --to-servers h:20921 --id a
    """
    source = place_of(context, servers, path, archive, group, timeout)
    target = _target(to_servers, to_group, timeout)
    if spark and rate:
        raise ConfigError("--rate is of one process; leave it out, or leave out --spark")
    with engine_of(spark, [source]) as engine, entry_progress("replaying") as report:
        given = {
            "first_index": first_index,
            "stop_index": stop_index,
            "again": again,
            "report": report,
        }
        done = _replayed(engine, source, target, run_id, only, rate, given)
    if json:
        _print(done)
        return
    typer.echo(
        f"entries {done.first_index} to {done.last_index} are {done.rows} rows in {done.target},"
        f" {done.appended} of them appended now"
    )


def _replayed(
    engine: LocalEngine | SparkEngine,
    source: Place,
    target: Place,
    run_id: str,
    only: str,
    rate: float,
    given: Any,
) -> Replayed:
    from quorumlog.pipelines.engine import LocalEngine

    if isinstance(engine, LocalEngine):
        from quorumlog.pipelines.replaying import filter_of, replay

        transform = filter_of(only) if only else None
        return replay(source, target, run_id, transform=transform, rows_per_s=rate, **given)
    from quorumlog.spark.pipelines.frame_replay import frame_filter_of, replay_frames

    frame_transform = frame_filter_of(only) if only else None
    return replay_frames(engine, source, target, run_id, transform=frame_transform, **given)


def _target(servers: str | None, group: str, timeout: float) -> Any:
    from quorumlog.pipelines.places import Place

    if servers is None:
        raise ConfigError("--to-servers is missing: the addresses of the log that gets the entries")
    listed = ",".join(split_servers(servers))
    return Place(servers=listed, group=group, timeout_ms=int(timeout * 1000))


def compact(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            help="Parquet file to write; one of an earlier compaction is replaced.",
            metavar="FILE",
            show_default=False,
            parser=named_path,
        ),
    ],
    key: Annotated[
        str,
        typer.Option("--key", help=f"{KEY_FORMS}.", metavar="KEY", show_default=False),
    ],
    servers: OptionalServers = None,
    path: StoppedDirectory = None,
    archive: ArchivePlace = None,
    first_index: FirstIndex = None,
    stop_index: StopIndex = None,
    to_servers: ToServers = None,
    to_group: ToGroup = DEFAULT_GROUP,
    run_id: Id = "",
    spark: Spark = "",
    group: OptionalGroup = None,
    timeout: Timeout = 30.0,
    json: Json = False,
) -> None:
    """Keep the newest body of each key: in a Parquet file, and in another log where one is named.

    Example: quorumlog pipeline compact o.parquet --archive orders --key json:id
    """
    source = place_of(context, servers, path, archive, group, timeout)
    from quorumlog.pipelines.compacting import compact as run

    with engine_of(spark, [source]) as engine, entry_progress("compacting") as report:
        done = run(
            source,
            str(file),
            key,
            into=_target(to_servers, to_group, timeout) if to_servers is not None else None,
            compaction_id=run_id,
            first_index=first_index,
            stop_index=stop_index,
            engine=engine,
            report=report,
        )
    if json:
        _print(done)
        return
    also = f"; {done.appended} appended to {to_servers}" if to_servers is not None else ""
    typer.echo(
        f"{done.file} holds {done.keys} keys of {done.entries} entries,"
        f" {done.first_index} to {done.last_index}{also}"
    )
