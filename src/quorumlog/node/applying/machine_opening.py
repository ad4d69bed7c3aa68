"""What a start goes on from: what the machine has kept itself, its newest good snapshot, or nothing.

Whatever it is, it counts only if the log holds the very entry that it names, or begins right behind it:
a state that follows from another log would never be like the others' again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import NamedTuple, TypeVar

from quorumlog.errors import IndexOutOfRange, StoreFailure
from quorumlog.log_state.log_state import Machine
from quorumlog.node.applying.machine_runner import MachineRunner, Stopped, told
from quorumlog.state_machine import Applied, StateMachine
from quorumlog.store.disk import refusal
from quorumlog.store.files.snapshot_file import SnapshotDamaged, SnapshotFiles
from quorumlog.store.ledger_store import LedgerStore

T = TypeVar("T")
MachineFactory = Callable[[], StateMachine]


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
    loaded_index: int
    """Of the one that was loaded, and so is known to be good; -1: none was."""
    damaged: tuple[str, ...]
    """What is wrong with those that were passed over."""


class _Failed(Exception):
    """The machine itself raised something."""


def open_machine(
    name: str, binding: Machine, factory: MachineFactory, files: SnapshotFiles, store: LedgerStore
) -> Opened | Stopped:
    """Runs on the thread that applies. Raises DirectoryDamaged or RangeDamaged where the log cannot tell
    yet, StoreFailure where the disk refuses."""
    try:
        files.delete_unfinished(name)
        indices = files.indices_of(name)
    except OSError as error:
        raise StoreFailure(refusal(files.folder, "read", error)) from error
    try:
        return _opened(name, binding, factory, files, store, indices)
    except _Failed as failure:
        return Stopped(binding.index, binding.index, str(failure))


def _opened(
    name: str,
    binding: Machine,
    factory: MachineFactory,
    files: SnapshotFiles,
    store: LedgerStore,
    indices: list[int],
) -> Opened | Stopped:
    machine = _of_machine("made", factory)
    kept = _of_machine("asked what it has applied", machine.applied)
    if kept is not None and kept.index >= binding.index and log_holds(store, kept):
        runner = MachineRunner(name, binding.channel, machine, 0)
        return Opened(runner, kept.index, kept, tuple(indices), (), -1, ())
    if kept is not None:
        _of_machine("cleared", machine.clear)
    damaged: list[str] = []
    for index in reversed(indices):
        try:
            reader = files.open(name, index)
            with closing(reader):
                applied = Applied(*reader.head.point)
                if reader.head.version > machine.version or not log_holds(store, applied):
                    continue
                _of_machine("loaded", partial(machine.load, reader))
                reader.finish()
        except SnapshotDamaged as damage:
            damaged.append(str(damage))
            machine = _of_machine("made", factory)  # the damaged one may have left something in it
            _of_machine("cleared", machine.clear)
            continue
        runner = MachineRunner(name, binding.channel, machine, reader.head.version)
        older = tuple(each for each in indices if each <= index)
        useless = tuple(each for each in indices if each > index)
        return Opened(runner, index, applied, older, useless, index, tuple(damaged))
    begin_index = store.begin.index
    if begin_index >= binding.index:
        reason = (
            f"the log begins at index {begin_index + 1}, and no good snapshot of {name} holds what came"
            " before: put a snapshot of another member into its directory, and restart it"
        )
        return Stopped(binding.index, begin_index, reason)
    runner = MachineRunner(name, binding.channel, machine, 0)
    return Opened(runner, binding.index - 1, None, (), tuple(indices), -1, tuple(damaged))


def _of_machine(what: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except SnapshotDamaged:
        raise
    except Exception as error:
        raise _Failed(f"it cannot be {what}: {told(error)}") from error


def log_holds(store: LedgerStore, applied: Applied) -> bool:
    """Raises DirectoryDamaged, RangeDamaged."""
    if not store.begin.index <= applied.index <= store.end.index:
        return False
    try:
        point = store.point_on_disk(applied.index)
    except IndexOutOfRange:
        return False  # cut or dropped meanwhile
    return (point.term, point.chain) == (applied.term, applied.chain)
