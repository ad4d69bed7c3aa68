"""quorumlog read: entries of a running cluster or of a stopped member's directory."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from quorumlog.batch import Entry
from quorumlog.cli.options import Group, Json, Timeout, check_directory, named_path, split_servers
from quorumlog.cli.output import note
from quorumlog.client import LedgerClient, connect, leader_of
from quorumlog.config import DEFAULT_GROUP
from quorumlog.errors import (
    ConfigError,
    DirectoryDamaged,
    IndexOutOfRange,
    LeaderNotReady,
    NotLeader,
    RequestTimeout,
    Unreachable,
)
from quorumlog.store.disk import OsDisk
from quorumlog.store.offline.directory_reader import DirectoryReader
from quorumlog.store.offline.log_extent import Damage

TIMEOUT_S = 30.0
FOLLOW_TIMEOUT_MS = 3_000
"""After so long without an answer --follow says that it waits. It goes on all the same."""
ASK_AGAIN_S = 0.5


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    HEX = "hex"


def read(
    context: typer.Context,
    servers: Annotated[
        str | None,
        typer.Option(
            "--servers",
            help="Addresses of members, HOST:PORT,...; not with --path.",
            envvar="QUORUMLOG_SERVERS",
            metavar="LIST",
            show_default=False,
        ),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option(
            help="Data directory of a stopped member.",
            metavar="DIR",
            show_default=False,
            parser=named_path,
        ),
    ] = None,
    first_index: Annotated[
        int | None,
        typer.Option("--from", help="First index. (default: where the log begins)", min=0, metavar="N"),
    ] = None,
    stop_index: Annotated[
        int | None,
        typer.Option(
            "--to",
            help="Stop before this index. (default: behind what is committed)",
            min=0,
            metavar="N",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is appended later, until Ctrl-C.")
    ] = False,
    output_format: Annotated[
        Format,
        typer.Option(
            "--format", help="text: the body alone; json: an object a line; hex: the body in hex."
        ),
    ] = Format.TEXT,
    json: Json = False,
    local: Annotated[
        bool,
        typer.Option("--local", help="With --path: also what is not known to be committed."),
    ] = False,
    skip_damaged: Annotated[
        bool,
        typer.Option(
            "--skip-damaged",
            help="With --path: go on behind entries that are damaged; says which were left out.",
        ),
    ] = False,
    timeout: Timeout = TIMEOUT_S,
    group: Group = DEFAULT_GROUP,
) -> None:
    """Print committed entries, one a line; entries that only open a term are left out.

    With --follow it waits for a cluster that cannot be reached, and says so once. With --path it ends
    with status 3 where an entry is damaged or gone; --skip-damaged goes on if the index leads past it.

    Example: quorumlog read --servers 127.0.0.1:20911 --from 1000 --to 1010 --format json
    """
    _refuse_combinations(
        servers,
        path,
        # From the environment the list is there for other commands.
        both=path is not None and _is_on_command_line(context, "servers"),
        follow=follow,
        local=local,
        skip_damaged=skip_damaged,
        timeout=_is_on_command_line(context, "timeout"),
    )
    if first_index is not None and stop_index is not None and stop_index < first_index:
        raise ConfigError(f"--to {stop_index} is below --from {first_index}; swap them")
    write = _WRITERS[Format.JSON if json else output_format]
    if path is not None:
        wanted_group = group if _is_on_command_line(context, "group") else None
        entries = _stored(
            check_directory(path),
            wanted_group,
            first_index,
            stop_index,
            local=local,
            skip_damaged=skip_damaged,
        )
    else:
        assert servers is not None
        split_servers(servers)
        timeout_ms = FOLLOW_TIMEOUT_MS if follow else int(timeout * 1000)
        entries = _served(servers, group, timeout_ms, first_index, stop_index, follow=follow)
    out = sys.stdout.buffer
    for batch in entries:
        out.write(b"".join(map(write, batch)))
        out.flush()


def _is_on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse_combinations(
    servers: str | None,
    path: Path | None,
    *,
    both: bool,
    follow: bool,
    local: bool,
    skip_damaged: bool,
    timeout: bool,
) -> None:
    if both:
        raise ConfigError("--servers and --path exclude each other: read the cluster or the directory")
    if path is None and not servers:
        raise ConfigError("say what to read: --servers LIST, or --path DIR of a stopped member")
    if path is not None and follow:
        raise ConfigError("--follow needs --servers; a stopped member's directory does not grow")
    if path is None and local:
        raise ConfigError("--local goes with --path only; a server hands out nothing uncommitted")
    if path is None and skip_damaged:
        raise ConfigError("--skip-damaged goes with --path only; servers repair what is damaged")
    if timeout and (follow or path is not None):
        raise ConfigError("--timeout goes with --servers and without --follow, which waits for ever")


def _stored(
    path: str,
    group: str | None,
    first_index: int | None,
    stop_index: int | None,
    *,
    local: bool,
    skip_damaged: bool,
) -> Iterator[Iterable[Entry]]:
    with DirectoryReader(OsDisk(), path) as reader:
        # Directories of Java members do not tell.
        if group is not None and reader.group and group != reader.group:
            raise ConfigError(f"{path} is of group {reader.group}, not {group}; change --group")
        readable = (reader.ledger_end_index if local else reader.readable_index) + 1
        missing = reader.missing
        begin = max(reader.ledger_begin_index, 0)
        first = begin if first_index is None else first_index
        stop = max(readable, first + 1) if stop_index is None else stop_index
        is_at_end = stop_index is None and (first_index is None or first == readable)
        is_outside = first < begin or first >= readable
        is_missing = missing is not None and (stop_index is None or missing.index < stop_index)
        if first < stop and is_outside and not is_at_end and not (is_missing and first >= begin):
            raise _out_of_range(reader, first, readable, local=local)
        yield from _held(reader, first, min(stop, readable), skip_damaged=skip_damaged)
        if stop_index is not None and first < readable < stop and not is_missing:
            raise _out_of_range(reader, readable, readable, local=local)
        if stop_index is None and readable <= reader.ledger_end_index:
            note(
                f"{reader.ledger_end_index + 1 - readable} more entries, up to index"
                f" {reader.ledger_end_index}, are not known to be committed; --local prints them"
            )

        if is_missing:
            assert missing is not None
            if not skip_damaged:
                raise reader.refusal(missing)
            last_stop = missing.stop_index if stop_index is None else min(stop_index, missing.stop_index)
            yield from _held(reader, max(first, missing.index), last_stop, skip_damaged=True)


def _held(
    reader: DirectoryReader, first: int, stop: int, *, skip_damaged: bool
) -> Iterator[Iterable[Entry]]:
    if not skip_damaged:
        try:
            yield from (batch.entries() for batch in reader.batches(first, stop))
        except DirectoryDamaged as damage:
            raise DirectoryDamaged(
                f"{damage}; --skip-damaged goes on behind it",
                path=damage.path,
                position=damage.position,
                index=damage.index,
            ) from None
        return
    for piece in reader.pieces(first, stop):
        if isinstance(piece, Damage):
            note(f"skipped: {piece.path}: {piece.problem} ({piece.place})")
        else:
            yield piece.entries()


def _out_of_range(reader: DirectoryReader, index: int, readable: int, *, local: bool) -> IndexOutOfRange:
    """In the words of a server."""
    begin = max(reader.ledger_begin_index, 0)
    last = "ledger_end_index" if local else "committed_index"
    more = "" if index > reader.ledger_end_index else "; --local prints what may be uncommitted"
    return IndexOutOfRange(
        f"index {index} is not between ledger_begin_index {begin} and {last} {readable - 1}{more}",
        ledger_begin_index=begin,
        committed_index=reader.committed_index,
    )


def _served(
    servers: str,
    group: str,
    timeout_ms: int,
    first_index: int | None,
    stop_index: int | None,
    *,
    follow: bool,
) -> Iterator[Iterable[Entry]]:
    with connect(servers, group=group, timeout_ms=timeout_ms) as log:
        first = first_index or 0
        try:
            yield from _served_from(log, first, stop_index, follow=follow)
            return
        except IndexOutOfRange as error:
            # Nobody said where to begin, and the log no longer begins at 0.
            if first_index is not None or error.ledger_begin_index <= 0:
                raise _named(error, first, stop_index) from None
            first = error.ledger_begin_index
        try:
            yield from _served_from(log, first, stop_index, follow=follow)
        except IndexOutOfRange as error:
            raise _named(error, first, stop_index) from None


def _named(error: IndexOutOfRange, first: int, stop_index: int | None) -> IndexOutOfRange:
    """In the words of the options, where `--to` was the mistake."""
    if (
        stop_index is None
        or not error.ledger_begin_index <= first <= error.committed_index < stop_index - 1
    ):
        return error
    return IndexOutOfRange(
        f"--to {stop_index} is above the end of what is committed, index {error.committed_index}; what"
        " there is has been printed",
        ledger_begin_index=error.ledger_begin_index,
        committed_index=error.committed_index,
    )


def _served_from(
    log: LedgerClient, first: int, stop_index: int | None, *, follow: bool
) -> Iterator[Iterable[Entry]]:
    if not follow:
        yield from (batch.entries() for batch in log.read_batches(first, stop_index))
        return
    while True:
        try:
            for entry in log.tail(first):
                if stop_index is not None and entry.index >= stop_index:
                    return
                yield (entry,)
                first = entry.index + 1
                if first == stop_index:
                    return
        except _PASSING as error:
            note(f"waiting for the cluster, reading goes on at index {first}: {error}")
            _wait_for_answer(log)
            note("the cluster answers again")


_PASSING = (Unreachable, RequestTimeout, NotLeader, LeaderNotReady)
"""What a client that reads for ever sits out."""


def _wait_for_answer(log: LedgerClient) -> None:
    """Until some member leads."""
    while leader_of(log.status()) is None:
        time.sleep(ASK_AGAIN_S)  # a refused connection answers at once


# ---------------------------------------------------------------- formats

_encode = msgspec.json.Encoder().encode


def _as_text(entry: Entry) -> bytes:
    return entry.body + b"\n"


def _as_json(entry: Entry) -> bytes:
    row: dict[str, object] = {"index": entry.index, "term": entry.term}
    try:
        row["body"] = entry.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(entry.body).decode()
    return _encode(row) + b"\n"


def _as_hex(entry: Entry) -> bytes:
    return f"{entry.index} {entry.term} {entry.body.hex()}\n".encode()


_WRITERS: dict[Format, Callable[[Entry], bytes]] = {
    Format.TEXT: _as_text,
    Format.JSON: _as_json,
    Format.HEX: _as_hex,
}
