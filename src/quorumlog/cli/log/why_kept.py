"""quorumlog why-kept: what keeps each segment of a log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from quorumlog.cli.options import (
    DEFAULT_GROUP,
    Group,
    LogServers,
    OptionalServers,
    StoppedDirectory,
    Timeout,
    check_directory,
    is_on_command_line,
)
from quorumlog.cli.output import out, say, spoken_size, tell_each
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.wire.client_messages import SegmentInfo


def why_kept(
    context: typer.Context,
    servers: OptionalServers = None,
    path: StoppedDirectory = None,
    group: Group = DEFAULT_GROUP,
    timeout: Timeout = 10.0,
) -> None:
    """Show for each segment what keeps it: age, the size of the log, a reader, a follower, an archive.

    With --servers the leader tells, who decides what goes. The directory of a stopped member knows what
    its log says: readers that hold, and from where on nothing may be deleted.

    Example: quorumlog why-kept --servers 127.0.0.1:20911
    """
    if path is not None and is_on_command_line(context, "servers"):
        raise ConfigError("--servers and --path exclude each other; ask the cluster or the directory")
    if path is not None:
        from quorumlog.cli.log.kept_offline import kept_in

        segments, facts = kept_in(check_directory(path))
    elif servers:
        with LogServers(servers, timeout, group).connected() as log:
            why = log.why_kept()
        segments = why.segments
        facts = f"keep_from_index {why.keep_from_index}, disk {100 * why.used_ratio:.0f} % full"
    else:
        raise ConfigError(
            "--servers is missing; write --servers LIST, or --path DIR of a stopped member"
        )
    names = ("first_index", "stop_index", "size_bytes", "time_ms", "reasons")
    rows = ({name: getattr(segment, name) for name in names} for segment in segments)
    tell_each(rows, lambda: _print(segments, facts))


def _print(segments: tuple[SegmentInfo, ...], facts: str) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("first index", "entries", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("until", no_wrap=True)
    table.add_column("kept by", overflow="fold")
    for each in segments:
        until = "-"
        if each.time_ms >= 0:
            until = datetime.fromtimestamp(each.time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        table.add_row(
            str(each.first_index),
            str(each.stop_index - each.first_index),
            spoken_size(each.size_bytes),
            until,
            "; ".join(each.reasons),
        )
    out().print(table)
    say(facts)
