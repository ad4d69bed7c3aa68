"""What a start goes on from: what the machine has kept itself, its newest good snapshot, or nothing.

Whatever it is, it counts only if the log holds the very entry that it names, or begins right behind it:
a state that follows from another log would never be like the others' again. A snapshot that came from
another member may be ahead of this log; it is left alone until the log has come there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from functools import partial
from typing import NamedTuple, TypeVar

from quorumlog.entry import SnapshotId
from quorumlog.errors import IndexOutOfRange, StoreFailure
from quorumlog.log_state.log_state import Machine
from quorumlog.node.applying.machine_runner import MachineRunner, Stopped, told, too_new_reason
from quorumlog.state_machine import Applied, StateMachine
from quorumlog.store.disk import refusal
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.snapshots import (
    ApplyingFile,
    LeftOut,
    SnapshotDamaged,
    SnapshotFiles,
    SnapshotsUnavailable,
)

T = TypeVar("T")
MachineFactory = Callable[[], StateMachine]


class LeftOuts(NamedTuple):
    """What the log says of entries that a machine leaves out."""

    known: frozenset[LeftOut]
    """As far as it is committed."""
    begin_index: int
    """Of entries up to there nothing need be known."""
    committed_index: int

    def contradict(self, left_out: Collection[LeftOut], index: int) -> bool:
        """Whether a state that holds what came up to `index`, but nothing of `left_out`, is not what
        this log leads to. It may follow from an order that this member has not heard of yet."""
        lacks = any(each[0] <= index and each not in left_out for each in self.known)
        return lacks or any(
            self.begin_index < each[0] and each[1] <= self.committed_index
            for each in left_out
            if each not in self.known
        )

    def with_later(self, left_out: Iterable[LeftOut]) -> frozenset[LeftOut]:
        """Of a state that holds nothing of `left_out` either: what of that still says something. The
        log's state forgets orders in the end, and so no more are noted than it remembers."""
        return self.known | {each for each in left_out if each[0] > self.begin_index}


class Opened(NamedTuple):
    runner: MachineRunner
    applied_index: int
    """The next entry that it takes is the one behind."""
    applied: Applied | None
    """None: it holds nothing yet."""
    snapshots: tuple[int, ...]
    """Indices of those that may be good, ascending."""
    useless: tuple[int, ...]
    """Of those that are not: damaged, or of another log."""
    loaded: SnapshotId | None
    """The one that was loaded, and so is known to be good."""
    damaged: tuple[str, ...]
    """What is wrong with those that were passed over."""
    left_out: frozenset[LeftOut] = frozenset()
    """Entries that it holds nothing of, or will hold nothing of."""
    log_bytes: int = 0
    """Of the log between its newest snapshot and `applied_index`."""


class Lacking(NamedTuple):
    """Nothing here tells what the machine was behind the begin of the log."""

    least_index: int
    """A snapshot behind this entry, or a later one, does."""
    reason: str
    damaged: tuple[str, ...]


class Waiting(NamedTuple):
    """There is a snapshot, and the log has not come to the entry that it names."""

    snapshot_index: int


class _Failed(Exception):
    """The machine itself raised something."""


def open_machine(
    name: str,
    binding: Machine,
    factory: MachineFactory,
    files: SnapshotFiles,
    store: LedgerStore,
    left_outs: LeftOuts,
    applying: ApplyingFile,
) -> Opened | Stopped | Lacking | Waiting | SnapshotsUnavailable:
    """Runs on the thread that applies. Raises DirectoryDamaged or RangeDamaged where the log cannot tell
    yet, StoreFailure where the disk refuses."""
    try:
        files.delete_unfinished(name, left_outs.committed_index)
        indices = files.indices_of(name)
        return _opened(name, binding, factory, files, store, indices, left_outs, applying)
    except SnapshotsUnavailable as unavailable:
        return unavailable
    except OSError as error:
        raise StoreFailure(refusal(files.folder, "read", error)) from error
    except _Failed as failure:
        return Stopped(binding.index, binding.index, str(failure))


def _opened(
    name: str,
    binding: Machine,
    factory: MachineFactory,
    files: SnapshotFiles,
    store: LedgerStore,
    indices: list[int],
    left_outs: LeftOuts,
    applying: ApplyingFile,
) -> Opened | Stopped | Lacking | Waiting:
    machine = _made(factory)
    kept = _of_machine("asked what it has applied", machine.applied)
    if kept is not None and not isinstance(kept, Applied):
        raise _Failed(f"what it has applied is {type(kept).__name__}, not Applied")
    outdated = [index for index in indices if _is_outdated(files, name, index, left_outs)]
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
        _keep_results(runner, files, store, own, kept.index)
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
            f"the log begins at index {begin_index + 1}, and no good snapshot of {name} holds what came"
            " before; the other members are asked for one"
        )
        if outdated:
            reason = f"what it has here holds an entry that was stepped over; {reason}"
        return Lacking(begin_index, reason, tuple(damaged))
    left_out = left_outs.known
    runner = MachineRunner(name, binding.channel, machine, 0, applying=applying, left_out=left_out)
    gone = tuple(sorted(useless))
    return Opened(runner, binding.index - 1, None, (), gone, None, tuple(damaged), left_out)


def _is_outdated(files: SnapshotFiles, name: str, index: int, left_outs: LeftOuts) -> bool:
    """It holds an entry that the machine leaves out. Raises SnapshotsUnavailable."""
    try:
        with closing(files.open(name, index)) as reader:
            return left_outs.contradict(reader.head.left_out, index)
    except SnapshotDamaged:
        return False  # which is found out by whoever needs it


def _kept_version(machine: StateMachine, bound: int) -> int | None:
    """That its own state follows from; None: nobody can tell."""
    version = _of_machine("asked which version it has kept", machine.kept_version)
    if version is None:
        return 1 if bound == 1 else None
    if not isinstance(version, int) or not 0 < version <= machine.version:
        raise _Failed(f"the version that it has kept is {version!r}, and it has {machine.version}")
    return version


def _keep_results(
    runner: MachineRunner, files: SnapshotFiles, store: LedgerStore, indices: tuple[int, ...], index: int
) -> None:
    """A machine keeps its own state, and none of the results that sessions may ask for again: those up
    to its newest good snapshot are in that; what came behind is unknown. Raises SnapshotsUnavailable."""
    for at in reversed(indices):
        try:
            with closing(files.open(runner.name, at)) as reader:
                if log_holds(store, Applied(*reader.head.point)):
                    runner.take_results(reader.read(reader.head.kept_bytes), is_older=at < index)
                    return
        except SnapshotDamaged:
            continue  # it is found again where the snapshots are verified


def _made(factory: MachineFactory) -> StateMachine:
    machine = _of_machine("made", factory)
    if not isinstance(machine, StateMachine):
        raise _Failed(f"what makes it made {type(machine).__name__}, which is no StateMachine")
    says = version_of(factory)
    if machine.version != says:
        raise _Failed(
            f"it has version {machine.version}, and what makes it says {says}: that needs the same"
            " attribute `version`"
        )
    return machine


def version_of(factory: MachineFactory) -> int:
    """Of a class that makes machines, or of whatever else says it."""
    version = getattr(factory, "version", StateMachine.version)
    assert isinstance(version, int) and version > 0, (factory, version)
    return version


def _of_machine(what: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except (SnapshotDamaged, SnapshotsUnavailable):
        raise
    except BaseException as error:
        raise _Failed(f"it cannot be {what}: {told(error)}") from error


def _log_bytes(store: LedgerStore, snapshots: tuple[int, ...], index: int) -> int:
    """Behind the newest of these snapshots, up to this entry, which the log holds."""
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
