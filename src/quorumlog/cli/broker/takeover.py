"""quorumlog broker takeover."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quorumlog.cli.broker.broker_options import StoreDirectory
from quorumlog.cli.options import Json, named_path
from quorumlog.cli.output import EXIT_REFUSED, print_json, say
from quorumlog.errors import ConfigError


def takeover(
    store: StoreDirectory,
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
    members: Annotated[
        str,
        typer.Option(
            "--members",
            help="Every member and where its log is reached: ID=HOST:PORT,... The same on all.",
            metavar="LIST",
        ),
    ],
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

    The store is left as it is. All copies of the commit log must be the same to the byte.

    \b
    Example:
        quorumlog broker takeover /var/lib/store --data-dir /var/lib/member --id n0 \\
          --members n0=10.0.0.1:20911,n1=10.0.0.2:20911,n2=10.0.0.3:20911
    """
    import msgspec

    from quorumlog.broker.old_log import TakenOver, first_difference
    from quorumlog.broker.takeover import take_over
    from quorumlog.config import parse_members

    made = take_over(str(store), str(data_dir), member_id, parse_members(members))
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
        if difference:
            say(f"the old logs are not the same: {difference}", "red")
    if difference:
        raise typer.Exit(EXIT_REFUSED)
