"""MachineRunner: one state machine, used by the apply thread alone.

Nothing that a machine raises leaves it, not even a `BaseException` (SystemExit, a panic of a library in
another language): failures are values whose text any message can carry.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt, EntryKind, SnapshotId
from quorumlog.errors import CommandError, IndexOutOfRange, StoreFailure
from quorumlog.header_array import BITS_32, CHAIN, SHAPE, Int64Array
from quorumlog.log_state.control_entries import MachineBinding, OpenProducer, ProducerBatch, decode_body
from quorumlog.log_state.log_state import Machine
from quorumlog.node.kept_results import KeptResults, SessionBatch
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
from quorumlog.store.disk import refusal
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.snapshots import (
    ApplyingFile,
    LeftOut,
    SnapshotDamaged,
    SnapshotFiles,
    SnapshotFileWriter,
    SnapshotHead,
    SnapshotsUnavailable,
)

_LOOKED_AT = frozenset(map(int, (EntryKind.MACHINE, EntryKind.PRODUCER, EntryKind.OPEN)))


class Stopped(NamedTuple):
    """The machine's state no longer matches the log: it must not continue."""

    first_index: int
    """The entry that stopped it is this one, or one of the next up to `last_index`."""
    last_index: int
    reason: str

    def __str__(self) -> str:
        where = f"entry {self.first_index}"
        if self.last_index > self.first_index:
            where = f"entries {self.first_index} .. {self.last_index}"
        return f"{where}: {self.reason}"


class AppliedResults(NamedTuple):
    indices: Int64Array
    """Of the entries of the machine, ascending."""
    values: Sequence[Result] | None
    """One each; None: there are none."""

    @property
    def size_bytes(self) -> int:
        return sum([len(each) for each in self.values or () if isinstance(each, bytes)])

    def rows_of(self, receipt: AppendReceipt) -> tuple[int, int]:
        """From the first of its entries to after its last one."""
        if len(self.indices) == 1:
            return 0, int(receipt.first_index <= self.indices[0] <= receipt.last_index)
        start, stop = self.indices.searchsorted([receipt.first_index, receipt.last_index + 1]).tolist()
        return start, stop


class _PartResult(NamedTuple):
    """What a machine has made of the first `taken` entries that it was given."""

    taken: int
    results: Sequence[Result] | None
    """One each; None: there are none."""
    unkept: Sequence[int]
    """See `FirstResults`."""


class ApplyResult(NamedTuple):
    """The result of applying a stretch of the log, or its first entries."""

    applied: Applied | None
    """The last entry whose effects it holds now; None: none of the stretch."""
    results: list[AppliedResults]
    entries: int
    size_bytes: int
    """Of the machine's."""
    log_bytes: int
    """Of all of them."""
    stopped: Stopped | None

    @property
    def result_bytes(self) -> int:
        return sum(each.size_bytes for each in self.results)


MOST_QUICK_ENTRIES = 64
MOST_QUICK_BYTES = 64 * 1024


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
        """`acts_as`: the version that computed its state; 0: none yet. `kept`: as `KeptResults` encodes
        them. `applying`: records the entries about to be applied. `left_out`: see `apply`."""
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

    def is_quick(self, batch: EntryBatch, left_out: frozenset[LeftOut]) -> bool:
        """`apply` may be called on the loop: it waits for no disk."""
        if batch.count > MOST_QUICK_ENTRIES or batch.total_bytes > MOST_QUICK_BYTES:
            return False
        if left_out is not self._left_out:
            return False  # what is left out is written down first
        own = entries_of(batch, self._channel)
        if not own.count:
            return not self._controls(batch)[0]
        try:
            return self.machine.is_quick(own)
        except Exception:  # the application's; `apply` says what becomes of such a machine
            return False

    def apply(self, batch: EntryBatch, left_out: frozenset[LeftOut] = frozenset()) -> ApplyResult:
        """Apply a range of committed entries of any kind, in order after the last applied one. It ends
        early where the results are large."""
        if left_out is not self._left_out:
            self.leave_out(left_out)
        total = ApplyResult(None, [], 0, 0, 0, None)
        start = 0
        changes, begun = self._controls(batch)
        under_way = self._kept.under_way
        batches = self._kept.batches_in(batch, begun)
        for place, change in (*changes, (batch.count, None)):
            total = self._apply_part(batch, start, place, total, batches)
            taken = 0 if total.applied is None else total.applied.index + 1 - batch.first_index
            if total.stopped is None and (
                taken < place or (place < batch.count and total.result_bytes >= MOST_RESULT_BYTES)
            ):
                self._kept.under_way = under_way
                self._kept.batches_in(batch.slice(0, taken), [each for each in begun if each[0] < taken])
                return total
            if isinstance(change, OpenProducer):
                self._kept.forget(change)
            elif isinstance(change, MachineBinding) and total.stopped is None:
                total = self._go_over(batch.first_index + place, change, total)
            if total.stopped is not None:
                return total
            start = place
        return total

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

    def _go_over(self, index: int, binding: MachineBinding, total: ApplyResult) -> ApplyResult:
        if binding.channel != self._channel or binding.version <= self._acts_as:
            return total  # an entry that the log's state does not look at either
        if binding.version > self.machine.version:
            reason = too_new_reason(self.name, binding.version, self.machine)
            return total._replace(stopped=Stopped(index, index, reason))
        try:
            self.machine.act_as(binding.version)
        except BaseException as error:
            return total._replace(stopped=Stopped(index, index, error_text(error)))
        self._acts_as = binding.version
        return total

    def _apply_part(
        self, batch: EntryBatch, start: int, stop: int, total: ApplyResult, batches: list[SessionBatch]
    ) -> ApplyResult:
        if start == stop:
            return total
        part = batch if stop - start == batch.count else batch.slice(start, stop)
        own = entries_of(part, self._channel)
        if own.count:
            indices = own.indices
            first_index, last_index = int(indices[0]), int(indices[-1])
            if self._applying is not None:
                self._applying.begins(first_index, last_index + 1)
            try:
                applied = self._apply_entries(own, indices)
            except ApplyFailure as failure:
                named: object = getattr(failure, "index", None)  # whatever an application has put there
                if isinstance(named, int) and named in indices.tolist():
                    first_index = last_index = named
                stopped = Stopped(first_index, last_index, error_text(failure.__cause__ or failure))
                return total._replace(stopped=stopped)
            except BaseException as error:
                return total._replace(stopped=Stopped(first_index, last_index, error_text(error)))
            if applied.taken < own.count:
                own, indices = own.slice(0, applied.taken), indices[: applied.taken]
                part = part.slice(0, int(indices[-1]) + 1 - part.first_index)
            if self._applying is not None:
                self._applying.ended(int(indices[-1]) + 1)
            total.results.append(AppliedResults(indices, applied.results))
            if batches:
                self._kept.note(batches, indices, applied.results, applied.unkept)
        return ApplyResult(
            Applied.of_last(part),
            total.results,
            total.entries + own.count,
            total.size_bytes + own.total_bytes,
            total.log_bytes + part.total_bytes,
            total.stopped,
        )

    def _apply_entries(self, own: EntryBatch, indices: Int64Array) -> _PartResult:
        """What the machine makes of these entries, but for those that are left out, or of the first of
        them. Raises what the machine does."""
        if self._skips and not self._skips.isdisjoint(indices.tolist()):
            return self._apply_unskipped(own, indices)
        applied = self.machine.apply(own, int(indices[0]))
        if isinstance(applied, FirstResults):
            results: Sequence[Result] | None = applied.results
            unkept = tuple(map(int, applied.unkept))
            taken = len(applied.results) if 0 < len(applied.results) < own.count else own.count
        else:
            results, unkept, taken = applied, (), own.count
        if results is not None and len(results) != taken:
            raise ValueError(f"{len(results)} results for {own.count} entries")
        return _PartResult(taken, results, unkept)

    def _apply_unskipped(self, own: EntryBatch, indices: Int64Array) -> _PartResult:
        is_unskipped = np.array([index not in self._skips for index in indices.tolist()])
        results: list[Result] = [
            CommandError(
                f"entry {index} was stepped over: `quorumlog machine step-over` has left it out of"
                f" {self.name}, and it has no effect"
            )
            for index in indices.tolist()
        ]
        places = np.flatnonzero(is_unskipped).tolist()
        if not places:
            return _PartResult(own.count, results, ())
        applied = self._apply_entries(_of(own, is_unskipped), indices[is_unskipped])
        for number, place in enumerate(places[: applied.taken]):
            results[place] = None if applied.results is None else applied.results[number]
        taken = own.count if applied.taken == len(places) else places[applied.taken]
        return _PartResult(taken, results[:taken], tuple(places[number] for number in applied.unkept))

    def write_to(self, writer: SnapshotWriter) -> None:
        """All that a snapshot would hold: to compare members."""
        writer.write(self._kept.encode())
        for _ in self.machine.save_slices(writer):
            pass

    def query(self, question: bytes) -> bytes | CommandError:
        try:
            answer = self.machine.query(question)
        except CommandError as refusal:
            return CommandError(words_of(refusal))
        except BaseException as error:
            return CommandError(f"{self.name} could not answer: {error_text(error)}")
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
        """The file that each further item of the iterator writes to. Raises OSError."""
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


def error_text(error: BaseException) -> str:
    """Type, message and place, in a line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {words_of(error)}{where}"


def entries_of(batch: EntryBatch, channel: int) -> EntryBatch:
    """The NORMAL entries of a channel: the batch itself if that is all, else one of its own memory."""
    if batch.count == 1:
        one = batch.first_header
        return batch if one.channel == channel and one.magic == EntryKind.NORMAL else batch.slice(0, 0)
    words = batch.words()
    wanted = (words[CHAIN] >> BITS_32 == np.uint64(channel)) & (
        words[SHAPE] >> BITS_32 == np.uint64(EntryKind.NORMAL)
    )
    if bool(wanted.all()):
        return batch
    return _of(batch, wanted)


def _of(batch: EntryBatch, wanted: np.ndarray[Any, np.dtype[np.bool_]]) -> EntryBatch:
    """The wanted entries, copied."""
    data = np.frombuffer(batch.buffer, np.uint8)[np.repeat(wanted, batch.sizes)]
    return EntryBatch(data.data, batch.sizes[wanted])


# ----------------------------------------------------------------
# What a start goes on from: what the machine has kept itself, its newest good snapshot, or nothing.
#
# Whatever it is, it counts only if the log holds the very entry that it names, or begins right after
# it: a state that follows from another log would never be like the others' again. A snapshot that came
# from another member may be ahead of this log; it is left alone until the log has come there.


T = TypeVar("T")
MachineFactory = Callable[[], StateMachine]


class LeftOuts(NamedTuple):
    """Entries that a machine leaves out, by the log."""

    known: frozenset[LeftOut]
    """As far as it is committed."""
    begin_index: int
    """Of entries up to there nothing need be known."""
    committed_index: int

    def contradict(self, left_out: Collection[LeftOut], index: int) -> bool:
        """Whether a state with the entries up to `index`, except `left_out`, contradicts this log. The
        state may follow an order that this member has not yet received."""
        lacks = any(each[0] <= index and each not in left_out for each in self.known)
        return lacks or any(
            self.begin_index < each[0] and each[1] <= self.committed_index
            for each in left_out
            if each not in self.known
        )

    def with_later(self, left_out: Iterable[LeftOut]) -> frozenset[LeftOut]:
        """The part of a later state's `left_out` that is still needed. The log's state forgets orders in
        the end, so no more are kept than it remembers."""
        return self.known | {each for each in left_out if each[0] > self.begin_index}


class Opened(NamedTuple):
    runner: MachineRunner
    applied_index: int
    """The next entry that it takes is the one after."""
    applied: Applied | None
    """None: it holds nothing yet."""
    snapshots: tuple[int, ...]
    """Indices of those that may be good, ascending."""
    useless: tuple[int, ...]
    """Of those that are not: damaged, or of another log."""
    loaded: SnapshotId | None
    """The one that was loaded, and so is known to be good."""
    damaged: tuple[str, ...]
    """The faults of those that were passed over."""
    left_out: frozenset[LeftOut] = frozenset()
    """Entries that it holds nothing of, or will hold nothing of."""
    log_bytes: int = 0
    """Of the log between its newest snapshot and `applied_index`."""


class Lacking(NamedTuple):
    """The machine's state at the begin of the log cannot be reconstructed here."""

    least_index: int
    """A snapshot after this entry, or a later one, does."""
    reason: str
    damaged: tuple[str, ...]


class Waiting(NamedTuple):
    """There is a snapshot, and the log has not come to the entry that it names."""

    snapshot_index: int


class _Failed(Exception):
    """The machine itself has raised."""


class Opening(NamedTuple):
    """What a machine is opened with."""

    name: str
    binding: Machine
    factory: MachineFactory
    files: SnapshotFiles
    store: LedgerStore
    left_outs: LeftOuts
    applying: ApplyingFile

    def run(self) -> Opened | Stopped | Lacking | Waiting | SnapshotsUnavailable:
        """Runs on the apply thread. Raises DirectoryDamaged or RangeDamaged if the log is not readable
        yet, StoreFailure if the disk fails."""
        try:
            self.files.delete_unfinished(self.name, self.left_outs.committed_index)
            return self._opened(self.files.indices_of(self.name))
        except SnapshotsUnavailable as unavailable:
            return unavailable
        except OSError as error:
            raise StoreFailure(refusal(self.files.folder, "read", error)) from error
        except _Failed as failure:
            return Stopped(self.binding.index, self.binding.index, str(failure))

    def _opened(self, indices: list[int]) -> Opened | Stopped | Lacking | Waiting:
        name, binding, factory, files, store, left_outs, applying = self
        machine = _made(factory)
        kept = _of_machine("asked for its applied index", machine.applied)
        if kept is not None and not isinstance(kept, Applied):
            raise _Failed(f"apply returned {type(kept).__name__}, not Applied")
        outdated = [index for index in indices if self._is_outdated(index)]
        indices = [index for index in indices if index not in outdated]
        acts_as = None
        is_kept = kept is not None and kept.index >= binding.index and log_holds(store, kept)
        if kept is not None and is_kept and not left_outs.contradict(applying.left_out, kept.index):
            if binding.version > machine.version:
                # Whether it was kept before the log went over or behind it: it has to stop there.
                return Stopped(kept.index, kept.index, too_new_reason(name, binding.version, machine))
            acts_as = _kept_version(machine, binding.version)
        if acts_as is not None:
            assert kept is not None
            own = tuple(index for index in indices if index <= kept.index)
            left_out = left_outs.with_later(applying.left_out)
            runner = MachineRunner(
                name, binding.channel, machine, acts_as, applying=applying, left_out=left_out
            )
            self._keep_results(runner, own, kept.index)
            behind = _log_bytes(store, own, kept.index)
            return Opened(runner, kept.index, kept, own, tuple(outdated), None, (), left_out, behind)
        if kept is not None:
            _of_machine("cleared", machine.clear)
        damaged: list[str] = []
        useless = list(outdated)
        ahead: list[int] = []
        too_new = 0
        for index in reversed(indices):
            results: bytes | None = None
            try:
                reader = files.open(name, index)
                with closing(reader):
                    if not log_holds(store, Applied(*reader.head.point)):
                        (ahead if index > left_outs.committed_index else useless).append(index)
                    elif reader.head.version > machine.version:
                        too_new = too_new or reader.head.version
                    else:
                        results = reader.read(reader.head.kept_bytes)
                        _of_machine("loaded", partial(machine.load, reader))
                        reader.finish()
                        if reader.head.version:
                            _of_machine("told its version", partial(machine.act_as, reader.head.version))
            except SnapshotDamaged as damage:
                damaged.append(str(damage))
                useless.append(index)
                machine = _made(factory)  # the damaged one may have left something in it
                _of_machine("cleared", machine.clear)
                continue
            if results is None:
                continue
            applied = Applied(*reader.head.point)
            acts_as = reader.head.version
            left_out = left_outs.with_later(reader.head.left_out)
            runner = MachineRunner(name, binding.channel, machine, acts_as, results, applying, left_out)
            older = tuple(each for each in indices if each <= index)
            gone = tuple(sorted(useless))
            return Opened(runner, index, applied, older, gone, reader.id, tuple(damaged), left_out)
        begin_index = store.begin.index
        if too_new:
            return Stopped(begin_index, begin_index, too_new_reason(name, too_new, machine))
        if begin_index >= binding.index and ahead:
            return Waiting(min(ahead))
        if begin_index >= binding.index:
            reason = (
                f"the log begins at index {begin_index + 1}, and no good snapshot of {name} covers the"
                " earlier entries; the other members are asked for one"
            )
            if outdated:
                reason = f"its state here includes an entry that was stepped over; {reason}"
            return Lacking(begin_index, reason, tuple(damaged))
        left_out = left_outs.known
        runner = MachineRunner(name, binding.channel, machine, 0, applying=applying, left_out=left_out)
        gone = tuple(sorted(useless))
        return Opened(runner, binding.index - 1, None, (), gone, None, tuple(damaged), left_out)

    def _is_outdated(self, index: int) -> bool:
        """It holds an entry that the machine leaves out. Raises SnapshotsUnavailable."""
        try:
            with closing(self.files.open(self.name, index)) as reader:
                return self.left_outs.contradict(reader.head.left_out, index)
        except SnapshotDamaged:
            return False  # its first use finds that out

    def _keep_results(self, runner: MachineRunner, indices: tuple[int, ...], index: int) -> None:
        """A machine keeps its own state, and none of the results that sessions may ask for again: those
        up to its newest good snapshot are in that; what came behind is unknown. Raises
        SnapshotsUnavailable."""
        for at in reversed(indices):
            try:
                with closing(self.files.open(self.name, at)) as reader:
                    if log_holds(self.store, Applied(*reader.head.point)):
                        runner.take_results(reader.read(reader.head.kept_bytes), is_older=at < index)
                        return
            except SnapshotDamaged:
                continue  # it is found again where the snapshots are verified


def _kept_version(machine: StateMachine, bound: int) -> int | None:
    """That its own state follows from; None: nobody can tell."""
    version = _of_machine("asked which version it has kept", machine.kept_version)
    if version is None:
        return 1 if bound == 1 else None
    if not isinstance(version, int) or not 0 < version <= machine.version:
        raise _Failed(f"the version that it has kept is {version!r}, and it has {machine.version}")
    return version


def _made(factory: MachineFactory) -> StateMachine:
    machine = _of_machine("made", factory)
    if not isinstance(machine, StateMachine):
        raise _Failed(f"its factory made {type(machine).__name__}, which is no StateMachine")
    says = version_of(factory)
    if machine.version != says:
        raise _Failed(
            f"it has version {machine.version}, and its factory {says}: give the factory the"
            " same attribute `version`"
        )
    return machine


def version_of(factory: MachineFactory) -> int:
    """Version of a class that makes machines, or of another object that declares one."""
    version = getattr(factory, "version", StateMachine.version)
    assert isinstance(version, int) and version > 0, (factory, version)
    return version


def _of_machine(what: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except (SnapshotDamaged, SnapshotsUnavailable):
        raise
    except BaseException as error:
        raise _Failed(f"it cannot be {what}: {error_text(error)}") from error


def _log_bytes(store: LedgerStore, snapshots: tuple[int, ...], index: int) -> int:
    """After the newest of these snapshots, up to this entry, which the log holds."""
    first_index = max(snapshots[-1] if snapshots else -1, store.begin.index)
    try:
        return store.point_on_disk(index).position - store.point_on_disk(first_index).position
    except IndexOutOfRange:
        return 0  # cut or dropped meanwhile


def log_holds(store: LedgerStore, applied: Applied) -> bool:
    """Raises DirectoryDamaged, RangeDamaged."""
    if not store.begin.index <= applied.index <= store.end.index:
        return False
    try:
        point = store.point_on_disk(applied.index)
    except IndexOutOfRange:
        return False  # cut or dropped meanwhile
    return (point.term, point.chain) == (applied.term, applied.chain)


# ----------------------------------------------------------------
# SlicedSave: one state machine being saved, a slice at a time. Between slices it goes on applying; what
# is saved stays as it was at the first one.
#
# Slices are written on the thread that applies. The disk is waited for elsewhere, since a sync may take
# as long as hundreds of commands.


class SaveStep(Enum):
    MORE = "more"
    """Is to be written, once the machine had its turn."""
    SYNC = "sync"
    """First `sync`: much is on its way to the disk."""
    END = "end"
    """All is written: `finish`."""


class SlicedSave:
    """A save in slices. No call may be made while another runs, on any thread; failures are returned as
    values. After `sync` or `finish` has failed, the caller must `abandon` it."""

    def __init__(self, runner: MachineRunner, files: SnapshotFiles, applied: Applied) -> None:
        """`applied`: the machine's applied index, as long as `write_slice` was not called."""
        self.index = applied.index
        self.is_away = False
        """Of the loop: `sync` or `finish` is on its way."""
        self._runner = runner
        self._files = files
        self._applied = applied
        self._writer: SnapshotFileWriter | None = None
        self._slices: Iterator[None] | None = None

    def write_slice(self) -> SaveStep | str:
        try:
            if self._writer is None:
                self._writer, self._slices = self._runner.begin_save(self._files, self._applied)
            assert self._slices is not None
            for _ in self._slices:
                return SaveStep.SYNC if self._writer.owes_sync else SaveStep.MORE
            return SaveStep.END
        except BaseException as error:
            self.abandon()
            return error_text(error)

    def sync(self) -> str:
        try:
            assert self._writer is not None
            self._writer.sync()
        except Exception as error:
            return error_text(error)
        return ""

    def finish(self) -> str:
        """The failure; empty: on disk."""
        try:
            assert self._writer is not None
            self._writer.finish()
        except Exception as error:
            return error_text(error)
        self._writer = None
        return ""

    def abandon(self) -> None:
        """Call on the apply thread. The machine may drop state kept for the save; written files are
        deleted."""
        close = getattr(self._slices, "close", None)
        if close is not None:
            with suppress(BaseException):  # it is given up, whatever the machine makes of that
                close()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
