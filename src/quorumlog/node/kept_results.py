"""KeptResults: a machine's results of the commands of producers' sessions, for repeated commands.

They are computed from the log alone, as the machine is, and saved and loaded with it, so a new leader
answers a repeated command with its first result. A session's results are kept for as many batches as the
log keeps receipts of, within `MOST_BYTES` in all; the least recently used session is evicted first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt
from quorumlog.errors import CommandError
from quorumlog.header_array import TERM, Int64Array
from quorumlog.log_state.control_entries import OpenProducer, ProducerBatch
from quorumlog.state_machine import KEPT_RESULT_BYTES, MOST_KEPT_BYTES, Result, words_of

BATCHES_A_SESSION = 5
MOST_BYTES = MOST_KEPT_BYTES

KeptResult = bytes | tuple[str] | None
"""(why the command was refused,)."""
_UNKEPT = ("",)
"""One that is more than all that is kept: it goes as soon as it is there."""


class _Piece(msgspec.Struct, array_like=True):
    """Results of entries that follow each other."""

    first_index: int
    continues: bool
    """The rest of a batch that a crash had cut."""
    values: list[KeptResult]

    @property
    def size_bytes(self) -> int:
        return sum(_size_of(value) for value in self.values)


class SessionBatch(NamedTuple):
    """Entries `first_index` .. `stop_index - 1` are a producer's, as far as they are of this term."""

    producer: str
    first_index: int
    stop_index: int
    term: int
    continues: bool


class _SavedResults(msgspec.Struct, array_like=True):
    sessions: list[tuple[str, list[_Piece]]]
    """The one heard of longest ago first."""
    under_way: SessionBatch | None


class KeptResults:
    def __init__(self, saved: bytes = b"") -> None:
        self._sessions: dict[str, list[_Piece]] = {}
        self.under_way: SessionBatch | None = None
        """Its end was not applied yet: `batches_in` continues from it."""
        if saved:
            state = msgspec.msgpack.decode(saved, type=_SavedResults)
            self._sessions, self.under_way = dict(state.sessions), state.under_way
        self._bytes = sum(each.size_bytes for pieces in self._sessions.values() for each in pieces)

    def encode(self) -> bytes:
        """Empty if there is nothing to keep."""
        if not self._sessions and self.under_way is None:
            return b""
        return msgspec.msgpack.encode(_SavedResults(list(self._sessions.items()), self.under_way))

    def skip(self) -> None:
        """The entries after these results were applied by an earlier process and their results are lost:
        the rest of a batch in progress must not be taken for the next one."""
        self.under_way = None

    def forget(self, opened: OpenProducer) -> None:
        """The log ends sessions. The log's state may ignore the entry (a leader writes none such); then
        results are at worst unknown, because a result is found by the index of an entry that the log has
        as the appender's own, under any session name."""
        for producer in (*opened.evicts, *([opened.producer] if opened.forgets else [])):
            gone = self._sessions.pop(producer, [])
            self._bytes -= sum(each.size_bytes for each in gone)

    def batches_in(
        self, part: EntryBatch, begun: Sequence[tuple[int, ProducerBatch]]
    ) -> list[SessionBatch]:
        """Of a stretch of the log, in which these begin, at these places: whose entries lie in it."""
        if not begun and self.under_way is None:
            return []
        terms = part.words()[TERM]
        found = [] if self.under_way is None else [self.under_way]
        for place, batch in begun:
            first_index = part.first_index + place + 1
            stop_index, term = first_index + batch.count, int(terms[place])
            found.append(SessionBatch(batch.producer, first_index, stop_index, term, batch.continues))
        end_index, self.under_way = part.last_index + 1, None
        batches = []
        for each in found:
            later = part.first_index + int(np.searchsorted(terms, each.term, side="right"))
            if each.stop_index > end_index and later == end_index:
                self.under_way = each
            batches.append(each._replace(stop_index=min(each.stop_index, later)))
        return batches

    def note(
        self,
        batches: Sequence[SessionBatch],
        indices: Int64Array,
        values: Sequence[Result] | None,
        unkept: Sequence[int] = (),
    ) -> None:
        """Results of the machine's entries in the stretch that these batches lie in; `unkept` as
        `FirstResults` has it."""
        for each in batches:
            start, stop = np.searchsorted(indices, [each.first_index, each.stop_index]).tolist()
            if start < stop:
                results = [None] * (stop - start) if values is None else values[start:stop]
                kept = [_kept(result) for result in results]
                for place in unkept:
                    if start <= place < stop:
                        kept[place - start] = _UNKEPT
                self._add(each, int(indices[start]), kept)

    def _add(self, batch: SessionBatch, first_index: int, values: list[KeptResult]) -> None:
        pieces = self._sessions.pop(batch.producer, [])
        if not pieces and first_index > batch.first_index:
            return  # its beginning went for lack of room: a member that applies it at once keeps nothing
        self._sessions[batch.producer] = pieces  # the last one heard of
        last = pieces[-1] if pieces else None
        if last is not None and batch.first_index <= last.first_index < batch.stop_index:
            assert first_index == last.first_index + len(last.values), (first_index, last.first_index)
            last.values += values  # the stretch before ended within the batch
        else:
            pieces.append(_Piece(first_index, batch.continues, values))
        self._bytes += sum(map(_size_of, values))
        while sum(not each.continues for each in pieces) > BATCHES_A_SESSION:
            self._bytes -= pieces.pop(0).size_bytes
            while pieces[0].continues:
                self._bytes -= pieces.pop(0).size_bytes
        while self._bytes > MOST_BYTES:
            oldest = next(iter(self._sessions))
            self._bytes -= sum(each.size_bytes for each in self._sessions.pop(oldest))

    def results_of(self, producer: str, receipt: AppendReceipt) -> AppendReceipt | None:
        """The receipt with them; None: they are kept no more, or are another machine's."""
        known = {
            piece.first_index + place: value
            for piece in self._sessions.get(producer, [])
            for place, value in enumerate(piece.values)
        }
        values: list[bytes | None] = []
        failures: list[tuple[int, str]] = []
        for index in (index for part in receipt.parts for index in part.indices):
            if index not in known:
                return None
            value = known[index]
            if isinstance(value, tuple):
                failures.append((len(values), value[0]))
                value = None
            values.append(value)
        return msgspec.structs.replace(receipt, results=tuple(values), failures=tuple(failures))


def _kept(result: object) -> KeptResult:
    if isinstance(result, CommandError):
        return (words_of(result),)
    if result is None or isinstance(result, bytes):
        return result
    return (f"the result is {type(result).__name__}, not bytes",)


def _size_of(value: KeptResult) -> int:
    if value is _UNKEPT:
        return MOST_BYTES + 1
    result = value[0] if isinstance(value, tuple) else value
    return KEPT_RESULT_BYTES + (0 if result is None else len(result))
