"""Importer: records into a log, each once, however often it is restarted.

Every batch is a conditional append after the entry that the one before it became. So the data after the
start of the import is its own, up to the first difference. Nothing else has to be recorded: a restarted
import, or one with an unknown outcome, compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from quorumlog.cli.carry.export_format import Record
from quorumlog.client import LedgerClient
from quorumlog.config import MIB
from quorumlog.errors import BodyTooLarge, OutcomeUnknown, WrongLastIndex

BATCH_BYTES = 1 * MIB
BATCH_RECORDS = 4096


class ImportStopped(Exception):
    """The log holds something else where the next record should be."""


class Importer:
    """`expected_last`: index of the last data in the log before the import first began; -1: none."""

    def __init__(self, log: LedgerClient, expected_last: int, note: Callable[[str], None]) -> None:
        self._log = log
        self._note = note
        self._is_unknown = False
        """The outcome of the newest append is."""
        self._known_end = -1
        """The log holds data up to here, at least."""
        self.first_index = -1
        """Of the log, where the first record lies; -1: none does yet."""
        self.last_index = expected_last
        """Of the log, where the newest record lies."""
        self.appended = 0
        self.found = 0
        """Records that were in the log already."""

    @property
    def records(self) -> int:
        return self.appended + self.found

    def put(self, batch: Sequence[Record]) -> None:
        """Returns once these, which follow those before, are in the log. Raises ImportStopped, and the
        errors of an append; then the same import may be begun again."""
        while batch:
            if self.last_index < self._known_end:
                batch = batch[self._count_held(batch) :]
                continue
            try:
                receipt = self._log.append_batch(
                    [record.body for record in batch], expected_last=self.last_index
                )
            except WrongLastIndex as error:
                if error.actual <= self.last_index:
                    raise  # it does not reach so far: --expected-last is of another log
                self._known_end = error.actual
            except OutcomeUnknown as error:
                if self._is_unknown:
                    raise
                self._note(f"{error}; it is appended again after the same entry, or found there")
                self._is_unknown = True
            except BodyTooLarge as error:
                largest = max(batch, key=lambda record: len(record.body))
                raise BodyTooLarge(
                    f"the entry of index {largest.index} in the file, {len(largest.body)} bytes: {error}"
                ) from None
            else:
                self.appended += receipt.count
                self._advance(receipt.first_index, receipt.last_index)
                return

    def _count_held(self, batch: Sequence[Record]) -> int:
        """How many of these the log holds after those before."""
        held = 0
        with self._log.read(self.last_index + 1, self._known_end + 1, limit=len(batch)) as entries:
            for record, entry in zip(batch, entries, strict=False):
                if entry.body != record.body:
                    raise ImportStopped(self._why_stopped(record, entry.index))
                self.found += 1
                held += 1
                self._advance(entry.index, entry.index)
        assert held, (self.last_index, self._known_end)
        return held

    def _advance(self, first_index: int, last_index: int) -> None:
        self._is_unknown = False
        if self.first_index < 0:
            self.first_index = first_index
        self.last_index = last_index

    def _why_stopped(self, record: Record, index: int) -> str:
        end = self._known_end
        if not self.records:
            return (
                f"the log holds other data: its entry {index} is not the file's entry {record.index};"
                f" nothing was appended; to append after its end, add --expected-last {end}"
            )
        return (
            f"another client has appended to the log: its entry {index} is not the file's entry"
            f" {record.index}; {self.records} entries of the file are in the log, up to its index"
            f" {self.last_index}, and none is there twice; to append the rest after the end"
            f" of the log, write --from {record.index} --expected-last {end}"
        )


def batched(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Of `BATCH_BYTES` and `BATCH_RECORDS` at most, one record at least."""
    batch: list[Record] = []
    size_bytes = 0
    for record in records:
        if batch and (len(batch) == BATCH_RECORDS or size_bytes + len(record.body) > BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(record)
        size_bytes += len(record.body)
    if batch:
        yield batch
