"""quorumlog backup: a running log into a directory, incrementally; and restore: a new cluster from
that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from quorumlog.cli.options import LogServers, option, start_command, time_ms_of
from quorumlog.cli.output import entry_progress, note, say, spoken_size, tell
from quorumlog.errors import ConfigError, LeaderNotReady, RequestTimeout

if TYPE_CHECKING:
    from quorumlog.backups import Restored
    from quorumlog.client import LedgerClient


def backup(
    at: LogServers,
    directory: Annotated[
        Path,
        option(
            "Directory of the backup; an existing backup of this log is extended.", "DIR", name="--to"
        ),
    ],
    from_member: Annotated[
        str | None,
        option("Copy the entries that this member knows to be committed; works without a leader.", "ID"),
    ] = None,
    hold: Annotated[
        str | None,
        option(
            "Keep entries in the log until a backup with this NAME has them; NAME becomes a"
            " reader of the log.",
            "NAME",
        ),
    ] = None,
    verify: Annotated[
        Literal["all", "new"], option("Read back and verify all of DIR, or only new entries.")
    ] = "all",
) -> None:
    """Copy all committed entries while the cluster works, and verify the copy.

    It may be interrupted. Repeat it to add new entries; an existing backup stays intact meanwhile.
    inspect, verify and read take the directory like a member's; quorumlog restore makes a new cluster
    from it.

    Example: quorumlog backup --servers 127.0.0.1:20911 --to /backups/orders
    """
    from quorumlog.backups.taking import BackupTaking

    if hold is not None and from_member is not None:
        raise ConfigError(
            "--hold and --from-member exclude each other: a hold is an entry, which the leader writes"
        )
    with (
        at.connected() as log,
        BackupTaking(log, str(directory), from_member=from_member, hold=hold, verify=verify) as taking,
    ):
        try:
            if from_member is None:
                _note_lack_of_leader(log)
            taking.prepare()
            with entry_progress(f"copying to {directory}") as report:
                taking.copy(report)
            with entry_progress(f"verifying {directory}") as report:
                taking.verify(report)
            taken = taking.complete()
        except (LeaderNotReady, RequestTimeout):
            if from_member is None:
                note("while there is no leader, --from-member ID copies the entries one member knows")
            raise
        except KeyboardInterrupt:
            note(f"stopped before index {taking.next_index}; repeat the command to continue there")
            raise
    new = f"{taken.new_entries} of them new ({spoken_size(taken.new_bytes)})"
    source = f", from {taken.member_id}" if taken.member_id else ""
    tell(
        taken,
        f"{taken.directory} holds entries {taken.first_index} to {taken.last_index}, {new}{source};"
        f" verified, chain {taken.last_chain:08x}",
    )


def _note_lack_of_leader(log: LedgerClient) -> None:
    """The copy begins once there is a leader, which may take long."""
    rows = log.status()
    if not any(row.role == "leader" for row in rows):
        reasons = [f"{row.id}: {row.waits_for}" for row in rows if row.waits_for]
        note(f"waits for a leader ({'; '.join(reasons) or 'see quorumlog status'})")


def restore(
    source: Annotated[Path, option("Directory of the backup.", "DIR", name="--from")],
    members: Annotated[
        str, option("Every member of the new cluster and its address: ID=HOST:PORT,...", "LIST")
    ],
    targets: Annotated[
        list[str],
        option(
            "The directory of one member, which must be empty; once for each.", "ID=DIR", name="--to"
        ),
    ],
    last_index: Annotated[
        int | None,
        option(
            "The last entry that is restored. (default: the last one of the backup)",
            name="--index",
            min=-1,
        ),
    ] = None,
    until: Annotated[
        str | None,
        option(
            "Restore entries appended up to this time, or so long ago: 90s, 2h, 7d, 2026-11-23T10:00Z.",
            "TIME",
            name="--time",
        ),
    ] = None,
    with_users: Annotated[
        bool,
        option("Restore users, roles and grants of the backup, including any that were removed since."),
    ] = False,
) -> None:
    """Make the data directories of a new cluster from a backup, checking every entry on the way.

    The new cluster and its directories get new ids, so its members and those of the old cluster refuse
    each other. Directories for other machines are made here; move each as a whole.

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
            with_users=with_users,
            report=report,
        )
    if restored.lost_machines:
        note(
            f"the log begins at index {restored.first_index}, and a backup holds no snapshots: these"
            f" state machines cannot be built again: {', '.join(restored.lost_machines)}"
        )
    if restored.left_users_out:
        note(
            "the users of the backup were left out, and without users every client is refused: give one"
            " of the members an administrator before it starts (quorumlog init-admin), or restore again"
            " --with-users"
        )
    tell(restored, lambda: _say(restored, members))


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


def _say(restored: Restored, members: str) -> None:
    from quorumlog.config import StoreConfig

    say(
        f"restored entries {restored.first_index} to {restored.last_index} as cluster"
        f" {restored.cluster_id}; start its members, each on its machine:"
    )
    for member in restored.members:
        say(f"  {start_command(member.directory, restored.group, member.member_id, members)}")
    defaults = StoreConfig()
    names = ("segment_bytes", "index_segment_bytes")
    sizes = {name: getattr(restored, name) for name in names}
    sizes = {name: size for name, size in sizes.items() if size != getattr(defaults, name)}
    if sizes:
        say(
            "each needs a file (see quorumlog serve --config) that says"
            f" {' and '.join(f'{name} = {size}' for name, size in sizes.items())}"
        )
