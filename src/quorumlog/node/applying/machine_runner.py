"""MachineRunner: one state machine on the thread that applies; nobody else touches it.

Nothing that a machine raises leaves it, not even what is no `Exception` (SystemExit, a panic of a
library in another language): what went wrong is a value, in words that any message can carry.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt, EntryKind
from quorumlog.errors import CommandError
from quorumlog.header_array import BITS_32, CHAIN, INDEX, LOW_32, SHAPE, TERM, Int64Array
from quorumlog.log_state.control_entries import (
    MachineBinding,
    OpenProducer,
    ProducerBatch,
    decode_body,
)
from quorumlog.node.applying.kept_results import KeptResults, SessionBatch
from quorumlog.state_machine import (
    MOST_RESULT_BYTES,
    Applied,
    ApplyFailure,
    FirstResults,
    Result,
    SnapshotWriter,
    StateMachine,
    words_of,
)
from quorumlog.store.snapshots import (
    ApplyingFile,
    LeftOut,
    SnapshotFiles,
    SnapshotFileWriter,
    SnapshotHead,
)

_LOOKED_AT = frozenset(map(int, (EntryKind.MACHINE, EntryKind.PRODUCER, EntryKind.OPEN)))


class Stopped(NamedTuple):
    """The machine is not as the log says any more: it may not go on."""

    first_index: int
    """The entry that stopped it is this one, or one of the next up to `last_index`."""
    last_index: int
    reason: str

    def __str__(self) -> str:
        where = f"entry {self.first_index}"
        if self.last_index > self.first_index:
            where = f"entries {self.first_index} .. {self.last_index}"
        return f"{where}: {self.reason}"


class Results(NamedTuple):
    indices: Int64Array
    """Of the entries of the machine, ascending."""
    values: Sequence[Result] | None
    """One each; None: there are none."""

    @property
    def size_bytes(self) -> int:
        return sum(len(each) for each in self.values or () if isinstance(each, bytes))


class _Given(NamedTuple):
    """What a machine has made of the first `taken` entries that it was given."""

    taken: int
    results: Sequence[Result] | None
    """One each; None: there are none."""
    unkept: Sequence[int]
    """See `FirstResults`."""


class Turn(NamedTuple):
    """What applying a stretch of the log came to, or the first entries of it."""

    applied: Applied | None
    """The last entry whose effects it holds now; None: none of the stretch."""
    results: list[Results]
    entries: int
    size_bytes: int
    """Of the machine's."""
    log_bytes: int
    """Of all of them."""
    stopped: Stopped | None

    @property
    def result_bytes(self) -> int:
        return sum(each.size_bytes for each in self.results)


class MachineRunner:
    def __init__(
        self,
        name: str,
        channel: int,
        machine: StateMachine,
        acts_as: int,
        kept: bytes = b"",
        applying: ApplyingFile | None = None,
        left_out: frozenset[LeftOut] = frozenset(),
    ) -> None:
        """`acts_as`: the version that its state follows from; 0: none yet. `kept`: as `KeptResults`
        encodes them. `applying`: noted there is what it is about to apply. `left_out`: see `apply`."""
        self.name = name
        self._channel = channel
        self.machine = machine
        self._acts_as = acts_as
        self._kept = KeptResults(kept)
        self._applying = applying
        self.leave_out(left_out)

    def leave_out(self, left_out: frozenset[LeftOut]) -> None:
        """None of these was given to the machine, or will be."""
        self._left_out = left_out
        self._skips = frozenset(index for index, _ in left_out)
        if self._applying is not None:
            self._applying.leaves_out(left_out)

    def left_out_up_to(self, index: int) -> tuple[LeftOut, ...]:
        """Ascending."""
        return tuple(sorted(each for each in self._left_out if each[0] <= index))

    def take_results(self, kept: bytes, *, is_older: bool) -> None:
        """Before anything is applied. `is_older`: the machine holds more than they follow from."""
        self._kept = KeptResults(kept)
        if is_older:
            self._kept.skip()

    def apply(self, batch: EntryBatch, left_out: frozenset[LeftOut] = frozenset()) -> Turn:
        """A stretch of committed entries of the log, of whatever kinds, behind what was applied. It ends
        early where the results are large."""
        if left_out is not self._left_out:
            self.leave_out(left_out)
        turn = Turn(None, [], 0, 0, 0, None)
        start = 0
        changes, begun = self._controls(batch)
        under_way = self._kept.under_way
        batches = self._kept.batches_in(batch, begun)
        for place, change in (*changes, (batch.count, None)):
            turn = self._apply_part(batch, start, place, turn, batches)
            taken = 0 if turn.applied is None else turn.applied.index + 1 - batch.first_index
            if turn.stopped is None and (
                taken < place or (place < batch.count and turn.result_bytes >= MOST_RESULT_BYTES)
            ):
                self._kept.under_way = under_way
                self._kept.batches_in(batch.slice(0, taken), [each for each in begun if each[0] < taken])
                return turn
            if isinstance(change, OpenProducer):
                self._kept.forget(change)
            elif isinstance(change, MachineBinding) and turn.stopped is None:
                turn = self._go_over(batch.first_index + place, change, turn)
            if turn.stopped is not None:
                return turn
            start = place
        return turn

    def _controls(
        self, batch: EntryBatch
    ) -> tuple[list[tuple[int, MachineBinding | OpenProducer]], list[tuple[int, ProducerBatch]]]:
        """(place in the batch, body) of the MACHINE entries of this machine and of what ends sessions,
        almost always none, and of the PRODUCER entries."""
        changes: list[tuple[int, MachineBinding | OpenProducer]] = []
        begun: list[tuple[int, ProducerBatch]] = []
        for place in batch.log_state_positions():
            kind = batch.slice(place, place + 1).first_header.magic
            if kind not in _LOOKED_AT:
                continue
            body = decode_body(EntryKind(kind), batch.body(place))
            if isinstance(body, MachineBinding) and body.name == self.name:
                changes.append((place, body))
            elif isinstance(body, ProducerBatch):
                begun.append((place, body))
            elif isinstance(body, OpenProducer) and (body.evicts or body.forgets):
                changes.append((place, body))
        return changes, begun

    def _go_over(self, index: int, binding: MachineBinding, turn: Turn) -> Turn:
        if binding.channel != self._channel or binding.version <= self._acts_as:
            return turn  # an entry that the log's state does not look at either
        if binding.version > self.machine.version:
            reason = too_new_reason(self.name, binding.version, self.machine)
            return turn._replace(stopped=Stopped(index, index, reason))
        try:
            self.machine.act_as(binding.version)
        except BaseException as error:
            return turn._replace(stopped=Stopped(index, index, told(error)))
        self._acts_as = binding.version
        return turn

    def _apply_part(
        self, batch: EntryBatch, start: int, stop: int, turn: Turn, batches: list[SessionBatch]
    ) -> Turn:
        if start == stop:
            return turn
        part = batch if stop - start == batch.count else batch.slice(start, stop)
        own = entries_of(part, self._channel)
        if own.count:
            indices = own.words()[INDEX].view("int64")
            first_index, last_index = int(indices[0]), int(indices[-1])
            if self._applying is not None:
                self._applying.begins(first_index, last_index + 1)
            try:
                given = self._given(own, indices)
            except ApplyFailure as failure:
                named: object = getattr(failure, "index", None)  # whatever an application has put there
                if isinstance(named, int) and named in indices.tolist():
                    first_index = last_index = named
                stopped = Stopped(first_index, last_index, told(failure.__cause__ or failure))
                return turn._replace(stopped=stopped)
            except BaseException as error:
                return turn._replace(stopped=Stopped(first_index, last_index, told(error)))
            if given.taken < own.count:
                own, indices = own.slice(0, given.taken), indices[: given.taken]
                part = part.slice(0, int(indices[-1]) + 1 - part.first_index)
            if self._applying is not None:
                self._applying.ended(int(indices[-1]) + 1)
            turn.results.append(Results(indices, given.results))
            if batches:
                self._kept.note(batches, indices, given.results, given.unkept)
        words = part.words()
        applied = Applied(int(words[INDEX][-1]), int(words[TERM][-1]), int(words[CHAIN][-1] & LOW_32))
        return turn._replace(
            applied=applied,
            entries=turn.entries + own.count,
            size_bytes=turn.size_bytes + own.total_bytes,
            log_bytes=turn.log_bytes + part.total_bytes,
        )

    def _given(self, own: EntryBatch, indices: Int64Array) -> _Given:
        """What the machine makes of these entries, but for those that are left out, or of the first of
        them. Raises what the machine does."""
        if self._skips and not self._skips.isdisjoint(indices.tolist()):
            return self._given_but_left_out(own, indices)
        given = self.machine.apply(own, int(indices[0]))
        if isinstance(given, FirstResults):
            results: Sequence[Result] | None = given.results
            unkept = tuple(map(int, given.unkept))
            taken = len(given.results) if 0 < len(given.results) < own.count else own.count
        else:
            results, unkept, taken = given, (), own.count
        if results is not None and len(results) != taken:
            raise ValueError(f"{len(results)} results for {own.count} entries")
        return _Given(taken, results, unkept)

    def _given_but_left_out(self, own: EntryBatch, indices: Int64Array) -> _Given:
        is_given = np.array([index not in self._skips for index in indices.tolist()])
        results: list[Result] = [
            CommandError(
                f"entry {index} was stepped over: `quorumlog machine step-over` has left it out of"
                f" {self.name}, and it has no effect"
            )
            for index in indices.tolist()
        ]
        places = np.flatnonzero(is_given).tolist()
        if not places:
            return _Given(own.count, results, ())
        given = self._given(_of(own, is_given), indices[is_given])
        for number, place in enumerate(places[: given.taken]):
            results[place] = None if given.results is None else given.results[number]
        taken = own.count if given.taken == len(places) else places[given.taken]
        return _Given(taken, results[:taken], tuple(places[number] for number in given.unkept))

    def write_to(self, writer: SnapshotWriter) -> None:
        """All that a snapshot would hold: for who compares members."""
        writer.write(self._kept.encode())
        for _ in self.machine.save_slices(writer):
            pass

    def query(self, question: bytes) -> bytes | CommandError:
        try:
            answer = self.machine.query(question)
        except CommandError as refusal:
            return CommandError(words_of(refusal))
        except BaseException as error:
            return CommandError(f"{self.name} could not answer: {told(error)}")
        if not isinstance(answer, bytes):
            return CommandError(f"{self.name} answered with {type(answer).__name__} instead of bytes")
        return answer

    def results_of(self, producer: str, receipt: AppendReceipt) -> AppendReceipt | None:
        """See `KeptResults`."""
        return self._kept.results_of(producer, receipt)

    @property
    def saves(self) -> bool:
        kind = type(self.machine)
        return kind.save is not StateMachine.save or kind.save_slices is not StateMachine.save_slices

    def begin_save(
        self, files: SnapshotFiles, applied: Applied
    ) -> tuple[SnapshotFileWriter, Iterator[None]]:
        """What each further item of the iterator writes to. Raises OSError."""
        point = (applied.index, applied.term, applied.chain)
        kept = self._kept.encode()
        left_out = self.left_out_up_to(applied.index)
        writer = files.create(SnapshotHead(self.name, self._acts_as, point, len(kept), left_out))
        try:
            writer.write(kept)
        except BaseException:
            writer.abandon()
            raise
        return writer, self.machine.save_slices(writer)


def too_new_reason(name: str, version: int, machine: StateMachine) -> str:
    return (
        f"the log has gone over to version {version} of {name}, and this member has version"
        f" {machine.version}: install that version here and restart the member"
    )


def told(error: BaseException) -> str:
    """Type, message and place, in a line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {words_of(error)}{where}"


def entries_of(batch: EntryBatch, channel: int) -> EntryBatch:
    """The NORMAL entries of a channel: the batch itself if that is all, else one of its own memory."""
    words = batch.words()
    wanted = (words[CHAIN] >> BITS_32 == np.uint64(channel)) & (
        words[SHAPE] >> BITS_32 == np.uint64(EntryKind.NORMAL)
    )
    if bool(wanted.all()):
        return batch
    return _of(batch, wanted)


def _of(batch: EntryBatch, wanted: np.ndarray[Any, np.dtype[np.bool_]]) -> EntryBatch:
    """Of its own memory."""
    data = np.frombuffer(batch.buffer, np.uint8)[np.repeat(wanted, batch.sizes)]
    return EntryBatch(data.data, batch.sizes[wanted])
