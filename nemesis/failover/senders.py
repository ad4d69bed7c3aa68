"""Senders: threads that send to whoever takes it, and note what was acknowledged."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from nemesis.failover.group import QUEUES, TOPIC
from quorumlog.broker import Message, connect
from quorumlog.errors import LedgerError, OutcomeUnknown
from quorumlog.net.credentials import ClientUser

TIMEOUT_MS = 2_000
BATCH = 5
RETRY_S = 0.05
PAUSE_S = 0.01
"""Between two batches: faults are looked for here, not speed."""


class Senders:
    """`with Senders(addresses) as senders`."""

    def __init__(self, addresses: Sequence[str], count: int = 3, user: ClientUser | None = None) -> None:
        self._user = user
        self._addresses = list(addresses)
        self._stop = threading.Event()
        self.acknowledged: list[list[bytes]] = [[] for _ in range(count)]
        self.unknown: list[list[bytes]] = [[] for _ in range(count)]
        self._times_s: list[tuple[float, float]] = []
        """When a batch was sent, and when it was acknowledged."""
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(count)]

    def __enter__(self) -> Senders:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def count(self) -> int:
        """Acknowledged so far."""
        return sum(len(each) for each in self.acknowledged)

    def silence_s(self, since_s: float) -> float:
        """From this moment, of time.monotonic(), to the first acknowledgement of a later batch."""
        return min(acked - since_s for sent, acked in self._times_s if sent >= since_s)

    def _send(self, number: int) -> None:
        place, sent = number, 0
        while not self._stop.is_set():
            address = self._addresses[place % len(self._addresses)]
            with (
                suppress(LedgerError),
                connect(address, timeout_ms=TIMEOUT_MS, user=self._user) as broker,
            ):
                while not self._stop.is_set():
                    bodies = [b"%d-%d" % (number, sent + each) for each in range(BATCH)]
                    sent += BATCH
                    messages = [Message(TOPIC, body) for body in bodies]
                    sent_s = time.monotonic()
                    try:
                        broker.send_batch(messages, queue_id=number % QUEUES)
                    except OutcomeUnknown:
                        self.unknown[number] += bodies
                        raise
                    self._times_s.append((sent_s, time.monotonic()))
                    self.acknowledged[number] += bodies
                    self._stop.wait(PAUSE_S)
            place += 1
            self._stop.wait(RETRY_S)
