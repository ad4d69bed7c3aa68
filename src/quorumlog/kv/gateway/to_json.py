"""Answers as etcd's JSON gateway gives them: numbers of 64 bits as text, bytes in base64, and what is 0,
empty or false left out."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from typing import Any

from quorumlog.errors import LedgerError, Overloaded
from quorumlog.kv.errors import (
    Compacted,
    FutureRevision,
    InvalidRequest,
    KeyNotFound,
    LeaseExists,
    LeaseNotFound,
    NoSpace,
)
from quorumlog.kv.requests.answers import DeleteAnswer, PutAnswer, RangeAnswer, TxnAnswer
from quorumlog.kv.requests.operations import KeyValue

Told = dict[str, Any]
INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED = 3, 5, 8
FAILED_PRECONDITION, OUT_OF_RANGE, UNAVAILABLE = 9, 11, 14
"""gRPC's codes."""
HTTP_STATUS = {NOT_FOUND: 404, RESOURCE_EXHAUSTED: 429, UNAVAILABLE: 503}

_ERRORS: dict[type[LedgerError], tuple[int, str]] = {
    Compacted: (OUT_OF_RANGE, "mvcc: required revision has been compacted"),
    FutureRevision: (OUT_OF_RANGE, "mvcc: required revision is a future revision"),
    LeaseNotFound: (NOT_FOUND, "requested lease not found"),
    LeaseExists: (FAILED_PRECONDITION, "lease already exists"),
    NoSpace: (RESOURCE_EXHAUSTED, "mvcc: database space exceeded"),
    KeyNotFound: (INVALID_ARGUMENT, "key not found"),
    Overloaded: (RESOURCE_EXHAUSTED, "too many requests"),
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


def error_of(error: LedgerError) -> tuple[int, Told]:
    """(HTTP status, body). Clients of etcd tell errors by these words."""
    code, words = _ERRORS.get(type(error), (UNAVAILABLE, "request timed out"))
    if isinstance(error, InvalidRequest):
        code = INVALID_ARGUMENT
        if _LONG_TTL in str(error):
            code = OUT_OF_RANGE
        words = next((told for ours, told in _INVALID.items() if ours in str(error)), str(error))
    message = f"etcdserver: {words}"
    told = {"error": message, "code": code, "message": message}
    return HTTP_STATUS.get(code, 400), told


def without_defaults(told: Told) -> Told:
    return {name: value for name, value in told.items() if value not in (0, "0", "", False, None, [])}


def key_value(kv: KeyValue) -> Told:
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


def answer(found: PutAnswer | DeleteAnswer | RangeAnswer | TxnAnswer, revision: int) -> Told:
    """Without its header. Answers in a transaction have the revision of it in theirs, except
    for inner transactions, as etcd has it."""
    if isinstance(found, PutAnswer):
        told: Told = {"prev_kv": None if found.prev_kv is None else key_value(found.prev_kv)}
    elif isinstance(found, DeleteAnswer):
        told = {"deleted": str(found.deleted), "prev_kvs": [key_value(kv) for kv in found.prev_kvs]}
    elif isinstance(found, RangeAnswer):
        told = {
            "kvs": [key_value(kv) for kv in found.kvs],
            "more": found.more,
            "count": str(found.count),
        }
    else:
        told = {
            "succeeded": found.succeeded,
            "responses": [_inner(each, revision) for each in found.answers],
        }
    return without_defaults(told)


_INNER: dict[type, str] = {
    PutAnswer: "response_put",
    DeleteAnswer: "response_delete_range",
    RangeAnswer: "response_range",
    TxnAnswer: "response_txn",
}


def _inner(found: PutAnswer | DeleteAnswer | RangeAnswer | TxnAnswer, revision: int) -> Told:
    header = {} if isinstance(found, TxnAnswer) else {"revision": str(revision)}
    return {_INNER[type(found)]: {"header": header, **answer(found, revision)}}
