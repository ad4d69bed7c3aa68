"""quorumlog kv put, get, delete, range, txn; lease; health, status, compact, snapshot."""

from __future__ import annotations

import os
import sys
from base64 import b64decode
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from quorumlog.cli.options import App, StoreServers, argument, option
from quorumlog.cli.output import (
    EXIT_REFUSED,
    is_json,
    note,
    print_json,
    say,
    spoken_size,
    tell,
    tell_rows,
    text_fields,
    write_bytes,
)
from quorumlog.errors import ConfigError, LedgerError, Refused

if TYPE_CHECKING:
    from quorumlog.kv import Compare, Item
    from quorumlog.kv.client.values import PutResult, TxnResult
    from quorumlog.kv.requests import Operation


Key = Annotated[str, argument("A key.", "KEY")]
Prefix = Annotated[bool, option("All keys with this prefix.")]
PrevKv = Annotated[bool, option("Also print the previous value.")]


def range_or_prefix(end: str | None, prefix: bool) -> None:
    """Neither is left out in silence: it may be a deletion."""
    if end is not None and prefix:
        raise typer.BadParameter("END and --prefix exclude each other: give one of them")


RELATIONS = {"=": 0, ">": 1, "<": 2, "!=": 3}


def row_of(item: Item[bytes | None]) -> dict[str, Any]:
    return {
        **text_fields("key", item.key),
        **text_fields("value", item.value),
        "create_revision": item.create_revision,
        "mod_revision": item.mod_revision,
        "version": item.version,
        "lease": item.lease,
    }


def print_bytes(*parts: bytes) -> None:
    sys.stdout.flush()
    write_bytes(b"\t".join(parts) + b"\n")


def given_value(value: str | None) -> bytes:
    """None: standard input."""
    return sys.stdin.buffer.read() if value is None else bytes_of(value)


def bytes_of(argument: str) -> bytes:
    """As the shell has given it, which need not be text."""
    return os.fsencode(argument)


def parse_txn(text: bytes) -> tuple[list[Compare], list[Operation], list[Operation]]:
    """Raises ConfigError."""
    import msgspec

    from quorumlog.kv.requests import MOST, Compare, DeleteRange, Put, Range, Relation, Target

    def data(row: dict[str, Any], name: str, default: bytes | None = None) -> bytes:
        if f"{name}_base64" in row:
            if name in row:
                raise ValueError(f"{name} and {name}_base64 exclude each other")
            try:
                return b64decode(row[f"{name}_base64"], validate=True)
            except (TypeError, ValueError):
                raise ValueError(f"{name}_base64 is not base64: {row[f'{name}_base64']!r}") from None
        if name in row:
            if type(row[name]) not in (str, int, float):
                raise ValueError(f"{name} must be text or a number, not {row[name]!r}")
            return str(row[name]).encode()
        if default is None:
            raise ValueError(f"{row} lacks {name!r}")
        return default

    def chosen(row: dict[str, Any], name: str, default: str, choices: Iterable[str]) -> str:
        word = str(row.get(name, default))
        if word not in choices:
            raise ValueError(f"{name} {word!r} is none of {', '.join(choices)}")
        return word

    def known(row: dict[str, Any], *names: str) -> None:
        """A name that is misspelt must not be left out in silence."""
        for name in row:
            if name not in names and name.removesuffix("_base64") not in names:
                raise ValueError(f"there is no {name!r}; there are {', '.join(names)}")

    def flag(row: dict[str, Any], name: str) -> bool:
        value = row.get(name, False)
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, not {value!r}")
        return value

    def number(row: dict[str, Any], name: str) -> int:
        value = row.get(name, 0)
        if type(value) is not int or not 0 <= value <= MOST:
            raise ValueError(f"{name} must be a number from 0 up, not {value!r}")
        return value

    def compare(row: dict[str, Any]) -> Compare:
        known(row, "key", "end", "target", "relation", "than")
        targets = [each.name.lower() for each in Target if each is not Target.KEY]
        target = Target[chosen(row, "target", "mod", targets).upper()]
        relation = RELATIONS[chosen(row, "relation", "=", RELATIONS)]
        than = data(row, "than")
        return Compare(
            data(row, "key"),
            target,
            Relation(relation),
            than if target is Target.VALUE else int(than),
            data(row, "end", b""),
        )

    def operation(row: dict[str, Any]) -> Operation:
        ((what, fields),) = row.items()
        key = data(fields, "key")
        end = data(fields, "end", b"")
        if what == "put":
            known(fields, "key", "value", "lease", "prev_kv")
            return Put(key, data(fields, "value"), number(fields, "lease"), flag(fields, "prev_kv"))
        if what == "delete":
            known(fields, "key", "end", "prev_kv")
            return DeleteRange(key, end, flag(fields, "prev_kv"))
        if what == "range":
            known(fields, "key", "end", "limit")
            return Range(key, end, number(fields, "limit"))
        raise ValueError(f"unknown operation {what!r}; known are put, delete, range")

    try:
        document = msgspec.json.decode(text)
        known(document, "compare", "then", "else")
        return (
            [compare(row) for row in document.get("compare", ())],
            [operation(row) for row in document.get("then", ())],
            [operation(row) for row in document.get("else", ())],
        )
    except (ValueError, KeyError, AttributeError, TypeError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"this is not a transaction ({error}); `quorumlog kv txn -h` shows an example"
        ) from None


def txn_row(result: TxnResult) -> dict[str, Any]:
    from quorumlog.kv.client.values import DeleteResult, PutResult, RangeResult

    answers: list[dict[str, Any]] = []
    for each in result.answers:
        if isinstance(each, PutResult):
            before = {} if each.previous is None else {"prev_kv": row_of(each.previous)}
            answers.append({"put": before})
        elif isinstance(each, DeleteResult):
            rows = [row_of(item) for item in each.previous]
            answers.append({"delete": {"deleted": each.deleted, **({"prev_kvs": rows} if rows else {})}})
        elif isinstance(each, RangeResult):
            rows = [row_of(item) for item in each.items]
            answers.append({"range": {"items": rows, "more": each.more, "total": each.total}})
        else:
            answers.append({"txn": txn_row(each)})
    return {"revision": result.revision, "succeeded": result.succeeded, "answers": answers}


Revision = Annotated[int, option("Read at this revision; 0: the newest.", min=0)]
Stale = Annotated[bool, option("Read from one member without confirming the leader; may be old.")]


def put(
    key: Key,
    at: StoreServers,
    value: Annotated[str | None, argument("Standard input if left out.", "[VALUE]")] = None,
    lease: Annotated[int, option("Lease of the key; 0: none.", "ID", min=0)] = 0,
    expect_revision: Annotated[
        int | None,
        option(
            "Only if this is the key's mod revision; 0: only if the key does not exist."
            " Status 1 if not.",
            min=0,
        ),
    ] = None,
    prev_kv: PrevKv = False,
) -> None:
    """Give a key a value; prints the revision.

    Example: quorumlog kv put color blue --servers 127.0.0.1:20921
    """
    from quorumlog.kv import Compare, Put, Relation, Target

    with at.connected() as kv:
        if expect_revision is None:
            done = kv.put(bytes_of(key), given_value(value), lease=lease, prev_kv=prev_kv)
        else:
            name = bytes_of(key)
            compare = Compare(name, Target.MOD, Relation.EQUAL, expect_revision)
            changed = kv.txn([compare], [Put(name, given_value(value), lease, prev_kv)])
            if not changed.succeeded:
                raise Refused(
                    f"{key} was not last changed at revision {expect_revision}: nothing was put"
                )
            done = cast("PutResult[bytes]", changed.answers[0])
    before = None if done.previous is None else row_of(done.previous)
    row = {"revision": done.revision, **({"prev_kv": before} if prev_kv else {})}
    tell(row, lambda: _show(done.revision, done.previous and [done.previous]))


def get(key: Key, at: StoreServers, revision: Revision = 0, stale: Stale = False) -> None:
    """Print the value of a key; status 1 if there is none.

    Example: quorumlog kv get color --servers 127.0.0.1:20921
    """
    with at.connected() as kv:
        item = kv.get(bytes_of(key), revision=revision, stale=stale)
    if item is None:
        raise Refused(f"there is no key {key}")
    tell(row_of(item), lambda: print_bytes(item.value))


def delete(
    key: Key,
    at: StoreServers,
    end: Annotated[str | None, argument("All keys from KEY up to this one, excluded.", "[END]")] = None,
    prefix: Prefix = False,
    prev_kv: PrevKv = False,
) -> None:
    """Delete a key, a range or a prefix; prints how many there were.

    Example: quorumlog kv delete jobs/ --prefix --servers 127.0.0.1:20921
    """
    range_or_prefix(end, prefix)
    with at.connected() as kv:
        if prefix:
            done = kv.delete_prefix(bytes_of(key), prev_kv=prev_kv)
        elif end is not None:
            done = kv.delete_range(bytes_of(key), bytes_of(end), prev_kv=prev_kv)
        else:
            done = kv.delete(bytes_of(key), prev_kv=prev_kv)
    more = {"prev_kvs": [row_of(item) for item in done.previous]} if prev_kv else {}
    row = {"revision": done.revision, "deleted": done.deleted, **more}
    tell(row, lambda: _show(done.deleted, done.previous))


def _show(number: int, items: Iterable[Item[bytes | None]] | None) -> None:
    say(str(number))
    for item in items or ():
        print_bytes(item.key, item.value or b"")


def range_(
    key: Annotated[str, argument("The first key; with --prefix, its beginning.")],
    at: StoreServers,
    end: Annotated[
        str | None, argument("End of the range, excluded; without it to the last key.", "[END]")
    ] = None,
    prefix: Prefix = False,
    limit: Annotated[int, option("Maximum number; 0: all.", min=0)] = 0,
    descending: Annotated[bool, option("In descending order.")] = False,
    keys_only: Annotated[bool, option("Only the keys.")] = False,
    count: Annotated[bool, option("Only their number.")] = False,
    revision: Revision = 0,
    stale: Stale = False,
) -> None:
    """Print keys and their values in order, separated by a tab.

    Example: quorumlog kv range jobs/ --prefix --servers 127.0.0.1:20921
    """
    from quorumlog.kv.client.values import key_of, range_of
    from quorumlog.kv.requests import FROM_KEY, Range

    range_or_prefix(end, prefix)
    if prefix:
        start, stop = range_of(bytes_of(key))
    else:
        start = key_of(bytes_of(key))
        stop = FROM_KEY if end is None else key_of(bytes_of(end))
    request = Range(
        start,
        stop,
        limit,
        revision,
        descending=descending,
        keys_only=keys_only,
        count_only=count,
        without_count=True,
    )
    with at.connected() as kv:
        found = kv.read_range(request, stale=stale)
    if count:
        tell({"count": found.total}, str(found.total))
        return
    for item in found.items:
        parts = (item.key,) if keys_only else (item.key, item.value or b"")
        tell(row_of(item), partial(print_bytes, *parts))


def txn(
    at: StoreServers,
    file: Annotated[Path | None, argument("JSON; standard input if left out.", "[FILE.json]")] = None,
) -> None:
    """Compare keys, and carry out one of two lists of operations, at one revision.

    Prints the result as JSON. Each comparison has a key, a `target` (mod, create, version, value,
    lease), a `relation` (=, !=, <, >) and `than`; each operation is a put (`key`, `value`, `lease`,
    `prev_kv`), a delete (`key`, `end`, `prev_kv`) or a range (`key`, `end`, `limit`). Binary values are
    base64: `key_base64`, `value_base64`.

    Example:

    \b
        echo '{"compare": [{"key": "a", "target": "create", "relation": "=", "than": 0}], \\
               "then": [{"put": {"key": "a", "value": "1"}}], \\
               "else": [{"range": {"key": "a"}}]}' \\
          | quorumlog kv txn --servers 127.0.0.1:20921
    """
    text = given_value(None) if file is None else file.read_bytes()
    compare, then, otherwise = parse_txn(text)
    with at.connected() as kv:
        print_json(txn_row(kv.txn(compare, then, otherwise)))


lease_app = App(
    "Leases: grant, keep alive, show, revoke. Keys put with a lease are deleted when it ends.",
    "quorumlog kv lease grant 30 --servers 127.0.0.1:20921",
)
LeaseId = Annotated[int, argument("Id of a lease.", "ID", min=1)]


@lease_app.command()
def grant(ttl: Annotated[float, argument("Seconds.", min=0.001)], at: StoreServers) -> None:
    """Grant a lease; prints its id. A TTL below three election time-outs is raised to that.

    Example: quorumlog kv lease grant 30 --servers 127.0.0.1:20921
    """
    with at.connected() as kv:
        granted = kv.grant(ttl, keeps_alive=False)
    tell({"lease": granted.id, "ttl_ms": granted.ttl_ms}, str(granted.id))


@lease_app.command("keep-alive")
def keep_alive(lease_id: LeaseId, at: StoreServers) -> None:
    """Renew a lease once.

    Example: quorumlog kv lease keep-alive 17 --servers 127.0.0.1:20921
    """
    with at.connected() as kv:
        ttl_ms = kv.keep_alive(lease_id)
    tell({"lease": lease_id, "ttl_ms": ttl_ms}, f"{ttl_ms} ms")


@lease_app.command()
def show(lease_id: LeaseId, at: StoreServers) -> None:
    """Time left of a lease, and its keys.

    Example: quorumlog kv lease show 17 --servers 127.0.0.1:20921
    """
    with at.connected() as kv:
        ttl_ms, left_ms, keys = kv.time_to_live(lease_id)
    rows = [text_fields("key", key) for key in keys]
    shown = [f"{left_ms} of {ttl_ms} ms are left"]
    shown += [key.decode(errors="backslashreplace") for key in keys]
    tell({"lease": lease_id, "ttl_ms": ttl_ms, "left_ms": left_ms, "keys": rows}, "\n".join(shown))


@lease_app.command()
def revoke(lease_id: LeaseId, at: StoreServers) -> None:
    """End a lease and delete its keys; prints their number.

    Example: quorumlog kv lease revoke 17 --servers 127.0.0.1:20921
    """
    with at.connected() as kv:
        deleted = kv.revoke(lease_id)
    tell({"lease": lease_id, "deleted": deleted}, str(deleted))


@lease_app.command("list")
def list_leases(at: StoreServers) -> None:
    """All leases: id and TTL as granted.

    Example: quorumlog kv lease list --servers 127.0.0.1:20921
    """
    with at.connected() as kv:
        found = kv.leases()
    for number, ttl_ms, _ in found:
        tell({"lease": number, "ttl_ms": ttl_ms}, f"{number}\t{ttl_ms} ms")


def health(at: StoreServers) -> None:
    """Check that the store accepts changes. Status 1 if not.

    It commits an entry that changes no key. Like a put, it retries a full disk until --timeout.

    Example: quorumlog kv health --servers 127.0.0.1:20921
    """
    reason = ""
    try:
        with at.connected() as kv:
            kv.health()
    except LedgerError as error:
        reason = str(error)
    if reason and not is_json():
        raise Refused(reason)
    tell({"healthy": not reason, "reason": reason}, "healthy")
    raise typer.Exit(EXIT_REFUSED if reason else 0)


def status(at: StoreServers) -> None:
    """Show each member: role, applied index, size and release.

    Example: quorumlog kv status --servers 127.0.0.1:20921
    """
    import msgspec

    rows: list[dict[str, Any]] = []
    cells: list[tuple[object, ...]] = []
    for address in at.addresses:
        try:
            with StoreServers(address, at.timeout).connected() as kv:
                found = kv.status()
        except LedgerError as error:
            cells.append((None, address, "not reachable", *[None] * 8))
            rows.append({"address": address, "reachable": False, "problem": str(error)})
            continue
        rows.append({"address": address, "reachable": True, **msgspec.structs.asdict(found)})
        size = f"{spoken_size(found.size_bytes)} of {spoken_size(found.quota_bytes)}"
        counts = (found.term, found.revision, found.compacted_revision, found.keys, found.leases)
        release = found.release or None
        cells.append((found.member_id, address, found.role, *counts, found.watches, size, release))
    silent = [row for row in rows if not row["reachable"]]
    counted = "term #, revision #, compacted #, keys #, leases #, watches #, size #"
    tell_rows(rows, f"id, address, role, {counted}, release", cells)
    for row in () if is_json() else silent:
        note(f"{row['address']}: {row['problem']}")
    if len(silent) == len(rows):
        raise typer.Exit(EXIT_REFUSED)


def compact(
    revision: Annotated[int, argument("Discard history below this revision.", "REVISION", min=1)],
    at: StoreServers,
) -> None:
    """Discard history: reads and watches of earlier revisions are refused.

    Example: quorumlog kv compact 120 --servers 127.0.0.1:20921
    """
    with at.connected() as kv:
        kv.compact(revision)
    tell({"compacted_revision": revision}, lambda: None)


def _in_the_way(file: Path) -> ConfigError:
    what = "exists: name another file, or give --replace" if file.is_file() else "is not a regular file"
    return ConfigError(f"FILE {file} {what}")


def snapshot(
    file: Annotated[Path, argument("Must not exist.", "FILE.jsonl")],
    at: StoreServers,
    replace: Annotated[bool, option("Replace FILE.")] = False,
) -> None:
    """Write every key as of one revision to a file, one JSON object per line.

    `quorumlog backup` copies the whole log with its history.

    Example: quorumlog kv snapshot keys.jsonl --servers 127.0.0.1:20921
    """
    import msgspec

    if file.exists() and not (replace and file.is_file()):
        raise _in_the_way(file)
    partial = file.with_name(f"{file.name}.partial")
    count = 0
    try:
        with at.connected() as kv, partial.open("wb") as out:
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
    tell({"file": str(file), "keys": count}, f"{count} keys in {file}")
