"""quorumlog broker takeover."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import DEFAULT_GROUP, Json, named_path
from quorumlog.cli.output import print_json, say
from quorumlog.errors import ConfigError, Refused

if TYPE_CHECKING:
    from quorumlog.broker.offline.old_state import OldReport

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
    without_config: Annotated[
        bool,
        typer.Option(
            "--without-config",
            help="The folder config of a Java broker is lost: its groups begin anew, and each delayed"
            " message and retry is delivered again.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Make a member of a replicated log of a stopped classic store, on each machine of its own copy.

    The store is left as it is. All copies of the commit log, and of the folder config of a Java broker,
    must be the same: topics, groups, their offsets and delays are taken over from it. A member that
    comes later gets the old commit log --from another one; start it then, and add it.

    \b
    Examples:
        quorumlog broker takeover /var/lib/store --data-dir /var/lib/member --id n0 \\
          --members n0=10.0.0.1:20911,n1=10.0.0.2:20911,n2=10.0.0.3:20911
        quorumlog broker takeover --from 10.0.0.1:10911 --data-dir /var/lib/member --id n3
    """
    import msgspec

    from quorumlog.broker import connect
    from quorumlog.broker.offline.old_log import decode_record, first_difference
    from quorumlog.broker.offline.takeover import make_later_member, take_over
    from quorumlog.config import parse_members

    if bool(from_broker) == (store is not None) or bool(from_broker) == bool(members):
        raise ConfigError("give STORE and --members, or --from HOST:PORT of a member that runs")
    report: OldReport | None = None
    if from_broker:
        with connect(from_broker, timeout_ms=TIMEOUT_MS) as broker:
            made = make_later_member(broker, str(data_dir), member_id, group=group)
    else:
        made, report = take_over(
            str(store),
            str(data_dir),
            member_id,
            parse_members(members),
            group=group,
            without_config=without_config,
        )
    difference = ""
    if compare is not None:
        try:
            other = decode_record(compare.read_bytes())
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
                **({} if report is None else report._asdict()),
            }
        )
    else:
        sizes = f"begins at {made.end_position}, files of {made.file_bytes} bytes"
        say(f"{data_dir}: the log {sizes}, digest {made.digest}")
        if report is not None:
            _say_what_was_taken(report)
        say(
            'to start it, quorumlog broker serve --role dledger needs in its --config: retention = "off"'
            f" and segment_bytes = {made.file_bytes}"
        )
    if difference:
        raise Refused(f"the old logs are not the same: {difference}")


def _say_what_was_taken(report: OldReport) -> None:
    say(
        f"taken over: {report.topics} topics, {report.groups} consumer groups with {report.offsets}"
        f" offsets; {report.delayed_messages} delayed messages are to be delivered,"
        f" {report.delivered_messages} were"
    )
    left = [
        *([f"{report.half_messages} half messages of transactions"] if report.half_messages else []),
        *([f"{report.timers} timers that are not due yet"] if report.timers else []),
        *([f"the topics {', '.join(report.left_topics)}"] if report.left_topics else []),
        *([f"the groups {', '.join(report.left_groups)}"] if report.left_groups else []),
    ]
    if left:
        say(f"not taken over: {'; '.join(left)}", "yellow")
    for note in report.notes:
        say(note, "yellow")
