"""quorumlog status: a row a member, also when some or all are down; and readers, which the cluster keeps
by name."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import TIMEOUT_S, App, LogServers, argument, option, timeout_ms_of
from quorumlog.cli.output import EXIT_REFUSED, is_json, out, spoken_duration, tell, tell_each, tell_rows
from quorumlog.errors import BadRequest, ConfigError, UnknownReader

if TYPE_CHECKING:
    from quorumlog.client import LedgerClient, MemberStatusRow, ReaderRow


KEYS = (
    *("id", "address", "reachable", "release", "role", "term", "leader_id", "ledger_begin_index"),
    *("ledger_end_index", "committed_index", "damaged_entries", "scrub_next_index", "scrub_stop_index"),
    *("scrub_passes", "scrub_ended_ms_ago", "set_aside_files", "set_aside_bytes", "log_disk_bytes"),
    *("log_apparent_bytes", "producers", "machines", "feeding", "answers", "log_time_ms"),
    *("log_time_index", "waits_for", "problem", "problems", "unready", "over_limits"),
)


def status(
    at: LogServers,
    watch: Annotated[bool, option("Repeat every second, until Ctrl-C.")] = False,
    check: Annotated[
        bool,
        option(
            "For scripts: status 0 if the group is healthy, 1 if it is degraded, 2 if there"
            " is no leader."
        ),
    ] = False,
    readers: Annotated[bool, option("Show the named readers and their lag instead.")] = False,
) -> None:
    """Show every member: role, term, log range, committed index and lag behind the leader.

    Status 1 if no member answers; with --check the exit status is the health of the group. Columns that
    do not fit into the terminal are left out, the least important one first. --readers is the same as
    `quorumlog readers list`.

    Example: quorumlog status --servers 127.0.0.1:20911
    """
    from quorumlog.cli.log.status_table import WATCH_S, health_of, watch_status

    if watch and check:
        raise ConfigError("--watch and --check exclude each other: --check runs once")
    if watch and not is_json() and not out().is_terminal:
        raise ConfigError("--watch needs a terminal; --watch --json also works in a pipe")
    if readers:
        if watch or check:
            raise ConfigError("--readers runs once: leave out --watch and --check")
        with at.client() as log:
            print_readers(log.readers())
        return
    with at.client(timeout_ms=timeout_ms_of(TIMEOUT_S)) as log:

        def look() -> list[MemberStatusRow]:
            return log.status(timeout_ms=at.timeout_ms)

        if watch and not is_json():
            watch_status(look)
        rows = look()
        _print(rows)
        while watch:
            time.sleep(WATCH_S)
            _print(look())
    if check:
        raise typer.Exit(health_of(rows))
    if not any(row.reachable for row in rows):
        raise typer.Exit(EXIT_REFUSED)


def _print(rows: list[MemberStatusRow]) -> None:
    from quorumlog.cli.log.status_table import print_status, shown

    tell_each(({key: shown(row, key) for key in KEYS} for row in rows), lambda: print_status(rows))


_READER_KEYS = (
    *("name", "position", "hold", "lag_entries", "lag_ms", "lost_ranges", "skipped_entries"),
    "skipped_ranges",
)
_HOLDS = {False: "-", True: "held", "archive": "archive"}


def print_readers(rows: list[ReaderRow]) -> None:
    tell_rows(
        ({key: getattr(row, key) for key in _READER_KEYS} for row in rows),
        "name, position #, behind #, time behind #, hold, lost #, skipped #",
        [
            (
                row.name,
                row.position,
                row.lag_entries,
                None if row.lag_ms < 0 else spoken_duration(row.lag_ms),
                _HOLDS[row.hold],
                sum(stop - first for first, stop in row.lost_ranges) or None,
                row.skipped_entries or None,
            )
            for row in rows
        ],
        if_none="the cluster keeps no reader",
    )


readers_app = App(
    "Named readers, whose positions the cluster keeps (`read --reader NAME`): list, show, move, forget.",
    "quorumlog readers list --servers 127.0.0.1:20911",
)

Name = Annotated[str, argument("Name of a reader.", "NAME")]


@readers_app.command("list")
def list_readers(at: LogServers) -> None:
    """Show every reader: position, lag, and whether it holds unread entries.

    Example: quorumlog readers list --servers 127.0.0.1:20911
    """
    with at.connected() as log:
        print_readers(log.readers())


@readers_app.command()
def show(name: Name, at: LogServers) -> None:
    """Show one reader, with its lost and skipped entries.

    Example: quorumlog readers show billing --servers 127.0.0.1:20911
    """
    with at.connected() as log:
        row = _row_of(log, name)
    print_readers([row])
    if not is_json():
        for first_index, stop_index in row.lost_ranges:
            typer.echo(f"lost: entries {first_index} to {stop_index - 1}, when a disk was nearly full")
        for first_index, stop_index in row.skipped_ranges:
            typer.echo(
                f"skipped: entries {first_index} to {stop_index - 1}, deleted before it reached them"
            )


@readers_app.command()
def seek(
    name: Name, at: LogServers, to: Annotated[int, option("Index of the next entry to read.", min=0)]
) -> None:
    """Move a reader forward or back. A running consumer notices at its next start.

    Example: quorumlog readers seek billing --to 1200 --servers 127.0.0.1:20911
    """
    with at.connected() as log:
        old = _row_of(log, name).position
        position = log.reader(name).seek(to)
    tell(
        {"name": name, "position": position, "replaced": old},
        f"{name} continues at {position}; it was at {old}",
    )


@readers_app.command()
def forget(name: Name, at: LogServers) -> None:
    """Forget a reader and release its hold; a reader of the same name begins anew.

    Example: quorumlog readers forget billing --servers 127.0.0.1:20911
    """
    with at.connected() as log:
        row = _row_of(log, name)
        log.reader(name).end()
    tell({"name": name, "position": row.position}, f"{name} is forgotten; it was at {row.position}")


def _row_of(log: LedgerClient, name: str) -> ReaderRow:
    from quorumlog.log_state.control_entries import READER_NAME, READER_NAMES

    if not re.match(READER_NAME, name):
        raise BadRequest(READER_NAMES.format(name))
    rows = {row.name: row for row in log.readers()}
    if name not in rows:
        known = f"the cluster keeps {', '.join(rows)}" if rows else "the cluster keeps none"
        raise UnknownReader(f"there is no reader {name}; {known}")
    return rows[name]
