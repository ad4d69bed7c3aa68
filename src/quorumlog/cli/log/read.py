"""quorumlog read: entries of a running cluster or of a stopped member's directory."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import (
    DEFAULT_GROUP,
    FirstIndex,
    FromMember,
    LogPlace,
    LogServers,
    MaxStaleness,
    ReadConsistency,
    StopIndex,
    check_directory,
    is_on_command_line,
    time_ms_of,
)
from quorumlog.cli.output import is_json, write_bytes
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.entry import Entry


TIMEOUT_S = 30.0
FOLLOW_TIMEOUT_S = 3.0
"""After so long without an answer --follow reports that it waits, and continues."""


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    HEX = "hex"


def read(
    context: typer.Context,
    at: LogPlace,
    first_index: FirstIndex = None,
    stop_index: StopIndex = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Begin at this time, or so long ago: 90s, 2h, 7d, 2026-11-23T10:00Z. Times are"
            " those of the log's time marks, about a second apart, so earlier entries may"
            " come first.",
            metavar="TIME",
        ),
    ] = None,
    last: Annotated[int | None, typer.Option(help="Begin N entries before the end.", min=1)] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after N entries.", min=0)] = None,
    until_end: Annotated[
        bool,
        typer.Option(
            "--until-end", help="Include entries appended while it reads; end when none is left."
        ),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for entries appended later, until Ctrl-C.")
    ] = False,
    output_format: Annotated[
        Format,
        typer.Option(
            "--format", help="text: the body; json: one object per line; hex: the body in hex."
        ),
    ] = Format.TEXT,
    with_time: Annotated[
        bool, typer.Option("--time", help="Also print the time of each append, in UTC.")
    ] = False,
    local: Annotated[
        bool,
        typer.Option("--local", help="With --path: include entries that are not known to be committed."),
    ] = False,
    skip_damaged: Annotated[
        bool,
        typer.Option(
            "--skip-damaged",
            help="With --path: skip damaged entries and report which were skipped.",
        ),
    ] = False,
    reader: Annotated[
        str | None,
        typer.Option(
            help="Continue at the position of this named reader, and move it past the printed entries.",
            metavar="NAME",
        ),
    ] = None,
    hold: Annotated[
        bool,
        typer.Option("--hold", help="With --reader: retention keeps entries that it has not read."),
    ] = False,
    consistency: ReadConsistency = None,
    max_staleness: MaxStaleness = None,
    from_member: FromMember = None,
) -> None:
    """Print committed entries, one per line, without no-ops and other control entries.

    A list of servers that all refuse connections or have unknown names fails in 3 s; other servers are
    tried up to --timeout. With --follow it waits for a cluster that cannot be reached, and reports that
    once. With --consistency it reports at the end how fresh the answer was (docs/reads.md). With
    --reader NAME the cluster stores the position, and the next read with this name continues there.
    With --path it ends with status 3 at a damaged or missing entry; with --skip-damaged it
    continues after it if the index allows.

    Example: quorumlog read --servers 127.0.0.1:20911 --since 2h --time --json
    """
    from quorumlog.cli.log.read_sources import WRITERS, ReadFrom, limited, served, stored

    path = at.path
    _refuse_combinations(
        path,
        follow=follow,
        local=local,
        skip_damaged=skip_damaged,
        until_end=until_end,
        timeout=is_on_command_line(context, "timeout"),
    )
    if is_json() and output_format is not Format.JSON and is_on_command_line(context, "output_format"):
        raise ConfigError(f"--json excludes --format {output_format}; leave one of them out")
    if last is not None and (first_index is not None or stop_index is not None):
        raise ConfigError(f"--last {last} excludes --from and --to; --limit goes with all of them")
    if since is not None and (first_index is not None or last is not None):
        raise ConfigError(f"--since {since} excludes --from and --last; each sets where to begin")
    since_ms = None if since is None else time_ms_of(since)
    if until_end and (follow or stop_index is not None):
        raise ConfigError("--until-end excludes --to and --follow; leave one of them out")
    if first_index is not None and stop_index is not None and stop_index < first_index:
        raise ConfigError(f"--to {stop_index} is below --from {first_index}; swap them")
    write = WRITERS[Format.JSON if is_json() else output_format]
    if hold and reader is None:
        raise ConfigError("--hold goes with --reader only; write --reader NAME")
    chooses = consistency is not None or max_staleness is not None or from_member is not None
    if chooses and (path is not None or reader is not None):
        raise ConfigError(
            "--consistency, --max-staleness and --from-member go with --servers, and not with --reader"
        )
    log = LogServers(
        at.servers or "", FOLLOW_TIMEOUT_S if follow else at.timeout, at.group or DEFAULT_GROUP
    )
    if reader is not None:
        begins_elsewhere = first_index is not None or last is not None or since is not None
        if path is not None or begins_elsewhere or until_end or with_time:
            raise ConfigError(
                "--reader excludes --path, --from, --since, --last, --until-end and --time;"
                " leave them out"
            )
        _read_as(reader, hold, log, stop_index, limit, write, follow=follow)
        return
    if path is not None:
        entries = stored(
            check_directory(path),
            at.group,
            first_index,
            stop_index,
            local=local,
            skip_damaged=skip_damaged,
            last=last,
            since_ms=since_ms,
            with_time=with_time,
        )
    else:
        choice = ReadFrom(consistency, max_staleness, from_member)
        entries = served(
            log,
            first_index,
            stop_index,
            follow=follow,
            until_end=until_end,
            last=last,
            since_ms=since_ms,
            with_time=with_time,
            choice=choice,
        )
    for batch in limited(entries, limit):
        write_bytes(b"".join(map(write, batch)))


def _read_as(
    name: str,
    hold: bool,
    at: LogServers,
    stop_index: int | None,
    limit: int | None,
    write: Callable[[Entry], bytes],
    *,
    follow: bool,
) -> None:
    from quorumlog.cli.log.read_sources import served_to

    for entries in served_to(name, hold, at, stop_index, limit, follow=follow):
        write_bytes(b"".join(map(write, entries)))


def _refuse_combinations(
    path: Path | None, *, follow: bool, local: bool, skip_damaged: bool, until_end: bool, timeout: bool
) -> None:
    if path is not None and follow:
        raise ConfigError("--follow needs --servers; a stopped member's directory does not grow")
    if path is not None and until_end:
        raise ConfigError("--until-end needs --servers; a stopped member's directory does not grow")
    if path is None and local:
        raise ConfigError("--local goes with --path only; servers serve committed entries only")
    if path is None and skip_damaged:
        raise ConfigError("--skip-damaged goes with --path only; servers repair what is damaged")
    if timeout and (follow or path is not None):
        raise ConfigError("--timeout goes with --servers and without --follow, which waits for ever")
