"""EntryFiller: what only the leader can know of an application's entries is written into their bodies as
it proposes them, a batch at a time, before the digests are made. It belongs to a state machine, whose
factory names it as `filler`.

A filler numbers by all that its leader has proposed, committed or not. That is right only while this
member leads, and only if the filler began with a state that holds every earlier entry: until it knows
so, and as soon as the member leads no more, it refuses.
"""

from __future__ import annotations

from typing import Protocol

from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryId
from quorumlog.header_array import Int64Array


class EntryFiller(Protocol):
    def check(self, batch: EntryBatch) -> None:
        """Entries that somebody wants to append. Raises the LedgerError that refuses them."""

    def fill(self, batch: EntryBatch, first: EntryId, positions: Int64Array, time_ms: int) -> object:
        """Entries that were checked, in the order and at the positions that they have in the log from
        now on. Only their bodies may change. What it returns goes to who asked for the append.
        `time_ms`: of this machine's clock, as far as the log believes it, since 1970."""
