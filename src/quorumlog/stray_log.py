"""Unwanted connections to a port."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address

QUIET_S = 60.0


def is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


class StrayLog:
    """Of one listener: connections closed for the bytes they sent. Port scanners and clients of other
    protocols get one log line a minute."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._said_s = -QUIET_S
        self._left_out = 0
        self.closed = 0

    def closing(self, whose: str, violation: object) -> None:
        self.closed += 1
        now_s = self._clock()
        if now_s - self._said_s < QUIET_S:
            self._left_out += 1
            return
        more = f" (and {self._left_out} more since the last line of these)" if self._left_out else ""
        self._said_s, self._left_out = now_s, 0
        self._log.warning(
            "closing the connection of %s: %s%s",
            whose,
            violation,
            more,
            extra={"event": "connection_closed"},
        )
