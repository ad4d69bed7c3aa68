"""Both groups, as a commit sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from quorumlog.batch import EntryBatch
from quorumlog.staging.manifests import RowRange


class ProducerStand(NamedTuple):
    last_sequence: int
    """-1: nothing of it is in the log."""
    last_index: int
    """Where that one lies."""


class SinkSession(Protocol):
    """Connected as a producer, which has fenced whoever was before. Whoever connects next fences this
    one: its appends then raise ProducerFenced, and nothing of them is written."""

    @property
    def last_sequence(self) -> int:
        """As of when it was connected."""
        ...

    def append(self, sequence: int, batches: Iterable[EntryBatch], machine: str = "") -> int:
        """In order, the first entry under this number; returns the index of the last. `machine`: the
        state machine that takes them; empty: none."""
        ...


class SinkLog(Protocol):
    """Every call may raise a LedgerError."""

    def session(self, producer: str) -> AbstractContextManager[SinkSession]: ...

    def producer(self, producer: str) -> ProducerStand | None:
        """As it is committed; None: it was never connected here."""
        ...

    def body_at(self, index: int) -> bytes: ...

    def batches(self, ranges: Iterable[RowRange]) -> Iterator[EntryBatch]:
        """The entries of these ranges, one range after the other."""
        ...

    def hold(self, name: str) -> int | None:
        """From where on this reader holds the log; None: it holds nothing."""
        ...

    def take_hold(self, name: str) -> int:
        """Where it stands, or from where on the log is still kept; returns where that is."""
        ...

    def move_hold(self, name: str, index: int) -> None:
        """Forward; what lies before `index` may go. Takes it, where somebody has ended it."""
        ...

    def end_hold(self, name: str) -> None: ...

    def forget(self, producer: str) -> None: ...


class SinkLogs(NamedTuple):
    log: SinkLog
    staging: SinkLog
