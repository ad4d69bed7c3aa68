"""Writer: appends numbered rows in a session, each batch until it is acknowledged."""

from __future__ import annotations

import json
import threading

from quorumlog.client import connect
from quorumlog.errors import LedgerError

GROUP, COPY = "source", "copy"
AT_ONCE = 25
KEYS = 97
TIMEOUT_MS = 10_000
_PAUSE_S = 0.01


def body_of(writer: int, number: int) -> bytes:
    return b'{"id": "w%d-%d", "writer": %d, "n": %d}' % (writer, number % KEYS, writer, number)


def place_of(body: bytes) -> tuple[int, int]:
    """(writer, number)."""
    said = json.loads(body)
    return said["writer"], said["n"]


class Writer(threading.Thread):
    def __init__(self, servers: str, number: int, stop: threading.Event) -> None:
        super().__init__(name=f"writer {number}", daemon=True)
        self._servers = servers
        self._number = number
        self._stop_event = stop
        self.acknowledged = 0
        """Rows below this number are."""
        self.retries = 0
        self.problems: list[str] = []

    def run(self) -> None:
        try:
            self._append()
        except Exception as error:
            self.problems.append(f"{self.name} ended: {error!r}")

    def _append(self) -> None:
        with connect(
            self._servers, group=GROUP, producer_id=f"w{self._number}", timeout_ms=TIMEOUT_MS
        ) as log:
            while not self._stop_event.wait(_PAUSE_S):
                first = self.acknowledged
                bodies = [body_of(self._number, first + each) for each in range(AT_ONCE)]
                while True:  # also behind the end: nothing is left unknown
                    try:
                        log.append_batch(bodies, sequence=first)
                        break
                    except LedgerError:
                        self.retries += 1
                self.acknowledged += AT_ONCE
