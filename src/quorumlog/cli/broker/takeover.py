"""quorumlog broker takeover."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quorumlog.cli.options import DEFAULT_GROUP, Json, named_path
from quorumlog.cli.output import print_json, say
from quorumlog.errors import ConfigError, Refused

TIMEOUT_MS = 30_000


def takeover(
    data_dir: Annotated[
        Path,
        typer.Option(
            "--data-dir",
            help="Directory of the member to be made; empty, or not there.",
            metavar="DIR",
            parser=named_path,
        ),
    ],
    member_id: Annotated[str, typer.Option("--id", help="Id of this member.", metavar="ID")],
    store: Annotated[
        Path | None,
        typer.Argument(
            help="Directory of a stopped store, ours or a Java broker's (storePathRootDir).",
            metavar="[STORE]",
            show_default=False,
            parser=named_path,
        ),
    ] = None,
    members: Annotated[
        str,
        typer.Option(
            "--members",
            help="Every member and where its log is reached: ID=HOST:PORT,... The same on all.",
            metavar="LIST",
            show_default=False,
        ),
    ] = "",
    from_broker: Annotated[
        str,
        typer.Option(
            "--from",
            help="Of a later member, instead of STORE and --members: the broker of one that runs.",
            metavar="HOST:PORT",
            show_default=False,
        ),
    ] = "",
    group: Annotated[
        str, typer.Option("--group", help="Name of the replicated log.", metavar="NAME")
    ] = DEFAULT_GROUP,
    compare: Annotated[
        Path | None,
        typer.Option(
            "--compare",
            help="The file `taken-over` of another member: say whether its old log is the same.",
            metavar="FILE",
            parser=named_path,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make a member of a replicated log of a stopped classic store, on each machine of its own copy.

    The store is left as it is. All copies of the commit log must be the same to the byte. A member that
    comes later gets the old commit log --from another one; start it then, and add it.

    \b
    Examples:
        quorumlog broker takeover /var/lib/store --data-dir /var/lib/member --id n0 \\
          --members n0=10.0.0.1:20911,n1=10.0.0.2:20911,n2=10.0.0.3:20911
        quorumlog broker takeover --from 10.0.0.1:10911 --data-dir /var/lib/member --id n3
    """
    import msgspec

    from quorumlog.broker import connect
    from quorumlog.broker.later_member import make_later_member
    from quorumlog.broker.old_log import TakenOver, first_difference
    from quorumlog.broker.takeover import take_over
    from quorumlog.config import parse_members

    if bool(from_broker) == (store is not None) or bool(from_broker) == bool(members):
        raise ConfigError("give STORE and --members, or --from HOST:PORT of a member that runs")
    if from_broker:
        with connect(from_broker, timeout_ms=TIMEOUT_MS) as broker:
            made = make_later_member(broker, str(data_dir), member_id, group=group)
    else:
        made = take_over(str(store), str(data_dir), member_id, parse_members(members), group=group)
    difference = ""
    if compare is not None:
        try:
            other = msgspec.json.decode(compare.read_bytes(), type=TakenOver)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"--compare {compare}: {error}") from None
        difference = first_difference(made, other)
    if json:
        print_json(
            {
                "begins_at": made.end_position,
                "file_bytes": made.file_bytes,
                "digest": made.digest,
                "difference": difference,
            }
        )
    else:
        sizes = f"begins at {made.end_position}, files of {made.file_bytes} bytes"
        say(f"{data_dir}: the log {sizes}, digest {made.digest}")
        say(
            'to start it, quorumlog broker serve --role dledger needs in its --config: retention = "off"'
            f" and segment_bytes = {made.file_bytes}"
        )
    if difference:
        raise Refused(f"the old logs are not the same: {difference}")
