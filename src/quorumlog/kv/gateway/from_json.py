"""Requests of etcd's JSON gateway as ours: proto3's JSON. Names are those of the .proto file, or the
same in lowerCamelCase; numbers come as numbers or text, bytes in either alphabet of base64; what is not
given, or null, is 0, empty or false. etcd ignores a name that it does not know; here it is refused:
whoever misspells a condition has set none.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.requests.messages import WatchRequest
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
_RANGE_FIELDS = (
    *("key", "range_end", "limit", "revision", "sort_order", "sort_target", "serializable"),
    *("keys_only", "count_only", "min_mod_revision", "max_mod_revision"),
    *("min_create_revision", "max_create_revision"),
)
_WATCH_FIELDS = (
    *("key", "range_end", "start_revision", "progress_notify", "filters", "prev_kv", "watch_id"),
    "fragment",
)
NO_PUT, NO_DELETE = "NOPUT", "NODELETE"
_URL_SAFE = str.maketrans("-_", "+/")
_INTEGER = re.compile("-?[0-9]{1,20}")


def known(given: Given, *names: str) -> Given:
    """By these names, however they are spelt. Raises InvalidRequest."""
    spelt = {spelling: name for name in names for spelling in (name, _camel_case(name))}
    found: Given = {}
    for spelling, value in given.items():
        name = spelt.get(spelling)
        if name is None:
            raise InvalidRequest(
                f"there is no field {spelling!r}; there are {', '.join(names) or 'none'}"
            )
        if name in found:
            raise InvalidRequest(f"{name} is given in both spellings")
        found[name] = value
    return found


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def bytes_of(given: Given, name: str) -> bytes:
    value = given.get(name)
    if value is None:
        return b""
    try:
        standard = value.translate(_URL_SAFE).rstrip("=")
        return b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, AttributeError, ValueError):
        raise InvalidRequest(f"{name} is {value!r}, which is no base64") from None


def number_of(given: Given, name: str) -> int:
    number = _integer_of(given, name)
    if number < 0:
        raise InvalidRequest(f"{name} is {number}, which is below 0")
    return number


def number_or_none_of(given: Given, name: str) -> int:
    """One below 0 is as none, 0."""
    return max(0, _integer_of(given, name))


def _integer_of(given: Given, name: str) -> int:
    value = given.get(name)
    if value is None:
        return 0
    is_integral = type(value) is int or (isinstance(value, float) and value.is_integer())
    if not is_integral and not (isinstance(value, str) and _INTEGER.fullmatch(value)):
        raise InvalidRequest(f"{name} is {value!r}, which is no number")
    if abs(number := int(value)) > MOST:
        raise InvalidRequest(f"{name} is {number}, which is above {MOST}")
    return number


def flag_of(given: Given, name: str) -> bool:
    value = given.get(name)
    if not isinstance(value, bool | None):
        raise InvalidRequest(f"{name} is {value!r}, neither true nor false")
    return bool(value)


def _name_of(given: Given, name: str, names: tuple[str, ...]) -> str:
    """Of an enumeration: its name, or its place among `names`."""
    value = given.get(name)
    if value is None:
        return names[0]
    if type(value) is int and 0 <= value < len(names):
        return names[value]
    if value not in names:
        raise InvalidRequest(f"{name} is {value!r}; there are {', '.join(names)}")
    return str(value)


def _list_of(given: Given, name: str) -> list[Given]:
    value = given.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidRequest(f"{name} is no list of objects")
    return value


def put_of(given: Given) -> Put:
    given = known(given, "key", "value", "lease", "prev_kv", "ignore_value", "ignore_lease")
    return Put(
        bytes_of(given, "key"),
        bytes_of(given, "value"),
        number_of(given, "lease"),
        flag_of(given, "prev_kv"),
        flag_of(given, "ignore_value"),
        flag_of(given, "ignore_lease"),
    )


def delete_of(given: Given) -> DeleteRange:
    given = known(given, "key", "range_end", "prev_kv")
    return DeleteRange(bytes_of(given, "key"), bytes_of(given, "range_end"), flag_of(given, "prev_kv"))


def range_of(given: Given) -> Range:
    """`serializable` lets a member answer from what it has; being linearizable does no harm."""
    given = known(given, *_RANGE_FIELDS)
    flag_of(given, "serializable")
    by = _name_of(given, "sort_target", ("KEY", "VERSION", "CREATE", "MOD", "VALUE"))
    return Range(
        bytes_of(given, "key"),
        bytes_of(given, "range_end"),
        number_or_none_of(given, "limit"),
        number_or_none_of(given, "revision"),
        Target[by],
        _name_of(given, "sort_order", ("NONE", "ASCEND", "DESCEND")) == "DESCEND",
        flag_of(given, "keys_only"),
        flag_of(given, "count_only"),
        number_of(given, "min_mod_revision"),
        number_of(given, "max_mod_revision"),
        number_of(given, "min_create_revision"),
        number_of(given, "max_create_revision"),
    )


def txn_of(given: Given) -> Txn:
    given = known(given, "compare", "success", "failure")
    return Txn(
        [_compare_of(each) for each in _list_of(given, "compare")],
        [_operation_of(each) for each in _list_of(given, "success")],
        [_operation_of(each) for each in _list_of(given, "failure")],
    )


def _compare_of(given: Given) -> Compare:
    given = known(given, "result", "target", "key", "range_end", *_TARGET_FIELDS.values())
    target = Target[_name_of(given, "target", ("VERSION", "CREATE", "MOD", "VALUE", "LEASE"))]
    relation = Relation[_name_of(given, "result", ("EQUAL", "GREATER", "LESS", "NOT_EQUAL"))]
    field = _TARGET_FIELDS[target]
    than = bytes_of(given, field) if target is Target.VALUE else number_of(given, field)
    return Compare(bytes_of(given, "key"), target, relation, than, bytes_of(given, "range_end"))


def _operation_of(given: Given) -> Operation:
    asked = list(known(given, *_INNER).items())
    if len(asked) != 1 or not isinstance(asked[0][1], dict):
        raise InvalidRequest(f"an operation of a transaction is one of {', '.join(_INNER)}")
    name, inner = asked[0]
    return _INNER[name](inner)


_INNER: dict[str, Callable[[Given], Operation]] = {
    "request_range": range_of,
    "request_put": put_of,
    "request_delete_range": delete_of,
    "request_txn": txn_of,
}


def watch_of(given: Given) -> WatchRequest:
    """What a request for a watch is to create."""
    given = known(given, "create_request", "cancel_request", "progress_request")
    create = given.get("create_request")
    if not isinstance(create, dict):
        raise InvalidRequest("a watch begins with an object that says what to create")
    create = known(create, *_WATCH_FIELDS)
    for name in ("progress_notify", "fragment"):
        flag_of(create, name)
    filters = create.get("filters") or []
    if not isinstance(filters, list):
        raise InvalidRequest("filters is no list")
    names = {_name_of({"filter": each}, "filter", (NO_PUT, NO_DELETE)) for each in filters}
    return WatchRequest(
        key=bytes_of(create, "key"),
        end=bytes_of(create, "range_end"),
        first_revision=number_of(create, "start_revision"),
        prev_kv=flag_of(create, "prev_kv"),
        puts=NO_PUT not in names,
        deletions=NO_DELETE not in names,
    )
