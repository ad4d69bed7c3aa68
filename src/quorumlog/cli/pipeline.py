"""quorumlog pipeline: work over a whole log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumlog.cli.options import (
    DEFAULT_GROUP,
    WITHOUT_ANSWER,
    App,
    ArchivePlace,
    EntriesPlace,
    FirstIndex,
    LogPlace,
    OptionalGroup,
    OptionalServers,
    StopIndex,
    TlsOfClients,
    argument,
    check_directory,
    named_archive,
    option,
    split_servers,
    timeout_ms_of,
)
from quorumlog.cli.output import EXIT_REFUSED, entry_progress, print_table, say, spoken_size, tell
from quorumlog.errors import ConfigError, the_extra

if TYPE_CHECKING:
    from quorumlog.pipelines.auditing import Audit
    from quorumlog.pipelines.engine import LocalEngine
    from quorumlog.pipelines.places import Place
    from quorumlog.pipelines.statistics import Statistics
    from quorumlog.spark.pipelines import SparkEngine


Spark = Annotated[
    str,
    option(
        "Run on Spark: the URL of its master, local[*], sc://HOST of a Connect server, or auto"
        " (Spark above 4 GiB). (default: threads of this process)",
        "MASTER",
    ),
]
AUTO_BYTES = 4 << 30
MASTER = re.compile(r"auto|yarn|local(-cluster)?(\[[\w*, ]+\])?|(spark|k8s|sc)://\S+", re.ASCII)


@contextmanager
def engine_of(spark: str, places: Sequence[Place]) -> Iterator[LocalEngine | SparkEngine]:
    """The engine that `--spark` names. Raises ConfigError where it names no master, and where
    PySpark is not installed. Spark itself starts with the first work."""
    from quorumlog.pipelines.engine import LocalEngine

    if spark and not MASTER.fullmatch(spark):
        raise ConfigError(
            f"--spark {spark!r} is not a Spark master; name local[N], spark://HOST:PORT, yarn,"
            " k8s://HOST:PORT, sc://HOST of a Connect server, or auto"
        )
    if not spark or (spark == "auto" and sum(map(_bytes_of, places)) < AUTO_BYTES):
        yield LocalEngine()
        return
    try:
        from quorumlog.spark.pipelines import SparkEngine
        from quorumlog.spark.session import running
    except ModuleNotFoundError:
        raise ConfigError(f"option --spark needs PySpark, {the_extra('spark')}") from None
    master = os.environ.get("SPARK_MASTER", "local[*]") if spark == "auto" else spark
    with ExitStack() as until_end:
        yield SparkEngine(lambda: until_end.enter_context(running("quorumlog pipeline", master)))


def _bytes_of(place: Place) -> int:
    """0 of a place that cannot be opened: the pipeline says why."""
    from quorumlog.errors import LedgerError, ProtocolViolation, StoreFailure
    from quorumlog.pipelines.places import bytes_of

    try:
        return bytes_of(place)
    except (LedgerError, ProtocolViolation, StoreFailure):
        return 0


def place_of(at: LogPlace) -> Place:
    """Raises ConfigError."""
    need_arrow()
    from quorumlog.pipelines.places import Place

    return Place(
        servers=at.servers or "",
        path=check_directory(at.path) if at.path else "",
        archive=at.archive or "",
        group=at.group or "",
        timeout_ms=timeout_ms_of(at.timeout),
    )


def need_arrow() -> None:
    """Raises ConfigError where pyarrow is not installed."""
    try:
        import quorumlog.arrow  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError(f"pipelines need pyarrow, {the_extra('arrow')}") from None


KEY_FORMS = "json:PATH, arrow:COLUMN or prefix:BYTES"
ToServers = Annotated[str | None, option("Addresses of the target log.", "LIST")]
ToGroup = Annotated[str, option("Group name of the target log.", "NAME")]
Id = Annotated[
    str, option("Name of this replay; a repetition with the same name continues it.", name="--id")
]


def stats(
    at: EntriesPlace,
    first_index: FirstIndex = None,
    stop_index: StopIndex = None,
    key: Annotated[str, option(f"Count by key: {KEY_FORMS}.", "KEY")] = "",
    top: Annotated[int, option("Number of keys to show.", min=1, max=10_000)] = 10,
    spark: Spark = "",
) -> None:
    """Count entries and bytes by minute, term and size, and by key with --key.

    Example: quorumlog pipeline stats --path n0 --key json:customer
    """
    place = place_of(at)
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
    tell(found, lambda: _show(found))


def _show(found: Statistics) -> None:
    from quorumlog.append_times import time_of

    say(
        f"{found.group}: {found.entries} entries and {found.control_entries} of the log's own,"
        f" {found.first_index} to {found.last_index}; {spoken_size(found.body_bytes)} of bodies, the"
        f" largest {spoken_size(found.largest_body_bytes)}"
    )

    minutes = [
        (
            "no time mark" if (time := time_of(each.time_ms)) is None else f"{time:%Y-%m-%d %H:%M}",
            each.entries,
            spoken_size(each.bytes),
            each.entries_per_s,
        )
        for each in found.minutes
    ]
    terms = [(each.term, each.entries, spoken_size(each.bytes)) for each in found.terms]
    sizes = [(spoken_size(each.from_bytes), each.entries) for each in found.sizes]
    keys = [(each.key, each.entries, spoken_size(each.bytes)) for each in found.keys]
    tables: list[tuple[str, Sequence[Sequence[object]]]] = [
        ("minute (UTC), entries, bytes, entries/s", minutes),
        ("term, entries, bytes", terms),
        ("body of at least, entries", sizes),
        (f"key (of {found.distinct_keys}), entries, bytes", keys),
    ]
    for headings, rows in tables:
        if rows:
            say("")
            print_table(headings, rows)


def replay(
    at: EntriesPlace,
    to_servers: ToServers = None,
    run_id: Id = "",
    first_index: FirstIndex = None,
    stop_index: StopIndex = None,
    only: Annotated[str, option("Only bodies with contains:TEXT or prefix:TEXT.", "FILTER")] = "",
    again: Annotated[
        bool, option("Allow the source log as the target, which then has the entries twice.")
    ] = False,
    rate: Annotated[float, option("Maximum entries per second; 0: no limit.", "N", min=0)] = 0,
    to_group: ToGroup = DEFAULT_GROUP,
    spark: Spark = "",
) -> None:
    """Append entries of a log or an archive to another log, each exactly once, in order.

    Repeated with the same --id, it continues where it was interrupted.

    Example: quorumlog pipeline replay --archive orders --to-servers h:20921 --id a
    """
    source = place_of(at)
    target = _target(to_servers, to_group, at.timeout)
    if spark and rate:
        raise ConfigError("--rate limits one process; leave it out, or leave out --spark")
    from quorumlog.pipelines.engine import LocalEngine

    with engine_of(spark, [source]) as engine, entry_progress("replaying") as report:
        options: Any = {
            "first_index": first_index,
            "stop_index": stop_index,
            "again": again,
            "report": report,
        }
        if isinstance(engine, LocalEngine):
            from quorumlog.pipelines.replaying import filter_of
            from quorumlog.pipelines.replaying import replay as run

            transform = filter_of(only) if only else None
            done = run(source, target, run_id, transform=transform, rows_per_s=rate, **options)
        else:
            from quorumlog.spark.pipelines import frame_filter_of, replay_frames

            of_frames = frame_filter_of(only) if only else None
            done = replay_frames(engine, source, target, run_id, transform=of_frames, **options)
    tell(
        done,
        f"entries {done.first_index} to {done.last_index} are {done.rows} rows in {done.target},"
        f" {done.appended} of them appended now",
    )


def _target(servers: str | None, group: str, timeout: float) -> Any:
    from quorumlog.pipelines.places import Place

    if servers is None:
        raise ConfigError("--to-servers is missing: the addresses of the log that gets the entries")
    listed = ",".join(split_servers(servers))
    return Place(servers=listed, group=group, timeout_ms=timeout_ms_of(timeout))


def compact(
    at: EntriesPlace,
    file: Annotated[
        Path, argument("Parquet file to write; one of an earlier compaction is replaced.", "FILE")
    ],
    key: Annotated[str, option(f"{KEY_FORMS}.", "KEY")],
    first_index: FirstIndex = None,
    stop_index: StopIndex = None,
    to_servers: ToServers = None,
    to_group: ToGroup = DEFAULT_GROUP,
    run_id: Id = "",
    spark: Spark = "",
) -> None:
    """Write the newest body of each key to a Parquet file and, with --to-servers, to another log.

    Example: quorumlog pipeline compact o.parquet --archive orders --key json:id
    """
    source = place_of(at)
    from quorumlog.pipelines.compacting import compact as run

    with engine_of(spark, [source]) as engine, entry_progress("compacting") as report:
        done = run(
            source,
            str(file),
            key,
            into=_target(to_servers, to_group, at.timeout) if to_servers is not None else None,
            compaction_id=run_id,
            first_index=first_index,
            stop_index=stop_index,
            engine=engine,
            report=report,
        )
    also = f"; {done.appended} appended to {to_servers}" if to_servers is not None else ""
    tell(
        done,
        f"{done.file} holds {done.keys} keys of {done.entries} entries,"
        f" {done.first_index} to {done.last_index}{also}",
    )


pipeline_app = App(
    "Work on whole logs: archive to Parquet, audit replicas, statistics, replay, compaction.",
    "quorumlog pipeline audit --servers 127.0.0.1:20911",
)


@pipeline_app.command(timeout_s=30.0)
def archive(
    at: LogPlace,
    target: Annotated[
        str,
        argument(
            "Directory of the archive (one of this log is continued), s3://BUCKET/PREFIX, delta:DIR"
            " for one that is a Delta table too, or iceberg:NAMESPACE.TABLE.",
            "TARGET",
            parser=named_archive,
        ),
    ],
    first_index: FirstIndex = None,
    stop_index: StopIndex = None,
    hold: Annotated[
        str,
        option("Keep entries in the log until they are archived, by a reader with this NAME.", "NAME"),
    ] = "",
    part_mib: Annotated[int, option("MiB of the log in one file.", min=1, max=1024)] = 128,
    verify: Annotated[bool, option("Read back and check everything archived before.")] = False,
    spark: Spark = "",
) -> None:
    """Write committed entries to Parquet (zstd), checked, each once; repeat it to add new ones.

    It may be interrupted anywhere. The rows are data entries; control entries are in the footers, so
    that the archive can be audited, replayed and read together with the log. A Delta or Iceberg table
    gets the same files, each once.

    Example: quorumlog pipeline archive orders --servers 127.0.0.1:20911
    """
    place = place_of(at)
    from quorumlog.pipelines.archiving import archive as run

    with engine_of(spark, [place]) as engine, entry_progress(f"archiving to {target}") as report:
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
    holds = f"entries {done.first_index} to {done.last_index}" if done.parts else "nothing yet"
    same = f"; the same at {', '.join(done.members_compared)}" if done.members_compared else ""
    tell(
        done,
        f"{done.archive} holds {holds} in {done.parts} files, {done.new_entries} of them new"
        f" ({spoken_size(done.new_bytes)}), chain {done.last_chain:08x}{same}",
    )


@pipeline_app.command()
def audit(
    servers: OptionalServers = None,
    paths: Annotated[
        list[Path] | None,
        option("Data directory of a stopped member; may be repeated.", "DIR", name="--path"),
    ] = None,
    archive_place: ArchivePlace = None,
    group: OptionalGroup = None,
    spark: Spark = "",
    timeout: Annotated[float, option(WITHOUT_ANSWER, min=0.1)] = 30.0,
    *,
    tls: TlsOfClients,
) -> None:
    """Recompute every digest of every replica and of an archive, and compare them.

    The first entry where two of them differ is named. Exit status 1: something differs or is damaged.

    Example: quorumlog pipeline audit --servers 127.0.0.1:20911
    """
    need_arrow()
    from quorumlog.pipelines.auditing import audit as run
    from quorumlog.pipelines.places import Place

    timeout_ms, name = timeout_ms_of(timeout), group or ""
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
    asking = tls.speaking()
    with asking, engine_of(spark, places) as engine, entry_progress("auditing") as report:
        found = run(places, engine=engine, report=report)
    tell(found, lambda: _show_audit(found))
    if found.differences:
        raise typer.Exit(EXIT_REFUSED)


def _show_audit(found: Audit) -> None:
    print_table(
        "place, first, last, checked, ",
        [
            (
                *(place.place, place.first_index, place.stop_index - 1, place.entries),
                "damaged" if place.problem else "sound",
            )
            for place in found.places
        ],
    )
    for each in found.differences:
        where = f"{each.place} and {each.other}" if each.other else each.place
        entry = f", entry {each.index}" if each.index >= 0 else ""
        say(f"{where}{entry}: {each.what}", "red")
    if not found.differences:
        say("one log: every digest is right, and all places agree")


pipeline_app.commands(stats, replay, compact, timeout_s=30.0)
