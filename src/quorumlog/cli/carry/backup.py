"""quorumlog backup: a running log into a directory, and later what is new of it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import (
    DEFAULT_GROUP,
    Group,
    Json,
    Servers,
    Timeout,
    named_path,
    split_servers,
)
from quorumlog.cli.output import entry_progress, note, print_json, spoken_size
from quorumlog.errors import ConfigError, LeaderNotReady, RequestTimeout

if TYPE_CHECKING:
    from quorumlog.backups import BackupTaken


class Verify(StrEnum):
    ALL = "all"
    NEW = "new"


def backup(
    servers: Servers,
    directory: Annotated[
        Path,
        typer.Option(
            "--to",
            help="Directory of the backup; if it holds one of this log already, what is new is added.",
            metavar="DIR",
            show_default=False,
            parser=named_path,
        ),
    ],
    from_member: Annotated[
        str | None,
        typer.Option(
            "--from-member",
            help="Ask this member only, whatever it knows to be committed; nobody need lead then.",
            metavar="ID",
            show_default=False,
        ),
    ] = None,
    hold: Annotated[
        str | None,
        typer.Option(
            "--hold",
            help="Nothing is deleted from the log before a backup with this NAME holds it; the cluster"
            " keeps NAME as a reader.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[
        Verify,
        typer.Option(
            help="What is read back before it says done: all that DIR holds, or only what is new in it.",
        ),
    ] = Verify.ALL,
    group: Group = DEFAULT_GROUP,
    timeout: Timeout = 30.0,
    json: Json = False,
) -> None:
    """Copy everything that is committed now, while the cluster works, and check it before it counts.

    It may be interrupted, and is repeated to add what is new: the backup that was there stays whole.
    The directory is read by inspect, verify and read as a member's is; quorumlog restore makes a new
    cluster of it.

    Example: quorumlog backup --servers 127.0.0.1:20911 --to /backups/orders
    """
    from quorumlog.backups.taking import BackupTaking
    from quorumlog.cli.use.reach import refuse_dead_servers
    from quorumlog.client import connect

    split_servers(servers)
    if hold is not None and from_member is not None:
        raise ConfigError(
            "--hold and --from-member exclude each other: a hold is an entry, which the leader writes"
        )
    with connect(servers, group=group, timeout_ms=int(timeout * 1000)) as log:
        refuse_dead_servers(log, timeout)
        with BackupTaking(
            log, str(directory), from_member=from_member, hold=hold, verify=verify.value
        ) as taking:
            try:
                taking.prepare()
                with entry_progress(f"copying to {directory}") as report:
                    taking.copy(report)
                with entry_progress(f"verifying {directory}") as report:
                    taking.verify(report)
                taken = taking.complete()
            except (LeaderNotReady, RequestTimeout):
                if from_member is None:
                    note("while nobody leads, --from-member ID copies what one member knows")
                raise
            except KeyboardInterrupt:
                note(f"ended in front of index {taking.next_index}; the same command goes on there")
                raise
    _print(taken, json=json)


def _print(taken: BackupTaken, *, json: bool) -> None:
    import msgspec

    if json:
        print_json(msgspec.structs.asdict(taken))
        return
    new = f"{taken.new_entries} of them new ({spoken_size(taken.new_bytes)})"
    given = f", from {taken.member_id}" if taken.member_id else ""
    typer.echo(
        f"{taken.directory} holds entries {taken.first_index} to {taken.last_index}, {new}{given};"
        f" verified, chain {taken.last_chain:08x}"
    )
