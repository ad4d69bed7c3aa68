"""quorumlog restore: a new cluster from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import Json, named_path, time_ms_of
from quorumlog.cli.output import entry_progress, note, print_json, say
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.backups import Restored


def restore(
    source: Annotated[
        Path,
        typer.Option(
            "--from",
            help="Directory of the backup.",
            metavar="DIR",
            show_default=False,
            parser=named_path,
        ),
    ],
    members: Annotated[
        str,
        typer.Option(
            help="Every member of the new cluster and where it will be reached: ID=HOST:PORT,...",
            metavar="LIST",
            show_default=False,
        ),
    ],
    targets: Annotated[
        list[str],
        typer.Option(
            "--to",
            help="The directory of one member, which must be empty; once for each.",
            metavar="ID=DIR",
            show_default=False,
        ),
    ],
    last_index: Annotated[
        int | None,
        typer.Option(
            "--index",
            help="The last entry that is restored. (default: the last one of the backup)",
            min=-1,
            metavar="N",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--time",
            help="Restore what was appended up to then: 90s ago, 2h, 7d, or 2026-11-23T10:00Z.",
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make the data directories of a new cluster from a backup, checking every entry on the way.

    The members have other ids of directory and cluster than those of the old one, and never talk to
    them. A directory of another machine is made here and moved there whole.

    Example:

    \b
        quorumlog restore --from /backups/orders \\
          --members n0=10.0.0.1:20911,n1=10.0.0.2:20911,n2=10.0.0.3:20911 \\
          --to n0=/restored/n0 --to n1=/restored/n1 --to n2=/restored/n2
    """
    from quorumlog.backups import restore as restore_backup

    if last_index is not None and until is not None:
        raise ConfigError("--index and --time exclude each other; name one of them")
    time_ms = None if until is None else time_ms_of(until, "--time")
    with entry_progress(f"restoring {source}") as report:
        restored = restore_backup(
            str(source),
            members,
            _directories(targets),
            last_index=last_index,
            time_ms=time_ms,
            report=report,
        )
    _print(restored, members, json=json)


def _directories(targets: list[str]) -> dict[str, str]:
    directories: dict[str, str] = {}
    for target in targets:
        member_id, equals, directory = target.partition("=")
        if not equals or not member_id or not directory:
            raise ConfigError(f"--to {target!r} must look like n0=/restored/n0")
        if member_id in directories:
            raise ConfigError(f"--to names {member_id} twice; a member has one directory")
        directories[member_id] = directory
    return directories


def _print(restored: Restored, members: str, *, json: bool) -> None:
    import msgspec

    from quorumlog.config import StoreConfig

    if restored.lost_machines:
        note(
            f"the log begins at index {restored.first_index}, and a backup holds no snapshots: these"
            f" state machines cannot be built again: {', '.join(restored.lost_machines)}"
        )

    if json:
        print_json(msgspec.to_builtins(restored))
        return
    say(
        f"restored entries {restored.first_index} to {restored.last_index} as cluster"
        f" {restored.cluster_id}; start its members, each on its machine:"
    )
    for member in restored.members:
        say(
            f"  quorumlog serve --group {restored.group} --id {member.member_id}"
            f" --data-dir {member.directory} --members {members}"
        )
    defaults = StoreConfig()
    sizes = [
        f"{name} = {size}"
        for name, size, default in (
            ("segment_bytes", restored.segment_bytes, defaults.segment_bytes),
            ("index_segment_bytes", restored.index_segment_bytes, defaults.index_segment_bytes),
        )
        if size != default
    ]
    if sizes:
        say(f"quorumlog serve needs a file --config here that says {' and '.join(sizes)}")
