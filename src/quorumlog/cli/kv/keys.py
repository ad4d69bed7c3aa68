"""quorumlog kv put, get, delete, range, txn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quorumlog.cli.kv.kv_options import (
    TIMEOUT_S,
    Key,
    Prefix,
    PrevKv,
    Servers,
    connected,
    range_or_prefix,
)
from quorumlog.cli.kv.rows import (
    bytes_of,
    given_value,
    parse_txn,
    print_bytes,
    print_item,
    row_of,
    txn_row,
)
from quorumlog.cli.options import Json, Timeout, named_path
from quorumlog.cli.output import print_json, say
from quorumlog.errors import Refused

Revision = Annotated[
    int,
    typer.Option("--revision", help="As it was then; 0: as it is now.", min=0, metavar="N"),
]
Stale = Annotated[
    bool, typer.Option("--stale", help="What the member that is asked has; it may be behind.")
]


def put(
    key: Key,
    servers: Servers,
    value: Annotated[
        str | None,
        typer.Argument(help="Standard input if it is left out.", metavar="[VALUE]", show_default=False),
    ] = None,
    lease: Annotated[
        int,
        typer.Option(
            "--lease",
            help="That the key ends with; 0: none.",
            min=0,
            metavar="ID",
        ),
    ] = 0,
    expect_revision: Annotated[
        int | None,
        typer.Option(
            "--expect-revision",
            help="Only if the key was changed last then; 0: only if it does not exist. Status 1 if not.",
            min=0,
            metavar="N",
        ),
    ] = None,
    prev_kv: PrevKv = False,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Give a key a value; prints the revision.

    Example: quorumlog kv put color blue --servers 127.0.0.1:20921
    """
    with connected(servers, timeout) as kv:
        if expect_revision is None:
            done = kv.put(bytes_of(key), given_value(value), lease=lease, prev_kv=prev_kv)
        else:
            changed = kv.compare_and_set(
                bytes_of(key), given_value(value), expected_revision=expect_revision, lease=lease
            )
            if changed is None:
                raise Refused(
                    f"{key} was not changed last at revision {expect_revision}: nothing is put"
                )
            done = changed
    if json:
        before = None if done.previous is None else row_of(done.previous)
        print_json({"revision": done.revision, **({"prev_kv": before} if prev_kv else {})})
        return
    say(str(done.revision))
    if done.previous is not None:
        print_item(done.previous, json=False)


def get(
    key: Key,
    servers: Servers,
    revision: Revision = 0,
    stale: Stale = False,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Print the value of a key; status 1 if there is none.

    Example: quorumlog kv get color --servers 127.0.0.1:20921
    """
    with connected(servers, timeout) as kv:
        item = kv.get(bytes_of(key), revision=revision, stale=stale)
    if item is None:
        raise Refused(f"there is no key {key}")
    if json:
        print_json(row_of(item))
    else:
        print_bytes(item.value)


def delete(
    key: Key,
    servers: Servers,
    end: Annotated[
        str | None,
        typer.Argument(help="All keys before this one, too.", metavar="[END]", show_default=False),
    ] = None,
    prefix: Prefix = False,
    prev_kv: PrevKv = False,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Delete a key, a range or a prefix; prints how many there were.

    Example: quorumlog kv delete jobs/ --prefix --servers 127.0.0.1:20921
    """
    range_or_prefix(end, prefix)
    with connected(servers, timeout) as kv:
        if prefix:
            done = kv.delete_prefix(bytes_of(key), prev_kv=prev_kv)
        elif end is not None:
            done = kv.delete_range(bytes_of(key), bytes_of(end), prev_kv=prev_kv)
        else:
            done = kv.delete(bytes_of(key), prev_kv=prev_kv)
    if json:
        rows = [row_of(item) for item in done.previous]
        more = {"prev_kvs": rows} if prev_kv else {}
        print_json({"revision": done.revision, "deleted": done.deleted, **more})
        return
    say(str(done.deleted))
    for item in done.previous:
        print_item(item, json=False)


def range_(
    key: Annotated[
        str, typer.Argument(help="The first key; with --prefix, its beginning.", show_default=False)
    ],
    servers: Servers,
    end: Annotated[
        str | None,
        typer.Argument(help="Behind the last one; to the end without.", metavar="[END]"),
    ] = None,
    prefix: Prefix = False,
    limit: Annotated[int, typer.Option("--limit", help="At most so many; 0: all.", min=0)] = 0,
    descending: Annotated[bool, typer.Option("--descending", help="The last one first.")] = False,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Without their values.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Only how many there are.")] = False,
    revision: Revision = 0,
    stale: Stale = False,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Print keys and their values in order, a tab between.

    Example: quorumlog kv range jobs/ --prefix --servers 127.0.0.1:20921
    """
    from quorumlog.kv.client.values import key_of, range_of
    from quorumlog.kv.requests.operations import FROM_KEY, Range

    range_or_prefix(end, prefix)
    if prefix:
        start, stop = range_of(bytes_of(key))
    else:
        start = key_of(bytes_of(key))
        stop = FROM_KEY if end is None else key_of(bytes_of(end))
    asked = Range(
        start,
        stop,
        limit,
        revision,
        descending=descending,
        keys_only=keys_only,
        count_only=count,
        without_count=True,
    )
    with connected(servers, timeout) as kv:
        found = kv.read_range(asked, stale=stale)
    if count:
        print_json({"count": found.total}) if json else say(str(found.total))
        return
    for item in found.items:
        if keys_only and not json:
            print_bytes(item.key)
        else:
            print_item(item, json=json)


def txn(
    servers: Servers,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="JSON; standard input if it is left out.",
            metavar="[FILE.json]",
            show_default=False,
            parser=named_path,
        ),
    ] = None,
    timeout: Timeout = TIMEOUT_S,
    json: Annotated[bool, typer.Option("--json", help="As it is without.", hidden=True)] = False,
) -> None:
    """Compare keys, and carry out one of two lists of operations, at one revision.

    Prints what came of it as JSON. Each comparison has a key, a `target` (mod, create, version, value,
    lease), a `relation` (=, !=, <, >) and `than`; each operation is a put (`key`, `value`, `lease`,
    `prev_kv`), a delete (`key`, `end`, `prev_kv`) or a range (`key`, `end`, `limit`). What is no text
    is given in base64: `key_base64`, `value_base64`.

    Example:

    \b
        echo '{"compare": [{"key": "a", "target": "create", "relation": "=", "than": 0}], \\
               "then": [{"put": {"key": "a", "value": "1"}}], \\
               "else": [{"range": {"key": "a"}}]}' \\
          | quorumlog kv txn --servers 127.0.0.1:20921
    """
    text = given_value(None) if file is None else file.read_bytes()
    compare, then, otherwise = parse_txn(text)
    with connected(servers, timeout) as kv:
        print_json(txn_row(kv.txn(compare, then, otherwise)))
