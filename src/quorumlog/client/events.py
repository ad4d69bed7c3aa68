"""A client's events about the group, for the log `quorumlog.client` and callbacks."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from quorumlog.errors import ConfigError
from quorumlog.net.rpc.view import EventKind, GroupEvent

log = logging.getLogger("quorumlog.client")

Callback = Callable[[str], object]
"""Given the address of a server, `host:port`."""


class Events:
    def __init__(
        self, group: str, on_leader_change: Callback | None, on_reconnect: Callback | None
    ) -> None:
        for name, callback in (("on_leader_change", on_leader_change), ("on_reconnect", on_reconnect)):
            if callback is not None and not callable(callback):
                raise ConfigError(f"{name} must be a function that takes an address, not {callback!r}")
        self._group = group
        self._callbacks = {EventKind.LEADER: on_leader_change, EventKind.BACK: on_reconnect}

    def told(self, event: GroupEvent) -> list[Callable[[], None]]:
        """Logs it; returns the callbacks to call, which raise nothing."""
        sentence = f"{event.kind.value} ({event.reason})" if event.reason else event.kind.value
        level = logging.ERROR if event.kind is EventKind.SET_BACK else logging.INFO
        log.log(level, "group %s, %s: %s", self._group, event.address, sentence)
        callback = self._callbacks.get(event.kind)
        return [partial(_call, callback, event.address)] if callback is not None else []


class CallbackThread:
    """Callbacks of a blocking client: one after the other on a thread of their own, so that they may use
    the client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Callback, str]] = deque()
        self._is_running = False

    def wrapped(self, callback: Callback | None) -> Callback | None:
        if not callable(callback):
            return callback  # `Events` says so

        def call(address: str) -> None:
            with self._lock:
                self._waiting.append((callback, address))
                is_first, self._is_running = not self._is_running, True
            if is_first:
                threading.Thread(target=self._run, name="quorumlog-callbacks", daemon=True).start()

        return call

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                callback, address = self._waiting.popleft()
            _call(callback, address)


def _call(callback: Callback, address: str) -> None:
    try:
        callback(address)
    except Exception:  # it is the application's, and may raise anything
        log.exception("a callback of the client failed for %s: %r", address, callback)
