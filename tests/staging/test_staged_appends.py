"""What a task does with a staging group that fails it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt, Durability, EntryRange
from quorumlog.errors import BodyTooLarge, LedgerError, OutcomeUnknown
from quorumlog.staging import RowRange, stage
from quorumlog.staging.commits import MOST_FAILURES


class FailingLog:
    """Takes a few batches, then fails as it is told; what was on its way is there."""

    def __init__(self, *errors: LedgerError, takes: int = 3) -> None:
        self._takes = takes
        self.bodies: list[bytes] = []
        self._errors = list(errors)

    def append_stream(
        self, items: Iterable[EntryBatch], *, window: int = 4, timeout_ms: int | None = None
    ) -> Iterator[AppendReceipt]:
        source = iter(items)
        for _ in range(self._takes if self._errors else 10**6):
            batch = next(source, None)
            if batch is None:
                return
            yield self._append(batch)
        lost = next(source, None)
        if lost is not None:
            self._append(lost)
            raise self._errors.pop(0)

    def _append(self, batch: EntryBatch) -> AppendReceipt:
        self.bodies += [bytes(body) for body in batch.bodies()]
        return AppendReceipt(1, len(self.bodies) - batch.count, batch.count, Durability.SYNC)


BATCHES = [EntryBatch.from_bodies([b"%d-%d" % (number, row) for row in range(3)]) for number in range(9)]


def found(log: FailingLog, ranges: tuple[RowRange, ...]) -> list[bytes]:
    return [body for each in ranges for body in log.bodies[each.first_index : each.stop_index]]


def test_what_has_no_receipt_is_appended_again_and_the_first_try_is_nobodys() -> None:
    log = FailingLog(OutcomeUnknown("lost"), OutcomeUnknown("lost"))
    ranges = stage(log, BATCHES)
    assert found(log, ranges) == [bytes(body) for batch in BATCHES for body in batch.bodies()]
    assert len(log.bodies) == 27 + 2 * 3, "two batches lie there twice"


def test_a_failure_that_stays_is_raised() -> None:
    with pytest.raises(BodyTooLarge):
        stage(FailingLog(BodyTooLarge("no")), BATCHES)
    with pytest.raises(OutcomeUnknown):
        stage(FailingLog(*[OutcomeUnknown("lost")] * MOST_FAILURES, takes=0), BATCHES)


def test_a_receipt_of_two_ranges_is_two_ranges() -> None:
    class Cut:
        def append_stream(
            self, items: Iterable[EntryBatch], *, window: int = 4, timeout_ms: int | None = None
        ) -> Iterator[AppendReceipt]:
            for _ in items:
                parts = (EntryRange(10, 1, 1), EntryRange(20, 2, 2))
                yield AppendReceipt.of_ranges(parts, Durability.SYNC)

    assert stage(Cut(), BATCHES[:1]) == (RowRange(10, 1), RowRange(20, 2))
