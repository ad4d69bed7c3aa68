"""Reopening: a member whose log was replaced, or whose directory has to be another one, begins anew,
without an end of the process.

on the loop        the node is given up: everybody is answered, every connection of members ends
the disk threads   carry out what they were asked for; then the directory is closed and opened, which
                   removes what is left of the old log
on the loop        another node on it, connected like that of a new process
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorumlog.errors import ConfigError, LedgerError, StoreFailure
from quorumlog.server.disk_thread import DiskThread
from quorumlog.server.node_driver import NodeDriver
from quorumlog.store.member_directory import MemberDirectory, open_directory_of


class Reopening:
    def __init__(
        self,
        driver: NodeDriver,
        reason: str,
        threads: Sequence[DiskThread],
        opened: Callable[[NodeDriver, MemberDirectory], None],
    ) -> None:
        """`opened(driver, directory)`: another node takes the place of that of `driver`."""
        self._driver = driver
        self._opened = opened
        self._directory: MemberDirectory | None = driver.directory
        """What is open; None between the two."""
        self._is_over = False
        driver.part(reason)
        self._end_work_of([*threads])

    def _end_work_of(self, threads: list[DiskThread]) -> None:
        """Behind all that was asked of each thread: it may still write into the old log."""
        thread = threads.pop()
        if threads:
            thread.submit(lambda: None, lambda _: self._end_work_of(threads))
        else:
            thread.submit(self._open, self._adopt)

    def _open(self) -> None:
        """In the last of the threads."""
        old = self._driver.directory
        self._directory = None
        old.close(False)
        try:
            self._directory = open_directory_of(self._driver.config, old.disk)
        except ConfigError as error:
            raise StoreFailure(str(error)) from error

    def _adopt(self, result: StoreFailure | LedgerError | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        if result is not None:
            self._driver.fail(result)
            return
        assert self._directory is not None
        self._opened(self._driver, self._directory)

    def close(self) -> None:
        """The server stops; its threads have ended."""
        self._is_over = True
        if self._directory is not None:
            self._directory.close(False)
