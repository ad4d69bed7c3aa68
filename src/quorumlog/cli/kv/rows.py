"""How keys and values are printed, and transactions given."""

from __future__ import annotations

import os
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quorumlog.cli.output import print_json, write_bytes
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.kv import Compare, Item
    from quorumlog.kv.client.values import TxnResult
    from quorumlog.kv.requests.operations import Operation

RELATIONS = {"=": 0, ">": 1, "<": 2, "!=": 3}


def text_of(name: str, data: bytes | None) -> dict[str, Any]:
    """`name` if it is text, else `name_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}


def row_of(item: Item[bytes | None]) -> dict[str, Any]:
    return {
        **text_of("key", item.key),
        **text_of("value", item.value),
        "create_revision": item.create_revision,
        "mod_revision": item.mod_revision,
        "version": item.version,
        "lease": item.lease,
    }


def print_bytes(*parts: bytes) -> None:
    sys.stdout.flush()
    write_bytes(b"\t".join(parts) + b"\n")


def print_item(item: Item[bytes | None], *, json: bool) -> None:
    if json:
        print_json(row_of(item))
    else:
        print_bytes(item.key, item.value or b"")


def given_value(value: str | None) -> bytes:
    """None: standard input."""
    return sys.stdin.buffer.read() if value is None else bytes_of(value)


def bytes_of(argument: str) -> bytes:
    """As the shell has given it, which need not be text."""
    return os.fsencode(argument)


def parse_txn(text: bytes) -> tuple[list[Compare], list[Operation], list[Operation]]:
    """Raises ConfigError."""
    import msgspec

    from quorumlog.kv.requests.operations import MOST, Compare, DeleteRange, Put, Range, Relation, Target

    def data(row: dict[str, Any], name: str) -> bytes:
        if f"{name}_base64" in row:
            return b64decode(row[f"{name}_base64"])
        if name not in row:
            raise ValueError(f"{row} lacks {name!r}")
        return str(row[name]).encode()

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
            raise ValueError(f"{name} is {value!r}, neither true nor false")
        return value

    def number(row: dict[str, Any], name: str) -> int:
        value = row.get(name, 0)
        if type(value) is not int or not 0 <= value <= MOST:
            raise ValueError(f"{name} is {value!r}, no number from 0 on")
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
            data(row, "end") if "end" in row or "end_base64" in row else b"",
        )

    def operation(row: dict[str, Any]) -> Operation:
        ((what, fields),) = row.items()
        key = data(fields, "key")
        end = data(fields, "end") if "end" in fields or "end_base64" in fields else b""
        if what == "put":
            known(fields, "key", "value", "lease", "prev_kv")
            return Put(key, data(fields, "value"), number(fields, "lease"), flag(fields, "prev_kv"))
        if what == "delete":
            known(fields, "key", "end", "prev_kv")
            return DeleteRange(key, end, flag(fields, "prev_kv"))
        if what == "range":
            known(fields, "key", "end", "limit")
            return Range(key, end, number(fields, "limit"))
        raise ValueError(f"there is no operation {what!r}; there are put, delete, range")

    try:
        given = msgspec.json.decode(text)
        known(given, "compare", "then", "else")
        return (
            [compare(row) for row in given.get("compare", ())],
            [operation(row) for row in given.get("then", ())],
            [operation(row) for row in given.get("else", ())],
        )
    except (ValueError, KeyError, AttributeError, TypeError, msgspec.MsgspecError) as error:
        raise ConfigError(f"this is no transaction ({error}); `quorumlog kv txn -h` shows one") from None


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
