"""quorumlog broker group: consumer groups."""

from __future__ import annotations

from typing import Annotated

import typer

from quorumlog.cli.broker.broker_options import DEFAULT_SERVER, GroupName, Server
from quorumlog.cli.options import Json, Timeout, time_ms_of
from quorumlog.cli.output import CommandGroup, print_json, print_table, say

TIMEOUT_S = 10.0

group_app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True)


@group_app.callback()
def group() -> None:
    """Consumer groups: who reads what, how far behind, and where it goes on.

    Example: quorumlog broker group show billing
    """


@group_app.command("list")
def list_(server: Server = DEFAULT_SERVER, timeout: Timeout = TIMEOUT_S, json: Json = False) -> None:
    """All consumer groups.

    Example: quorumlog broker group list
    """
    from quorumlog.broker import BrokerAdmin

    with BrokerAdmin(server, timeout_ms=int(timeout * 1000)) as admin:
        rows = admin.groups()
    topics = [sorted({topic for each in row.members for topic, _ in each.topics}) for row in rows]
    if json:
        for row, read in zip(rows, topics, strict=True):
            members = [each.member for each in row.members]
            print_json(
                {
                    "group": row.group,
                    "generation": row.generation,
                    "members": members,
                    "topics": read,
                }
            )
        return
    print_table(
        {"group": False, "members": True, "generation": True, "topics": False},
        [
            (row.group, len(row.members), row.generation, ", ".join(read) or None)
            for row, read in zip(rows, topics, strict=True)
        ],
    )


@group_app.command()
def show(
    group: GroupName, server: Server = DEFAULT_SERVER, timeout: Timeout = TIMEOUT_S, json: Json = False
) -> None:
    """How far a group is behind, in messages and seconds, queue by queue.

    Example: quorumlog broker group show billing --json
    """
    from quorumlog.broker import BrokerAdmin

    with BrokerAdmin(server, timeout_ms=int(timeout * 1000)) as admin:
        lags = admin.lag(group)
    if json:
        for lag in lags:
            print_json(lag._asdict() | {"seconds": round(lag.seconds, 3)})
        return
    behind = sum(lag.messages for lag in lags)
    oldest = max((lag.seconds for lag in lags), default=0.0)
    say(f"{group}: {behind} messages behind, the oldest since {oldest:.1f} s")
    print_table(
        {
            "topic": False,
            "queue": True,
            "committed": True,
            "end": True,
            "behind": True,
            "seconds": True,
            "read by": False,
        },
        [
            (
                lag.topic,
                lag.queue_id,
                None if lag.committed_offset < 0 else lag.committed_offset,
                lag.end_offset,
                lag.messages,
                f"{lag.seconds:.1f}",
                lag.member or None,
            )
            for lag in lags
        ],
    )


@group_app.command()
def reset(
    group: GroupName,
    to: Annotated[
        str,
        typer.Option(
            "--to", help="earliest, latest, or a time: 2h, 2026-11-23T10:00Z.", metavar="PLACE"
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            help="Of this topic only; may be repeated. (default: all it reads)",
            metavar="NAME",
        ),
    ] = None,
    server: Server = DEFAULT_SERVER,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Have a group go on elsewhere. What its members have in hand is not committed any more.

    Example: quorumlog broker group reset billing --to 2h --topic orders
    """
    from quorumlog.broker import BrokerAdmin

    place = to if to in ("earliest", "latest") else float(time_ms_of(to, "--to"))
    with BrokerAdmin(server, timeout_ms=int(timeout * 1000)) as admin:
        offsets = admin.reset(group, place, topic or ())
    for (name, queue), offset in offsets.items():
        if json:
            print_json({"group": group, "topic": name, "queue": queue, "offset": offset})
        else:
            say(f"{group} goes on at {offset} of {name} queue {queue}")


@group_app.command()
def delete(
    group: GroupName, server: Server = DEFAULT_SERVER, timeout: Timeout = TIMEOUT_S, json: Json = False
) -> None:
    """Forget a group without members: its offsets, its retries and its dead letters.

    Example: quorumlog broker group delete billing
    """
    from quorumlog.broker import BrokerAdmin

    with BrokerAdmin(server, timeout_ms=int(timeout * 1000)) as admin:
        admin.delete_group(group)
    if json:
        print_json({"group": group, "deleted": True})
    else:
        say(f"group {group} is deleted")
