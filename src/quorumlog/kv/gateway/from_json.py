"""Requests of etcd's JSON gateway as ours. Numbers come as numbers or text, bytes in base64, what is not
given is 0, empty or false: proto3's JSON."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.requests.frames import Watch
from quorumlog.kv.requests.operations import (
    MOST,
    Compare,
    DeleteRange,
    Operation,
    Put,
    Range,
    Relation,
    Target,
    Txn,
)

Given = dict[str, Any]
_TARGET_FIELDS = {
    Target.VERSION: "version",
    Target.CREATE: "create_revision",
    Target.MOD: "mod_revision",
    Target.VALUE: "value",
    Target.LEASE: "lease",
}
NO_PUT, NO_DELETE = "NOPUT", "NODELETE"


def bytes_of(given: Given, name: str) -> bytes:
    value = given.get(name) or ""
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InvalidRequest(f"{name} is {value!r}, which is no base64") from None


def number_of(given: Given, name: str) -> int:
    value = given.get(name) or 0
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(f"{name} is {value!r}, which is no number") from None
    if number < 0:
        raise InvalidRequest(f"{name} is {number}, which is below 0")
    if number > MOST:
        raise InvalidRequest(f"{name} is {number}, which is above {MOST}")
    return number


def _name_of(given: Given, name: str, names: tuple[str, ...]) -> str:
    """Of an enumeration: its name, or its place among `names`."""
    value = given.get(name) or names[0]
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    if value not in names:
        raise InvalidRequest(f"{name} is {value!r}; there are {', '.join(names)}")
    return str(value)


def _list_of(given: Given, name: str) -> list[Given]:
    value = given.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidRequest(f"{name} is no list of objects")
    return value


def put_of(given: Given) -> Put:
    return Put(
        bytes_of(given, "key"),
        bytes_of(given, "value"),
        number_of(given, "lease"),
        bool(given.get("prev_kv")),
        bool(given.get("ignore_value")),
        bool(given.get("ignore_lease")),
    )


def delete_of(given: Given) -> DeleteRange:
    return DeleteRange(bytes_of(given, "key"), bytes_of(given, "range_end"), bool(given.get("prev_kv")))


def range_of(given: Given) -> Range:
    """`serializable` lets a member answer from what it has; being linearizable does no harm."""
    by = _name_of(given, "sort_target", ("KEY", "VERSION", "CREATE", "MOD", "VALUE"))
    return Range(
        bytes_of(given, "key"),
        bytes_of(given, "range_end"),
        number_of(given, "limit"),
        number_of(given, "revision"),
        Target[by],
        _name_of(given, "sort_order", ("NONE", "ASCEND", "DESCEND")) == "DESCEND",
        bool(given.get("keys_only")),
        bool(given.get("count_only")),
        number_of(given, "min_mod_revision"),
        number_of(given, "max_mod_revision"),
        number_of(given, "min_create_revision"),
        number_of(given, "max_create_revision"),
    )


def txn_of(given: Given) -> Txn:
    return Txn(
        [_compare_of(each) for each in _list_of(given, "compare")],
        [_operation_of(each) for each in _list_of(given, "success")],
        [_operation_of(each) for each in _list_of(given, "failure")],
    )


def _compare_of(given: Given) -> Compare:
    target = Target[_name_of(given, "target", ("VERSION", "CREATE", "MOD", "VALUE", "LEASE"))]
    relation = Relation[_name_of(given, "result", ("EQUAL", "GREATER", "LESS", "NOT_EQUAL"))]
    field = _TARGET_FIELDS[target]
    than = bytes_of(given, field) if target is Target.VALUE else number_of(given, field)
    return Compare(bytes_of(given, "key"), target, relation, than, bytes_of(given, "range_end"))


def _operation_of(given: Given) -> Operation:
    for name, of in _INNER.items():
        inner = given.get(name)
        if isinstance(inner, dict):
            return of(inner)
    raise InvalidRequest(f"an operation of a transaction is one of {', '.join(_INNER)}")


_INNER: dict[str, Callable[[Given], Operation]] = {
    "request_range": range_of,
    "request_put": put_of,
    "request_delete_range": delete_of,
    "request_txn": txn_of,
}


def watch_of(given: Given) -> Watch:
    filters = given.get("filters") or []
    if not isinstance(filters, list):
        raise InvalidRequest("filters is no list")
    names = {_name_of({"filter": each}, "filter", (NO_PUT, NO_DELETE)) for each in filters}
    return Watch(
        bytes_of(given, "key"),
        bytes_of(given, "range_end"),
        number_of(given, "start_revision"),
        bool(given.get("prev_kv")),
        NO_PUT not in names,
        NO_DELETE not in names,
    )
