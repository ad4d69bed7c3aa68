"""ProcessLimits: limits of a process's connections, over all its ports."""

from __future__ import annotations

import os
import resource
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress

from quorumlog.config import MIB

GREETING_MS = 5000
"""A connection that has not sent its whole Hello by then is closed."""
GREETING_BYTES = 16 * 1024
"""Of a Hello at most; and of receive memory until it has arrived."""
UNSENT_BYTES = 4 * MIB
"""Of answers that wait to be sent on one connection: beyond them no more requests are taken from it."""
ALL_UNSENT_BYTES = 192 * MIB
"""Held for all clients of a loop: beyond them the one that leaves most is closed."""
UNFINISHED_BYTES = 128 * MIB
"""Of frames and requests that have come in part, or wait: of all clients, and as many of all members.
Beyond them the one that began first is closed, if it began `UNFINISHED_S` ago; beyond twice as many,
whenever it began."""
UNFINISHED_S = 5.0
MOST_LOOKING = 8
"""Connections that are let in for `GREETING_MS` where others are refused."""
MOST_LOOKING_OF_ADDRESS = 4
WANTED_DESCRIPTORS = 65_536
COUNTS = 32
"""Other descriptors are counted anew whenever a 32nd of all were accepted as connections."""
_UNLIMITED = 1 << 20

Close = Callable[[str], None]


def descriptors_in_force() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def descriptors_in_use() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # there is none left to look with
        return descriptors_in_force()


def raise_descriptor_limit() -> None:
    """For processes of our commands only, not for embedded servers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class ProcessLimits:
    """Three quarters of the descriptors that nothing else has are for connections; a quarter is kept
    back for the store and for other members. Half of that is for connections not yet identified: a
    member identifies itself in its Hello."""

    def __init__(
        self,
        descriptors: Callable[[], int] = descriptors_in_force,
        in_use: Callable[[], int] = descriptors_in_use,
    ) -> None:
        self._descriptors = descriptors
        self._in_use = in_use
        self._others = 0
        """Descriptors that are no connections, as they were counted last."""
        self._open: dict[object, Close] = {}
        """Of every loop of this process, and what closes each."""
        self._silent: OrderedDict[object, Close] = OrderedDict()
        """Those of them that have not said who they are; the oldest first."""
        self._unfinished = {True: _Unfinished(), False: _Unfinished()}
        """Of clients, and of members."""
        self._given_up: set[object] = set()
        """Connections that are being closed for theirs, and hold it for a moment yet."""
        self._looking: dict[object, str] = {}
        """And from which addresses."""
        self.accepted = 0
        self.refused = 0
        self.over: Counter[str] = Counter()
        """By limit of a user or an address (`[limits]`): connections and requests that were refused."""
        self._is_refusing = False

    @property
    def open_connections(self) -> int:
        return len(self._open)

    @property
    def most_connections(self) -> int:
        return self._free * 3 // 4

    @property
    def _free(self) -> int:
        return max(0, self._descriptors() - self._others)

    def enter(self, connection: object, close: Close) -> bool:
        """True if within the limit for all; otherwise only a member's may stay. `close` is called on any
        thread, with a reason."""
        self.accepted += 1
        self._open[connection] = close
        self._silent[connection] = close
        if self.accepted % max(1, self._descriptors() // COUNTS) == 0 or self.accepted == 1:
            # Again and again: directories are opened while connections come, and files later on.
            self._others = max(0, self._in_use() - len(self._open))
        return len(self._open) <= self.most_connections

    def greeted(self, connection: object) -> None:
        self._silent.pop(connection, None)

    def lets_look(self, connection: object, host: str) -> bool:
        """It may stay for a moment, though it is one too many."""
        of_host = sum(each == host for each in self._looking.values())
        if len(self._looking) >= MOST_LOOKING or of_host >= MOST_LOOKING_OF_ADDRESS:
            return False
        self._looking[connection] = host
        return True

    def leave(self, connection: object) -> None:
        self._looking.pop(connection, None)
        self._silent.pop(connection, None)
        self._open.pop(connection, None)
        self._given_up.discard(connection)
        self._finished(connection)
        if self._is_refusing and len(self._open) < self.most_connections * 7 // 8:
            self._is_refusing = False

    @property
    def is_beyond_all(self) -> bool:
        """The reserve is used up as well, as far as connections may use it."""
        return len(self._open) > self._free * 7 // 8

    def close_silent(self) -> None:
        """Close the connection silent for longest before its Hello, on any port: a member sends its own
        at once."""
        with suppress(KeyError):
            _, close = self._silent.popitem(last=False)
            close("")

    def unfinished(self, connection: object, size_bytes: int, *, is_client: bool, now_s: float) -> None:
        """So many bytes of a request have arrived, and it is not served yet. 0: none is unfinished."""
        if not size_bytes:
            self._finished(connection)
            return
        if connection in self._given_up:
            return
        of = self._unfinished[is_client]
        began_s, before_bytes = of.began.get(connection, (now_s, 0))
        of.began[connection] = began_s, size_bytes
        of.size_bytes += size_bytes - before_bytes
        while of.size_bytes > UNFINISHED_BYTES:
            oldest, (began_s, size_bytes) = next(iter(of.began.items()))
            if now_s - began_s < UNFINISHED_S and of.size_bytes <= 2 * UNFINISHED_BYTES:
                return
            if close := self._open.get(oldest):
                self._given_up.add(oldest)
                close(
                    f"it does not arrive completely, or waits: {size_bytes} bytes are held for it, and"
                    f" {of.size_bytes} for all"
                )
            self._finished(oldest)

    def _finished(self, connection: object) -> None:
        for of in self._unfinished.values():
            _, size_bytes = of.began.pop(connection, (0.0, 0))
            of.size_bytes -= size_bytes

    @property
    def problem(self) -> str:
        """Empty while no connection is refused."""
        if not self._is_refusing:
            return ""
        return (
            "connections are refused: the limit of open files, ulimit -n, allows no more (now"
            f" {len(self._open)} of {self.most_connections}; {self.refused} refused since the start)"
        )

    def refuse(self) -> bool:
        """One more was refused. True of the first in a row: there is a line in the log for it."""
        self.refused += 1
        is_first = not self._is_refusing
        self._is_refusing = True
        return is_first


class _Unfinished:
    def __init__(self) -> None:
        self.began: dict[object, tuple[float, int]] = {}
        """Of each connection, when it began, and how much has come; the oldest first."""
        self.size_bytes = 0


_LIMITS = ProcessLimits()


def process_limits() -> ProcessLimits:
    return _LIMITS
