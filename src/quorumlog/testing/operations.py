"""The history of a run: requests and responses of clients, and a digest of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from isal.isal_zlib import crc32

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt
from quorumlog.errors import LedgerError, OutcomeUnknown
from quorumlog.node import LedgerNode

READ_BYTES = 1 << 20


def read_at_once(
    node: LedgerNode, first_index: int, stop_index: int = -1, limit_bytes: int = READ_BYTES
) -> EntryBatch:
    """As a member answers a read, but in no time."""
    found = node.readable_range(first_index, stop_index, limit_bytes)
    return found if isinstance(found, EntryBatch) else node.store.read_from(*found)[1]


@dataclass(slots=True, eq=False)
class ClientAppend:
    """One append request. No other request of the run has a body of the same value."""

    number: int
    """1, 2, 3, ...; a retry is a request of its own."""
    bodies: tuple[bytes, ...]
    asked_member_id: str
    called_ms: float
    returned_ms: float = -1.0
    outcome: AppendReceipt | LedgerError | None = None
    """None: no answer came, as good as unknown. Set at most once."""
    expected_last: int | None = None
    """Of a conditional append; see AppendRequest."""
    machine: str = ""
    """That takes the bodies as commands."""
    acknowledged_data_index: int = -1
    """Highest index of all data that had been acknowledged when it was called; -1: nothing."""

    @property
    def is_committed(self) -> bool:
        return isinstance(self.outcome, AppendReceipt)

    @property
    def is_refused(self) -> bool:
        """Certainly not written, now or later."""
        return isinstance(self.outcome, LedgerError) and not isinstance(self.outcome, OutcomeUnknown)


@dataclass(slots=True, eq=False)
class ClientAnswer:
    """An answer of a state machine."""

    member_id: str
    acknowledged_index: int
    """Highest index of all that had been acknowledged when it was asked; -1: nothing."""
    applied_index: int
    """The index that the answer covers."""


PRODUCED = b"P"
"""Prefix of producers' bodies, and of no others."""


@dataclass(slots=True, eq=False)
class ProducedBatch:
    """An append of a producer, however often it is sent."""

    producer: str
    life: int
    """Of its process: 1, 2, 3, ..."""
    first_sequence: int
    bodies: tuple[bytes, ...]
    machine: str = ""
    """That takes them as commands."""
    receipts: list[AppendReceipt] = field(default_factory=list)


@dataclass(slots=True)
class AcknowledgedSequence:
    """A producer's entry acknowledged as in the log."""

    producer: str
    sequence: int


@dataclass(slots=True)
class Operations:
    """All of one run, in the order of their calls."""

    appends: list[ClientAppend] = field(default_factory=list)
    produced: list[ProducedBatch] = field(default_factory=list)
    of_producers: int = 0
    """Their requests that have arrived."""
    stepped_over: set[int] = field(default_factory=set)
    """Entries that somebody has asked the machines to leave out."""
    reported_sequences: list[AcknowledgedSequence] = field(default_factory=list)
    reads: int = 0
    acknowledged_index: int = -1
    """Highest index of all that clients know to be acknowledged."""


class Trace:
    """What happened, as one number for comparison and, where asked for, as lines for people. Two runs of
    one seed have the same `hash`."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        """`tell` gets one line an event."""
        self.hash = 0
        self.events = 0
        self.counts: Counter[str] = Counter()
        """See `coverage`."""
        self._tell = tell

    def note(self, now_ms: float, subject: str, what: str, detail: Callable[[], str] | str = "") -> None:
        """`detail` is computed only for a listener, and is no part of the hash."""
        self.events += 1
        self.hash = crc32(f"{now_ms:.6f} {subject} {what}".encode(), self.hash)
        if self._tell is not None:
            text = detail() if callable(detail) else detail
            self._tell(f"{now_ms:12.3f}  {subject:9} {what}{'  ' if text else ''}{text}")

    def bytes_sent(self, data: bytes) -> None:
        self.hash = crc32(data, self.hash)

    def count(self, what: str) -> None:
        self.counts[what] += 1
