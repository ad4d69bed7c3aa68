"""What the key-value store refuses: codes 510 to 519, and what each means for who asked."""

from __future__ import annotations

from quorumlog import errors
from quorumlog.errors import BadRequest, LedgerError, Refused
from quorumlog.net.errors import error_with


class KeyValueError(LedgerError):
    """The store refuses a request. The log is well, and nothing has changed."""

    code = 510


class Compacted(KeyValueError):
    """A revision that was asked for is below `compacted_revision`: its history is gone."""

    code = 511

    def __init__(self, message: str = "", *, compacted_revision: int = 0) -> None:
        super().__init__(message)
        self.compacted_revision = compacted_revision


class FutureRevision(KeyValueError):
    """A revision that no key has been changed at yet."""

    code = 512


class LeaseNotFound(KeyValueError):
    """The lease was revoked, has run out, or never was."""

    code = 513


class LeaseExists(KeyValueError):
    """A lease of this id stands."""

    code = 514


class NoSpace(KeyValueError, Refused):
    """The store holds `quota_bytes`: delete and compact, which go on working."""

    code = 515


class InvalidRequest(KeyValueError, BadRequest):
    """It makes no sense, or is larger than a request may be; the message says which."""

    code = 516


class KeyNotFound(KeyValueError):
    """A put that keeps the value or the lease of a key that does not exist."""

    code = 517


class ClusterChanged(KeyValueError, errors.ClusterChanged):
    """A cursor, a watch or a lease is of another cluster, such as the one before a restore: begin
    anew."""

    code = 518


class LockLost(KeyValueError):
    """The lease of a lock or of a leadership has ended: whoever held it does so no more."""

    code = 519


class ValueUnreadable(KeyValueError, ValueError):
    """The codec of this client cannot read the value of `key`, which is `data`: another program has
    written it, perhaps with another codec. What was asked for beside that, such as a put with `prev_kv`,
    is done."""

    def __init__(self, message: str = "", *, key: bytes = b"", data: bytes = b"") -> None:
        super().__init__(message)
        self.key = key
        self.data = data


def error_of(code: int, message: str, number: int = 0) -> LedgerError:
    """As it was before it became an answer; `number`: the compacted revision."""
    return error_with(code, message, KeyValueError, {"compacted_revision": number})
