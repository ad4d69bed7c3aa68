"""Refusals of the key-value store: codes 510 to 519, and their meaning for the caller."""

from __future__ import annotations

from quorumlog import errors
from quorumlog.errors import BadRequest, LedgerError, Refused
from quorumlog.net.errors import error_with


class KeyValueError(LedgerError):
    """An error of the store. Nothing has changed, except with ValueUnreadable and LockLost."""

    code = 510


class Compacted(KeyValueError):
    """The requested revision is below `compacted_revision`: its history was compacted."""

    code = 511

    def __init__(self, message: str = "", *, compacted_revision: int = 0) -> None:
        super().__init__(message)
        self.compacted_revision = compacted_revision


class FutureRevision(KeyValueError):
    """The requested revision is above the newest one."""

    code = 512


class LeaseNotFound(KeyValueError):
    """The lease was revoked, has expired, or never existed."""

    code = 513


class LeaseExists(KeyValueError):
    """A lease with this id exists."""

    code = 514


class NoSpace(KeyValueError, Refused):
    """The store has reached `quota_bytes`: delete and compact, which still work."""

    code = 515


class InvalidRequest(KeyValueError, BadRequest):
    """The request is invalid or too large; the message says which."""

    code = 516


class KeyNotFound(KeyValueError):
    """A put with `keeps_value` or `keeps_lease` of a key that does not exist."""

    code = 517


class ClusterChanged(KeyValueError, errors.ClusterChanged):
    """A revision, watch or lease belongs to another cluster, such as the one before a restore: start
    over."""

    code = 518


class LockLost(KeyValueError):
    """The lease of a lock or of a leadership has ended; it is no longer held."""

    code = 519


class ValueUnreadable(KeyValueError, ValueError):
    """The codec of this client cannot decode the value of `key`; its bytes are `data`: another program
    wrote it, perhaps with another codec. The rest of the request, such as a put with `prev_kv`, is
    done."""

    def __init__(self, message: str = "", *, key: bytes = b"", data: bytes = b"") -> None:
        super().__init__(message)
        self.key = key
        self.data = data


def error_of(code: int, message: str, number: int = 0) -> LedgerError:
    """As it was before it became an answer; `number`: the compacted revision."""
    return error_with(code, message, KeyValueError, {"compacted_revision": number})
