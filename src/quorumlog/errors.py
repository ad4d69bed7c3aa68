"""Three kinds of failure (docs/architecture.md, "Three kinds of failure").

    Exception
    +-- LedgerError            expected by callers; travels the wire as its `code`
    |   +-- Refused            certainly not done: repeating it is safe
    |   |   +-- NotLeader, LeaderNotReady, LeaderTransferring, DiskFull, OutOfSequence,
    |   |       Overloaded (PendingFull, ConnectionFull), RequestTimeout, Unreachable (WrongPort),
    |   |       UnknownGroup, BodyTooLarge, BadRequest, TransferFailed, ClockNotReset,
    |   |       UpgradeNotFinished, WrongLastIndex, UnknownReader, ReaderMoved, TooManyReaders,
    |   |       TooManyProducers, SequenceGap, ProducerFenced, ProducerExpired, MembershipRefused,
    |   |       LevelNotReported, UnknownMachine, StepOverRefused, TooStale, NotCaughtUp, Forbidden,
    |   |       NotAuthenticated
    |   +-- AlreadyCommitted   of a session: in the log already, at forgotten indices
    |   +-- OutcomeUnknown     any prefix may be in the log, or may still commit
    |   |   +-- ResultUnknown  committed; the state machine's results are unknown
    |   +-- CommandError       a state machine refuses a command, whose entry stays in the log
    |   +-- IndexOutOfRange    a read below the begin or above the committed index
    |   +-- RangeDamaged       a read of entries that this member's disk no longer holds as written
    +-- ConfigError            an option, a file or a directory has to be changed
    +-- ProtocolViolation      invalid bytes from a peer: the connection closes
    +-- StoreFailure           internal: the disk fails, or an invariant of the files is broken
        +-- DirectoryDamaged   recognised damage at or below the durable point

The codes are DLedger's numbers (docs/formats.md, response codes).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar


class LedgerError(Exception):
    """An outcome that callers are expected to handle. Constructor arguments are attributes of the same
    name, and are sent over the wire (`net/errors.py`)."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False
    """True: certainly nothing was written, and the same request may succeed a little later."""
    is_elsewhere: ClassVar[bool] = False
    """True: not here, perhaps at another member; a client asks that one."""
    of_code: ClassVar[dict[int, type[LedgerError]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" in vars(cls):
            LedgerError.of_code.setdefault(cls.code, cls)

    def __init__(
        self,
        message: str = "",
        *,
        leader_id: str | None = None,
        leader_address: str | None = None,
        retry_after_ms: int = 0,
    ) -> None:
        super().__init__(message or type(self).__name__)
        self.leader_id = leader_id
        self.leader_address = leader_address
        self.retry_after_ms = retry_after_ms


class Refused(LedgerError):
    """The request was certainly not carried out; repeating it is safe."""


class NotLeader(Refused):
    """Sent to a member that is not the leader; `leader_id` and `leader_address` name the leader, if
    known."""

    code = 404
    retriable = True
    is_elsewhere = True


class LeaderNotReady(Refused):
    """There is no leader at the moment, or the group has not formed yet."""

    code = 505
    retriable = True
    is_elsewhere = True


class LeaderTransferring(Refused):
    """The leader is handing over; ends within one election time-out."""

    code = 506
    retriable = True


class Overloaded(Refused):
    """More requests at once than the leader accepts; retry after `retry_after_ms`. Accepted requests
    are answered within a bounded time."""

    code = 507
    retriable = True


class PendingFull(Overloaded):
    """The leader holds as many uncommitted bytes as `max_uncommitted_bytes` allows."""

    code = 503


class ConnectionFull(Overloaded):
    """One connection has reached its limit in flight: `max_connection_bytes` of appends, 1,000 reads
    that wait, 32 MiB of a store's requests that are not answered, or 10,000 watches."""

    code = 508


class DiskFull(Refused):
    """Appends are refused until space returns; reads and elections continue."""

    code = 415
    retriable = True


class OutOfSequence(Refused):
    """A request of a stream arrived without the one before it; resend from the first refused one."""

    code = 408
    retriable = True


class RequestTimeout(Refused):
    """The deadline passed before the request could be handed to a leader."""

    code = 300
    retriable = True


class Unreachable(Refused):
    """No listed server could be reached."""

    code = 302
    retriable = True


class WrongPort(Unreachable):
    """Another product or other software listens at the address: retrying does not help."""

    code = 303
    retriable = False


class ClusterChanged(Refused):
    """The servers belong to another cluster than the one this client has connected to, as after a
    restore: create a new client and start over."""

    code = 304


class UnknownGroup(Refused):
    """The server does not serve the group that the request names."""

    code = 400

    def __init__(self, message: str = "", *, groups: Iterable[str] = ()) -> None:
        """`groups`: served by it; empty: unknown."""
        super().__init__(message)
        self.groups = tuple(groups)


class BodyTooLarge(Refused):
    """An entry above `max_entry_bytes`, or a request above the frame limit."""

    code = 411


class BadRequest(Refused):
    """An invalid argument, such as an empty batch; the message names it."""

    code = 420


class TransferFailed(Refused):
    """Leadership was not transferred; the message gives the reason, and the leader is unchanged."""

    code = 418


class ClockNotReset(Refused):
    """The log's clock was not reset; the message names the clocks that differ."""

    code = 419


class UpgradeNotFinished(Refused):
    """This needs log entries that earlier releases do not know: run `quorumlog upgrade finish` first."""

    code = 427


class Forbidden(Refused):
    """The user lacks a right; the message names it."""

    code = 430


class NotAuthenticated(Refused):
    """The servers have users, and this client gave no user, or a wrong password."""

    code = 431


NO_RIGHT = (Forbidden, NotAuthenticated)
"""Retry loops stop at these errors: retrying does not help until an administrator acts."""


class WrongLastIndex(Refused):
    """The `expected_last` of a conditional append is not the index of the last data entry; nothing was
    written. `expected` is that argument, `actual` the index of the last data entry, which is committed
    (-1: there is none). If retention has deleted all data entries, `actual` is the index before the
    log's first entry."""

    code = 421

    def __init__(self, message: str = "", *, expected: int = -1, actual: int = -1) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class MembershipRefused(Refused):
    """The membership was not changed; the message gives the reason. `retry_after_ms` is set if retrying
    may help: another change is running, or a member has not caught up."""

    code = 602


class LevelNotReported(Refused):
    """Not every member has reported that it knows this kind of entry: one is silent, or runs an earlier
    release. The message names it."""

    code = 603


class SequenceGap(Refused):
    """An append of a producer skips sequence numbers: `expected_sequence` is the next one."""

    code = 422

    def __init__(self, message: str = "", *, expected_sequence: int = -1) -> None:
        super().__init__(message)
        self.expected_sequence = expected_sequence


class ProducerFenced(Refused):
    """Another client has connected as this producer since; this one is fenced."""

    code = 423


class ProducerExpired(Refused):
    """The log has no such session of this producer: it was forgotten, or never opened."""

    code = 424


class TooManyProducers(Refused):
    """The log has reached its limit of named producers; forget some."""

    code = 425


class AlreadyCommitted(LedgerError):
    """Some or all entries of an append are in the log already, at indices that are no longer
    remembered. The missing ones begin after `last_sequence`, the producer's last sequence number."""

    code = 426

    def __init__(self, message: str = "", *, last_sequence: int = -1) -> None:
        super().__init__(message)
        self.last_sequence = last_sequence


class UnknownReader(Refused):
    """The cluster has no reader of this name: it was never created, or was forgotten."""

    code = 440


class ReaderMoved(Refused):
    """The reader's position is not the one that the seek expected; or the request was made before the
    reader was forgotten, moved back, or its hold changed."""

    code = 441

    def __init__(self, message: str = "", *, committed_index: int = -1) -> None:
        """`committed_index`: of the log that refuses it; -1: from an older server."""
        super().__init__(message)
        self.committed_index = committed_index


class TooManyReaders(Refused):
    """The log has reached its limit of named readers; forget one."""

    code = 442


class TooStale(Refused):
    """This member may be staler than the read's `max_staleness_ms`; the client asks another one."""

    code = 460
    retriable = True
    is_elsewhere = True


class NotCaughtUp(Refused):
    """This member has not committed the client's own append yet; the client asks another one."""

    code = 461
    retriable = True
    is_elsewhere = True


class OutcomeUnknown(LedgerError):
    """The leader was lost or did not answer in time: any prefix of the append may be in the log or
    still commit."""

    code = 502


class IndexOutOfRange(LedgerError):
    """A read below `ledger_begin_index` or above `committed_index`; the error has both, and how
    old `committed_index` may be (`age_ms`, -1: unknown; docs/reads.md)."""

    code = 410

    def __init__(
        self,
        message: str = "",
        *,
        ledger_begin_index: int = -1,
        committed_index: int = -1,
        age_ms: float = -1.0,
    ) -> None:
        super().__init__(message)
        self.ledger_begin_index = ledger_begin_index
        self.committed_index = committed_index
        self.age_ms = age_ms


class RangeDamaged(LedgerError):
    """This member's disk no longer holds the entries as they were written; read from another member."""

    code = 414


class CommandError(LedgerError):
    """A state machine refused a command or a query. Its `command` raises this on every member alike;
    the command's entry stays in the log."""

    code = 450


class UnknownMachine(Refused):
    """The leader runs no state machine of this name."""

    code = 451


class StepOverRefused(Refused):
    """The entry is not skipped; the message gives the reason: members are silent, or have applied it,
    or no member could rebuild the machine without it."""

    code = 453


class ResultUnknown(OutcomeUnknown):
    """The entries are committed, but the state machine's results are unknown: it has stopped, or did
    not apply them in time."""

    code = 452


class ConfigError(ValueError):
    """A configuration error; the message names the option or the file."""


def the_extra(name: str) -> str:
    """How to install a missing extra, for the end of a sentence."""
    return f"the extra `{name}`: pip install '.[{name}]' in a clone of quorumlog"


class ProtocolViolation(Exception):
    """Bytes or messages that no correct peer sends."""


class StoreFailure(Exception):
    """The disk refused, or the files contradict themselves; the member stops with this message."""


class DirectoryDamaged(StoreFailure):
    """Damage at or below the durable point, which recovery must not cut away."""

    def __init__(
        self, message: str, *, path: str, position: int, index: int = -1, stop_index: int = -1
    ) -> None:
        """It lies at entry `index`, or somewhere from there to below `stop_index` if that is given."""
        super().__init__(message)
        self.path = path
        self.position = position
        self.index = index
        self.stop_index = stop_index

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker process raises it in its parent."""
        made = partial(type(self), path=self.path, position=self.position)
        return made, (str(self),), self.__dict__
