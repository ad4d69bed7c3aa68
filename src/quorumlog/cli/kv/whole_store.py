"""quorumlog kv health, status, compact, snapshot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from quorumlog.cli.kv.kv_options import TIMEOUT_S, Servers, connected
from quorumlog.cli.kv.rows import row_of
from quorumlog.cli.options import Json, Timeout, named_path, split_servers
from quorumlog.cli.output import EXIT_REFUSED, note, print_json, print_table, say, spoken_size
from quorumlog.errors import ConfigError, LedgerError, Refused

LOOK_S = 2.0


def health(servers: Servers, timeout: Timeout = TIMEOUT_S, json: Json = False) -> None:
    """Whether the store takes changes. Status 1 if not.

    A change that changes nothing is stored by a majority. A full disk is waited for until --timeout, as
    a put waits for it.

    Example: quorumlog kv health --servers 127.0.0.1:20921
    """
    reason = ""
    try:
        with connected(servers, timeout) as kv:
            kv.health()
    except LedgerError as error:
        reason = str(error)
    if json:
        print_json({"healthy": not reason, "reason": reason})
        raise typer.Exit(EXIT_REFUSED if reason else 0)
    if reason:
        raise Refused(reason)
    say("healthy")


def status(servers: Servers, timeout: Timeout = LOOK_S, json: Json = False) -> None:
    """A row a member: its role, how far its store is, how large, and of which release.

    Example: quorumlog kv status --servers 127.0.0.1:20921
    """
    import msgspec

    rows: list[tuple[object, ...]] = []
    silent: list[tuple[str, str]] = []
    addresses = split_servers(servers)
    for address in addresses:
        try:
            with connected(address, timeout) as kv:
                found = kv.status()
        except LedgerError as error:
            silent.append((address, str(error)))
            rows.append((None, address, "not reachable", *[None] * (len(STATUS) - 3)))
            if json:
                print_json({"address": address, "reachable": False, "problem": str(error)})
            continue
        if json:
            print_json({"address": address, "reachable": True, **msgspec.structs.asdict(found)})
        size = f"{spoken_size(found.size_bytes)} of {spoken_size(found.quota_bytes)}"
        counts = (found.term, found.revision, found.compacted_revision, found.keys, found.leases)
        release = found.release or None
        rows.append((found.member_id, address, found.role, *counts, found.watches, size, release))
    if not json:
        print_table(STATUS, rows)
        for address, problem in silent:
            note(f"{address}: {problem}")
    if len(silent) == len(addresses):
        raise typer.Exit(EXIT_REFUSED)


STATUS = {
    "id": False,
    "address": False,
    "role": False,
    "term": True,
    "revision": True,
    "compacted": True,
    "keys": True,
    "leases": True,
    "watches": True,
    "size": True,
    "release": False,
}


def compact(
    revision: Annotated[
        int,
        typer.Argument(
            help="History below it ends.",
            metavar="REVISION",
            min=1,
            show_default=False,
        ),
    ],
    servers: Servers,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """End history: reads of earlier revisions and watches from them are refused from now on.

    Example: quorumlog kv compact 120 --servers 127.0.0.1:20921
    """
    with connected(servers, timeout) as kv:
        kv.compact(revision)
    if json:
        print_json({"compacted_revision": revision})


def _in_the_way(file: Path) -> ConfigError:
    what = "exists: name another file, or say --replace" if file.is_file() else "is no ordinary file"
    return ConfigError(f"FILE {file} {what}")


def snapshot(
    file: Annotated[
        Path,
        typer.Argument(help="Must not exist.", metavar="FILE.jsonl", parser=named_path),
    ],
    servers: Servers,
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of FILE.")] = False,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Write every key as of one revision to a file, a JSON object a line.

    For the whole log with its history there is `quorumlog backup`.

    Example: quorumlog kv snapshot keys.jsonl --servers 127.0.0.1:20921
    """
    import msgspec

    if file.exists() and not (replace and file.is_file()):
        raise _in_the_way(file)
    partial = file.with_name(f"{file.name}.partial")
    count = 0
    try:
        with connected(servers, timeout) as kv, partial.open("wb") as out:
            try:
                for item in kv.scan():
                    out.write(msgspec.json.encode(row_of(item)) + b"\n")
                    count += 1
                out.flush()
                os.fsync(out.fileno())
                if replace:
                    partial.replace(file)
                else:
                    file.hardlink_to(partial)  # which replaces nothing that has come meanwhile
            finally:
                partial.unlink(missing_ok=True)
    except FileExistsError:
        raise _in_the_way(file) from None
    except OSError as error:
        raise ConfigError(f"FILE {file}: {error.strerror}; name another file") from None
    print_json({"file": str(file), "keys": count}) if json else say(f"{count} keys in {file}")
