"""quorumlog read: entries of a running cluster or of a stopped member's directory."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import typer

from quorumlog.cli.options import (
    FirstIndex,
    LogPlace,
    StopIndex,
    check_directory,
    is_on_command_line,
    option,
    refuse_crossed,
    time_ms_of,
)
from quorumlog.cli.output import is_json, write_bytes
from quorumlog.errors import ConfigError

FOLLOW_TIMEOUT_S = 3.0
"""After so long without an answer --follow reports that it waits, and continues."""


def read(
    context: typer.Context,
    at: LogPlace,
    first_index: FirstIndex = None,
    stop_index: StopIndex = None,
    since: Annotated[
        str | None,
        option(
            "Begin at this time, or so long ago: 90s, 2h, 7d, 2026-11-23T10:00Z. Times are"
            " those of the log's time marks, about a second apart, so earlier entries may"
            " come first.",
            "TIME",
        ),
    ] = None,
    last: Annotated[int | None, option("Begin N entries before the end.", min=1)] = None,
    limit: Annotated[int | None, option("Stop after N entries.", min=0)] = None,
    until_end: Annotated[
        bool, option("Include entries appended while it reads; end when none is left.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for entries appended later, until Ctrl-C.")
    ] = False,
    output_format: Annotated[
        Literal["text", "json", "hex"],
        option("text: the body; json: one object per line; hex: the body in hex.", name="--format"),
    ] = "text",
    with_time: Annotated[
        bool, option("Also print the time of each append, in UTC.", name="--time")
    ] = False,
    local: Annotated[
        bool, option("With --path: include entries that are not known to be committed.")
    ] = False,
    skip_damaged: Annotated[
        bool, option("With --path: skip damaged entries and report which were skipped.")
    ] = False,
    reader: Annotated[
        str | None,
        option(
            "Continue at the position of this named reader, and move it past the printed entries.",
            "NAME",
        ),
    ] = None,
    hold: Annotated[
        bool, option("With --reader: retention keeps entries that it has not read.")
    ] = False,
    consistency: Annotated[
        Literal["read_index", "committed"] | None,
        option(
            "read_index: linearizable, from any member; committed: the committed entries that a member"
            " knows, possibly old. Without it the leader answers."
        ),
    ] = None,
    max_staleness: Annotated[
        float | None, option("With committed: maximum age in seconds.", min=0)
    ] = None,
    from_member: Annotated[
        str | None, option("Member to read from: its id, `leader` or `any`.", "ID", name="--from-member")
    ] = None,
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
    from quorumlog.cli.log.read_sources import (
        WRITERS,
        ReadFrom,
        Wanted,
        limited,
        served,
        served_to,
        stored,
    )

    path = at.path
    if path is not None and follow:
        raise ConfigError("--follow needs --servers; a stopped member's directory does not grow")
    if path is not None and until_end:
        raise ConfigError("--until-end needs --servers; a stopped member's directory does not grow")
    if path is None and local:
        raise ConfigError("--local goes with --path only; servers serve committed entries only")
    if path is None and skip_damaged:
        raise ConfigError("--skip-damaged goes with --path only; servers repair what is damaged")
    if is_on_command_line(context, "timeout") and (follow or path is not None):
        raise ConfigError("--timeout goes with --servers and without --follow, which waits for ever")
    if is_json() and output_format != "json" and is_on_command_line(context, "output_format"):
        raise ConfigError(f"--json excludes --format {output_format}; leave one of them out")
    if last is not None and (first_index is not None or stop_index is not None):
        raise ConfigError(f"--last {last} excludes --from and --to; --limit goes with all of them")
    if since is not None and (first_index is not None or last is not None):
        raise ConfigError(f"--since {since} excludes --from and --last; each sets where to begin")
    since_ms = None if since is None else time_ms_of(since)
    if until_end and (follow or stop_index is not None):
        raise ConfigError("--until-end excludes --to and --follow; leave one of them out")
    refuse_crossed(first_index, stop_index)
    write = WRITERS["json" if is_json() else output_format]
    if hold and reader is None:
        raise ConfigError("--hold goes with --reader only; write --reader NAME")
    chooses = consistency is not None or max_staleness is not None or from_member is not None
    if chooses and (path is not None or reader is not None):
        raise ConfigError(
            "--consistency, --max-staleness and --from-member go with --servers, and not with --reader"
        )
    begins_elsewhere = first_index is not None or last is not None or since is not None
    if reader is not None and (path is not None or begins_elsewhere or until_end or with_time):
        raise ConfigError(
            "--reader excludes --path, --from, --since, --last, --until-end and --time; leave them out"
        )
    wanted = Wanted(first_index, stop_index, last, since_ms, with_time)
    if path is not None:
        directory = check_directory(path)
        held = stored(directory, at.group, wanted, local=local, skip_damaged=skip_damaged)
        entries = limited(held, limit)
    else:
        log = replace(at, timeout=FOLLOW_TIMEOUT_S).log if follow else at.log
        if reader is not None:
            entries = served_to(reader, hold, log, stop_index, limit, follow=follow)
        else:
            choice = ReadFrom(consistency, max_staleness, from_member)
            held = served(log, wanted, choice, follow=follow, until_end=until_end)
            entries = limited(held, limit)
    for batch in entries:
        write_bytes(b"".join(map(write, batch)))
