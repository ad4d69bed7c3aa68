"""quorumlog why-kept: what keeps each segment of a log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from quorumlog.cli.options import (
    DEFAULT_GROUP,
    Group,
    Json,
    OptionalServers,
    StoppedDirectory,
    Timeout,
    check_directory,
    is_on_command_line,
    split_servers,
)
from quorumlog.cli.output import out, print_json, say, spoken_size
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.wire.client_messages import SegmentInfo


def why_kept(
    context: typer.Context,
    servers: OptionalServers = None,
    path: StoppedDirectory = None,
    group: Group = DEFAULT_GROUP,
    timeout: Timeout = 10.0,
    json: Json = False,
) -> None:
    """Show for each segment what keeps it: age, the size of the log, a reader, a follower, an archive.

    With --servers the leader tells, who decides what goes. The directory of a stopped member knows what
    its log says: readers that hold, and from where on nothing may be deleted.

    Example: quorumlog why-kept --servers 127.0.0.1:20911
    """
    if path is not None and is_on_command_line(context, "servers"):
        raise ConfigError("--servers and --path exclude each other; ask the cluster or the directory")
    if path is not None:
        from quorumlog.cli.manage.kept_offline import kept_in

        segments, facts = kept_in(check_directory(path))
    elif servers:
        from quorumlog.cli.use.reach import refuse_dead_servers
        from quorumlog.client import connect

        split_servers(servers)
        with connect(servers, group=group, timeout_ms=int(timeout * 1000)) as log:
            refuse_dead_servers(log, timeout)
            why = log.why_kept()
        segments = why.segments
        facts = f"keep_from_index {why.keep_from_index}, disk {100 * why.used_ratio:.0f} % full"
    else:
        raise ConfigError(
            "--servers is missing; write --servers LIST, or --path DIR of a stopped member"
        )
    if json:
        for segment in segments:
            print_json(
                {
                    "first_index": segment.first_index,
                    "stop_index": segment.stop_index,
                    "size_bytes": segment.size_bytes,
                    "time_ms": segment.time_ms,
                    "reasons": segment.reasons,
                }
            )
    else:
        _print(segments)
        say(facts)


def _print(segments: tuple[SegmentInfo, ...]) -> None:
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
