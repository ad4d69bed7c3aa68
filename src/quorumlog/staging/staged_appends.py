"""What a task does: it appends its rows to the staging group and notes where they lie.

An append whose outcome is unknown is made again: what it may have left there is in no manifest, and goes
by retention.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt
from quorumlog.errors import LedgerError, OutcomeUnknown
from quorumlog.staging.manifests import RowRange, joined

WINDOW = 4
"""Batches on their way."""
MOST_FAILURES = 5
"""In a row; the client itself has tried each for its time-out."""


class StagingClient(Protocol):
    def append_stream(
        self, items: Iterable[EntryBatch], *, window: int = ..., timeout_ms: int | None = ...
    ) -> Iterable[AppendReceipt]: ...


def stage(
    log: StagingClient, batches: Iterable[EntryBatch], timeout_ms: int | None = None
) -> tuple[RowRange, ...]:
    """Where the entries of `batches` lie, in order. Raises a LedgerError once nothing helps."""
    source = iter(batches)
    pending: deque[EntryBatch] = deque()
    ranges: list[RowRange] = []
    failures = 0
    while True:
        try:
            items = _again_and_on(pending, source)
            for receipt in log.append_stream(items, window=WINDOW, timeout_ms=timeout_ms):
                pending.popleft()
                ranges += [RowRange(part.first_index, part.count) for part in receipt.parts]
                failures = 0
            assert not pending, f"{len(pending)} batches without a receipt"
            return joined(ranges)
        except LedgerError as error:
            failures += 1
            may_pass = isinstance(error, OutcomeUnknown) or error.retriable
            if not may_pass or failures >= MOST_FAILURES:
                raise


def _again_and_on(pending: deque[EntryBatch], source: Iterator[EntryBatch]) -> Iterator[EntryBatch]:
    """What has no receipt yet, then what comes. What is taken from the source stays in `pending`."""
    yield from list(pending)
    for batch in source:
        pending.append(batch)
        yield batch
