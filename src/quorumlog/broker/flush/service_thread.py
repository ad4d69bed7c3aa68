"""ServiceThread: calls a service again and again, when its interval is over or when it is woken."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from quorumlog.errors import StoreFailure


class ServiceThread:
    def __init__(
        self,
        name: str,
        run_once: Callable[[], None],
        interval_ms: float,
        failed: Callable[[StoreFailure], None],
    ) -> None:
        self._run_once = run_once
        self._interval_s = interval_ms / 1000
        self._failed = failed
        self._event = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wakeup(self) -> None:
        if not self._event.is_set():
            self._event.set()

    def _run(self) -> None:
        while not self._stopping:
            self._event.wait(self._interval_s)
            self._event.clear()
            if self._stopping:
                return
            try:
                self._run_once()
            except StoreFailure as failure:
                self._failed(failure)
                return
            except Exception as error:  # a bug or the disk: either way the store must stop
                self._failed(StoreFailure("".join(traceback.format_exception(error))))
                return

    def stop(self) -> None:
        """Blocks until it has ended; idempotent."""
        self._stopping = True
        self._event.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
