"""Requests and answers in the JSON of etcd's gateway."""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

from quorumlog.errors import Forbidden, LedgerError, Overloaded
from quorumlog.kv.errors import (
    Compacted,
    FutureRevision,
    InvalidRequest,
    KeyNotFound,
    LeaseExists,
    LeaseNotFound,
    NoSpace,
)
from quorumlog.kv.requests import (
    MOST,
    Compare,
    DeleteAnswer,
    DeleteRange,
    KeyValue,
    Operation,
    Put,
    PutAnswer,
    Range,
    RangeAnswer,
    Relation,
    Target,
    Txn,
    TxnAnswer,
    WatchRequest,
)

JsonRequest = dict[str, Any]
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


def known(given: JsonRequest, *names: str) -> JsonRequest:
    """By these names, however they are spelt. Raises InvalidRequest."""
    spelt = {spelling: name for name in names for spelling in (name, _camel_case(name))}
    found: JsonRequest = {}
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


def bytes_of(given: JsonRequest, name: str) -> bytes:
    value = given.get(name)
    if value is None:
        return b""
    try:
        standard = value.translate(_URL_SAFE).rstrip("=")
        return b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, AttributeError, ValueError):
        raise InvalidRequest(f"{name} is {value!r}, which is no base64") from None


def number_of(given: JsonRequest, name: str) -> int:
    number = _integer_of(given, name)
    if number < 0:
        raise InvalidRequest(f"{name} is {number}, which is below 0")
    return number


def number_or_none_of(given: JsonRequest, name: str) -> int:
    """One below 0 is as none, 0."""
    return max(0, _integer_of(given, name))


def _integer_of(given: JsonRequest, name: str) -> int:
    value = given.get(name)
    if value is None:
        return 0
    is_integral = type(value) is int or (isinstance(value, float) and value.is_integer())
    if not is_integral and not (isinstance(value, str) and _INTEGER.fullmatch(value)):
        raise InvalidRequest(f"{name} is {value!r}, which is no number")
    if abs(number := int(value)) > MOST:
        raise InvalidRequest(f"{name} is {number}, which is above {MOST}")
    return number


def flag_of(given: JsonRequest, name: str) -> bool:
    value = given.get(name)
    if not isinstance(value, bool | None):
        raise InvalidRequest(f"{name} must be true or false, not {value!r}")
    return bool(value)


def _name_of(given: JsonRequest, name: str, names: tuple[str, ...]) -> str:
    """Of an enumeration: its name, or its place among `names`."""
    value = given.get(name)
    if value is None:
        return names[0]
    if type(value) is int and 0 <= value < len(names):
        return names[value]
    if value not in names:
        raise InvalidRequest(f"{name} is {value!r}; there are {', '.join(names)}")
    return str(value)


def _list_of(given: JsonRequest, name: str) -> list[JsonRequest]:
    value = given.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidRequest(f"{name} is no list of objects")
    return value


def put_of(given: JsonRequest) -> Put:
    given = known(given, "key", "value", "lease", "prev_kv", "ignore_value", "ignore_lease")
    return Put(
        bytes_of(given, "key"),
        bytes_of(given, "value"),
        number_of(given, "lease"),
        flag_of(given, "prev_kv"),
        flag_of(given, "ignore_value"),
        flag_of(given, "ignore_lease"),
    )


def delete_of(given: JsonRequest) -> DeleteRange:
    given = known(given, "key", "range_end", "prev_kv")
    return DeleteRange(bytes_of(given, "key"), bytes_of(given, "range_end"), flag_of(given, "prev_kv"))


def range_of(given: JsonRequest) -> Range:
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


def txn_of(given: JsonRequest) -> Txn:
    given = known(given, "compare", "success", "failure")
    return Txn(
        [_compare_of(each) for each in _list_of(given, "compare")],
        [_operation_of(each) for each in _list_of(given, "success")],
        [_operation_of(each) for each in _list_of(given, "failure")],
    )


def _compare_of(given: JsonRequest) -> Compare:
    given = known(given, "result", "target", "key", "range_end", *_TARGET_FIELDS.values())
    target = Target[_name_of(given, "target", ("VERSION", "CREATE", "MOD", "VALUE", "LEASE"))]
    relation = Relation[_name_of(given, "result", ("EQUAL", "GREATER", "LESS", "NOT_EQUAL"))]
    field = _TARGET_FIELDS[target]
    than = bytes_of(given, field) if target is Target.VALUE else number_of(given, field)
    return Compare(bytes_of(given, "key"), target, relation, than, bytes_of(given, "range_end"))


def _operation_of(given: JsonRequest) -> Operation:
    asked = list(known(given, *_INNER).items())
    if len(asked) != 1 or not isinstance(asked[0][1], dict):
        raise InvalidRequest(f"an operation of a transaction is one of {', '.join(_INNER)}")
    name, inner = asked[0]
    return _INNER[name](inner)


_INNER: dict[str, Callable[[JsonRequest], Operation]] = {
    "request_range": range_of,
    "request_put": put_of,
    "request_delete_range": delete_of,
    "request_txn": txn_of,
}


def watch_of(given: JsonRequest) -> WatchRequest:
    """What a request for a watch is to create."""
    given = known(given, "create_request", "cancel_request", "progress_request")
    create = given.get("create_request")
    if not isinstance(create, dict):
        raise InvalidRequest("a watch begins with an object with what to create")
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


# ----------------------------------------------------------------
# Answers as etcd's JSON gateway gives them: numbers of 64 bits as text, bytes in base64, and what is 0,
# empty or false left out.


JsonResponse = dict[str, Any]
INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED = 3, 5, 8
FAILED_PRECONDITION, OUT_OF_RANGE, UNAVAILABLE = 9, 11, 14
PERMISSION_DENIED, UNAUTHENTICATED = 7, 16
"""gRPC's codes."""
HTTP_STATUS = {
    NOT_FOUND: 404,
    RESOURCE_EXHAUSTED: 429,
    UNAVAILABLE: 503,
    PERMISSION_DENIED: 403,
    UNAUTHENTICATED: 401,
}
NO_USERS = FAILED_PRECONDITION, "authentication is not enabled"
NO_USER = INVALID_ARGUMENT, "user name is empty"
WRONG_PASSWORD = INVALID_ARGUMENT, "authentication failed, invalid user ID or password"
WRONG_TOKEN = UNAUTHENTICATED, "invalid auth token"

_ERRORS: dict[type[LedgerError], tuple[int, str]] = {
    Compacted: (OUT_OF_RANGE, "mvcc: required revision has been compacted"),
    FutureRevision: (OUT_OF_RANGE, "mvcc: required revision is a future revision"),
    LeaseNotFound: (NOT_FOUND, "requested lease not found"),
    LeaseExists: (FAILED_PRECONDITION, "lease already exists"),
    NoSpace: (RESOURCE_EXHAUSTED, "mvcc: database space exceeded"),
    KeyNotFound: (INVALID_ARGUMENT, "key not found"),
    Overloaded: (RESOURCE_EXHAUSTED, "too many requests"),
    Forbidden: (PERMISSION_DENIED, "permission denied"),
}
_LONG_TTL = "a TTL must be"
_INVALID = {
    "at least one byte": "key is not provided",
    "twice": "duplicate key given in txn request",
    "keeps the value": "value is provided",
    "keeps the lease": "lease is provided",
    "operations in each": "too many operations in txn request",
    "a request of": "request is too large",
    _LONG_TTL: "too large lease TTL",
}


def number_of_text(text: str) -> int:
    """Members and clusters have a number of 63 bits in etcd."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def error_of(error: LedgerError) -> tuple[int, JsonResponse]:
    """(HTTP status, body). Clients of etcd tell errors by these words."""
    code, words = _ERRORS.get(type(error), (UNAVAILABLE, "request timed out"))
    if isinstance(error, InvalidRequest):
        code = INVALID_ARGUMENT
        if _LONG_TTL in str(error):
            code = OUT_OF_RANGE
        words = next((response for ours, response in _INVALID.items() if ours in str(error)), str(error))
    return refusal(code, words)


def refusal(code: int, words: str) -> tuple[int, JsonResponse]:
    message = f"etcdserver: {words}"
    response = {"error": message, "code": code, "message": message}
    return HTTP_STATUS.get(code, 400), response


def without_defaults(response: JsonResponse) -> JsonResponse:
    return {
        name: value for name, value in response.items() if value not in (0, "0", "", False, None, [])
    }


def key_value(kv: KeyValue) -> JsonResponse:
    return without_defaults(
        {
            "key": b64encode(kv.key).decode(),
            "create_revision": str(kv.create_revision),
            "mod_revision": str(kv.mod_revision),
            "version": str(kv.version),
            "value": b64encode(kv.value).decode(),
            "lease": str(kv.lease),
        }
    )


def answer(found: PutAnswer | DeleteAnswer | RangeAnswer | TxnAnswer, revision: int) -> JsonResponse:
    """Without its header. Answers in a transaction have the revision of it in theirs, except
    for inner transactions, as etcd has it."""
    if isinstance(found, PutAnswer):
        response: JsonResponse = {"prev_kv": None if found.prev_kv is None else key_value(found.prev_kv)}
    elif isinstance(found, DeleteAnswer):
        response = {"deleted": str(found.deleted), "prev_kvs": [key_value(kv) for kv in found.prev_kvs]}
    elif isinstance(found, RangeAnswer):
        response = {
            "kvs": [key_value(kv) for kv in found.kvs],
            "more": found.more,
            "count": str(found.count),
        }
    else:
        response = {
            "succeeded": found.succeeded,
            "responses": [_inner(each, revision) for each in found.answers],
        }
    return without_defaults(response)


_INNER_ANSWERS: dict[type, str] = {
    PutAnswer: "response_put",
    DeleteAnswer: "response_delete_range",
    RangeAnswer: "response_range",
    TxnAnswer: "response_txn",
}


def _inner(found: PutAnswer | DeleteAnswer | RangeAnswer | TxnAnswer, revision: int) -> JsonResponse:
    header = {} if isinstance(found, TxnAnswer) else {"revision": str(revision)}
    return {_INNER_ANSWERS[type(found)]: {"header": header, **answer(found, revision)}}
