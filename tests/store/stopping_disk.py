"""A disk that stops at a chosen step, as a killed process would leave it, or refuses chosen paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorumlog.entry_header import Buffer
from quorumlog.store.disk import OsDisk, OsFile


class Stopped(BaseException):
    """The process was killed here. No `except Exception` survives it."""


class StoppingDisk(OsDisk):
    """Counts every call that changes something; `refuse` may raise what the system would say."""

    def __init__(
        self, stop_at: int = -1, refuse: Callable[[str, str], OSError | None] | None = None
    ) -> None:
        super().__init__()
        self.steps: list[tuple[str, str]] = []
        self.stop_at = stop_at
        self._refuse = refuse

    def step(self, what: str, path: str) -> None:
        if len(self.steps) == self.stop_at:
            raise Stopped(f"{what} {path}")
        self.steps.append((what, path))
        error = self._refuse(what, path) if self._refuse else None
        if error is not None:
            raise error

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> OsFile:
        if create:
            self.step("create", path)
        opened = super().open(path, writable=writable, create=create)
        return StoppingFile(opened, self)

    def make_directory(self, path: str) -> None:
        self.step("make_directory", path)
        super().make_directory(path)

    def rename(self, old: str, new: str) -> None:
        self.step("rename", new)
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self.step("unlink", path)
        super().unlink(path)

    def sync_directory(self, path: str) -> None:
        self.step("sync_directory", path)
        super().sync_directory(path)


class StoppingFile(OsFile):
    def __init__(self, opened: OsFile, disk: StoppingDisk) -> None:
        super().__init__(opened.path, opened._descriptor, opened._times)
        self._disk = disk

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        self._disk.step("write", self.path)
        super().pwritev(buffers, position)

    def allocate(self, position: int, size_bytes: int) -> None:
        self._disk.step("allocate", self.path)
        super().allocate(position, size_bytes)

    def set_size(self, size_bytes: int) -> None:
        self._disk.step("set_size", self.path)
        super().set_size(size_bytes)

    def sync(self) -> None:
        self._disk.step("sync", self.path)
        super().sync()
