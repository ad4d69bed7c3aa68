"""SlicedSave: one state machine being saved, a slice at a time. Between slices it goes on applying; what
is saved stays as it was at the first one.

Slices are written on the thread that applies. The disk is waited for elsewhere, since a sync may take as
long as hundreds of commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from enum import Enum

from quorumlog.node.applying.machine_runner import MachineRunner, told
from quorumlog.state_machine import Applied
from quorumlog.store.snapshots import SnapshotFiles, SnapshotFileWriter


class SaveStep(Enum):
    MORE = "more"
    """Is to be written, once the machine had its turn."""
    SYNC = "sync"
    """First `sync`: much is on its way to the disk."""
    END = "end"
    """All is written: `finish`."""


class SlicedSave:
    """None of the calls is made while another runs, on whatever thread; what went wrong is a value.
    After `sync` or `finish` has failed it is for the caller to `abandon` it."""

    def __init__(self, runner: MachineRunner, files: SnapshotFiles, applied: Applied) -> None:
        """`applied`: what the machine holds as long as `write_slice` was not called."""
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
            return told(error)

    def sync(self) -> str:
        try:
            assert self._writer is not None
            self._writer.sync()
        except Exception as error:
            return told(error)
        return ""

    def finish(self) -> str:
        """On disk when this returns; else what went wrong."""
        try:
            assert self._writer is not None
            self._writer.finish()
        except Exception as error:
            return told(error)
        self._writer = None
        return ""

    def abandon(self) -> None:
        """On the thread that applies. The machine need not keep anything for it any more; what was
        written goes."""
        close = getattr(self._slices, "close", None)
        if close is not None:
            with suppress(BaseException):  # it is given up, whatever the machine makes of that
                close()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
