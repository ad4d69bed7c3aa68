"""quorumlog pipeline archive | audit, and the app that all of them are commands of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quorumlog.cli.options import (
    FirstIndex,
    Json,
    OptionalServers,
    StopIndex,
    StoppedDirectory,
    Timeout,
    check_directory,
    named_path,
    split_servers,
)
from quorumlog.cli.output import EXIT_REFUSED, CommandGroup, entry_progress, out, print_json, spoken_size
from quorumlog.cli.pipeline.choices import (
    ArchivePlace,
    OptionalGroup,
    Spark,
    engine_of,
    named_archive,
    need_arrow,
    place_of,
)
from quorumlog.cli.pipeline.over_entries import compact, replay, stats
from quorumlog.errors import ConfigError

pipeline_app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True)


@pipeline_app.callback()
def pipeline() -> None:
    """Archive a log to Parquet, audit its replicas, count, replay and compact what it holds.

    Example: quorumlog pipeline audit --servers 127.0.0.1:20911
    """


@pipeline_app.command()
def archive(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            help="Directory of the archive (one of this log is continued), s3://BUCKET/PREFIX, delta:DIR"
            " for one that is a Delta table too, or iceberg:NAMESPACE.TABLE.",
            metavar="TARGET",
            show_default=False,
            parser=named_archive,
        ),
    ],
    servers: OptionalServers = None,
    path: StoppedDirectory = None,
    first_index: FirstIndex = None,
    stop_index: StopIndex = None,
    hold: Annotated[
        str,
        typer.Option(
            "--hold",
            help="The cluster keeps a reader of this NAME, and deletes nothing that is not archived.",
            metavar="NAME",
        ),
    ] = "",
    part_mib: Annotated[
        int, typer.Option("--part-mib", help="MiB of the log in one file.", min=1, max=1024)
    ] = 128,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read back everything that was archived before.")
    ] = False,
    spark: Spark = "",
    group: OptionalGroup = None,
    timeout: Timeout = 30.0,
    json: Json = False,
) -> None:
    """Write committed entries to Parquet (zstd), checked, each once; repeated, it adds what is new.

    It may be interrupted anywhere. The files' rows are data; whatever else the log holds is in their
    footers, so that the archive can be audited, replayed and read together with the log. A Delta or
    Iceberg table gets the same files, each once.

    Example: quorumlog pipeline archive orders --servers 127.0.0.1:20911
    """
    place = place_of(context, servers, path, None, group, timeout)
    from quorumlog.pipelines.archiving import archive as run

    with (
        engine_of(spark, [place]) as engine,
        entry_progress(f"archiving to {target}") as report,
    ):
        done = run(
            place,
            target,
            first_index=first_index,
            stop_index=stop_index,
            hold=hold,
            part_bytes=part_mib << 20,
            verify=verify,
            engine=engine,
            report=report,
        )
    if json:
        import msgspec

        print_json(msgspec.structs.asdict(done))
        return
    holds = f"entries {done.first_index} to {done.last_index}" if done.parts else "nothing yet"
    same = f"; the same at {', '.join(done.members_compared)}" if done.members_compared else ""
    typer.echo(
        f"{done.archive} holds {holds} in {done.parts} files, {done.new_entries} of them new"
        f" ({spoken_size(done.new_bytes)}), chain {done.last_chain:08x}{same}"
    )


@pipeline_app.command()
def audit(
    servers: OptionalServers = None,
    paths: Annotated[
        list[Path] | None,
        typer.Option(
            "--path",
            help="Data directory of a stopped member; may be repeated.",
            metavar="DIR",
            show_default=False,
            parser=named_path,
        ),
    ] = None,
    archive_place: ArchivePlace = None,
    group: OptionalGroup = None,
    spark: Spark = "",
    timeout: Timeout = 30.0,
    json: Json = False,
) -> None:
    """Recompute every digest of every replica and of an archive, and compare them.

    The first entry where two of them differ is named. Exit status 1: something differs or is damaged.

    Example: quorumlog pipeline audit --servers 127.0.0.1:20911
    """
    need_arrow()
    from quorumlog.pipelines.auditing import audit as run
    from quorumlog.pipelines.places import Place

    timeout_ms, name = int(timeout * 1000), group or ""
    places = [
        Place(path=check_directory(path), group=name, timeout_ms=timeout_ms) for path in paths or ()
    ]
    if servers is not None:
        listed = ",".join(split_servers(servers))
        places.insert(0, Place(servers=listed, group=name, timeout_ms=timeout_ms))
    if archive_place is not None:
        places.append(Place(archive=archive_place, group=name))
    if not places:
        raise ConfigError("there is nothing to audit: give --servers, --path or --archive")
    with engine_of(spark, places) as engine, entry_progress("auditing") as report:
        found = run(places, engine=engine, report=report)
    if json:
        import msgspec

        print_json(msgspec.to_builtins(found))
    else:
        _show(found)
    if found.differences:
        raise typer.Exit(EXIT_REFUSED)


def _show(found: object) -> None:
    from rich.table import Table

    from quorumlog.cli.output import say
    from quorumlog.pipelines.auditing import Audit

    assert isinstance(found, Audit)
    table = Table("place", "first", "last", "checked", "", box=None, pad_edge=False)
    for place in found.places:
        numbers = (str(n) for n in (place.first_index, place.stop_index - 1, place.entries))
        table.add_row(place.place, *numbers, "damaged" if place.problem else "sound")
    out().print(table)
    for each in found.differences:
        where = f"{each.place} and {each.other}" if each.other else each.place
        entry = f", entry {each.index}" if each.index >= 0 else ""
        say(f"{where}{entry}: {each.what}", "red")
    if not found.differences:
        say("one log: every digest is right, and all places agree")


pipeline_app.command()(stats)
pipeline_app.command()(replay)
pipeline_app.command()(compact)
