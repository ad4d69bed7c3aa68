"""Errors as gRPC codes and etcd's messages: etcd clients distinguish errors by both."""

from __future__ import annotations

from enum import IntEnum

from quorumlog.errors import (
    BadRequest,
    Forbidden,
    LedgerError,
    MembershipRefused,
    NotAuthenticated,
    Overloaded,
    TransferFailed,
)
from quorumlog.kv.errors import (
    Compacted,
    FutureRevision,
    InvalidRequest,
    KeyNotFound,
    LeaseExists,
    LeaseNotFound,
    NoSpace,
)


class Code(IntEnum):
    """gRPC status codes used here."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """The error of a refused call. `words`: the message that clients compare."""

    def __init__(self, code: Code, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.words = words


def etcd_error(code: Code, words: str) -> RpcError:
    return RpcError(code, f"etcdserver: {words}")


NO_USERS = etcd_error(Code.FAILED_PRECONDITION, "authentication is not enabled")
NO_USER = etcd_error(Code.INVALID_ARGUMENT, "user name is empty")
WRONG_PASSWORD = etcd_error(Code.INVALID_ARGUMENT, "authentication failed, invalid user ID or password")
WRONG_TOKEN = etcd_error(Code.UNAUTHENTICATED, "invalid auth token")


class TokenEnded(NotAuthenticated):
    """The token ended: the password has changed, or the user was removed."""

    def __init__(self) -> None:
        super().__init__("log in again: this token has ended")


_ERRORS: dict[type[LedgerError], tuple[Code, str]] = {
    Compacted: (Code.OUT_OF_RANGE, "mvcc: required revision has been compacted"),
    FutureRevision: (Code.OUT_OF_RANGE, "mvcc: required revision is a future revision"),
    LeaseNotFound: (Code.NOT_FOUND, "requested lease not found"),
    LeaseExists: (Code.FAILED_PRECONDITION, "lease already exists"),
    NoSpace: (Code.RESOURCE_EXHAUSTED, "mvcc: database space exceeded"),
    KeyNotFound: (Code.INVALID_ARGUMENT, "key not found"),
    Forbidden: (Code.PERMISSION_DENIED, "permission denied"),
    NotAuthenticated: (Code.INVALID_ARGUMENT, "user name is empty"),
    TokenEnded: (Code.UNAUTHENTICATED, "invalid auth token"),
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


def error_of(error: LedgerError) -> RpcError:
    """The gRPC error of an error of the store or the log. An unknown outcome is UNAVAILABLE, after
    which no etcd client repeats a write."""
    if isinstance(error, InvalidRequest):
        said = str(error)
        code = Code.OUT_OF_RANGE if _LONG_TTL in said else Code.INVALID_ARGUMENT
        return etcd_error(code, next((known for ours, known in _INVALID.items() if ours in said), said))
    if isinstance(error, Overloaded):
        return etcd_error(Code.RESOURCE_EXHAUSTED, "too many requests")
    if isinstance(error, MembershipRefused | TransferFailed | BadRequest):
        return etcd_error(Code.FAILED_PRECONDITION, str(error))
    return etcd_error(*_ERRORS.get(type(error), (Code.UNAVAILABLE, "request timed out")))
