"""What a client tells of the group, to the log `quorumlog.client` and to callbacks."""

from __future__ import annotations

import logging
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
        """Logs it; returns what to call, which raises nothing."""
        sentence = f"{event.kind.value} ({event.reason})" if event.reason else event.kind.value
        level = logging.ERROR if event.kind is EventKind.SET_BACK else logging.INFO
        log.log(level, "group %s, %s: %s", self._group, event.address, sentence)
        callback = self._callbacks.get(event.kind)
        return [partial(_call, callback, event.address)] if callback is not None else []


def _call(callback: Callback, address: str) -> None:
    try:
        callback(address)
    except Exception:  # it is the application's, and may raise anything
        log.exception("a callback of the client failed for %s: %r", address, callback)
