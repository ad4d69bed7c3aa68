"""Both logs: groups `source` and `copy` of the same members."""

from __future__ import annotations

import hashlib

from quorumlog.client import LedgerClient, connect

SOURCE, COPY = "source", "copy"
PRODUCER = "copy"
BODY = b"row %09d " + b"." * 86
"""100 bytes."""
TIMEOUT_MS = 120_000
_AT_ONCE = 5000


class Copies:
    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.rows = 0
        """Appended to the source."""

    def client(self, group: str) -> LedgerClient:
        return connect(self.servers, group=group, timeout_ms=TIMEOUT_MS)

    def append(self, rows: int) -> None:
        with connect(self.servers, group=SOURCE, timeout_ms=TIMEOUT_MS, producer_id="source") as log:
            for first in range(self.rows, self.rows + rows, _AT_ONCE):
                stop = min(first + _AT_ONCE, self.rows + rows)
                log.append_batch([BODY % number for number in range(first, stop)])
        self.rows += rows

    def copied(self) -> int:
        """Rows that the copy has, by what it remembers of the sink."""
        with self.client(COPY) as log:
            known = {each.producer: each.last_sequence + 1 for each in log.producers()}
        return known.get(f"{PRODUCER}/rows", 0)

    def differences(self) -> str:
        """Empty: the copy holds each row once, in order. All bodies of both are read."""
        counts, digests = [], []
        for group in (SOURCE, COPY):
            digest, count = hashlib.sha256(), 0
            with self.client(group) as log:
                for entry in log.read(0):
                    digest.update(len(entry.body).to_bytes(4, "big") + entry.body)
                    count += 1
            counts.append(count)
            digests.append(digest.digest())
        if counts[0] != counts[1]:
            return f"{counts[0]} rows were to be copied, and {counts[1]} are in the copy"
        return (
            ""
            if digests[0] == digests[1]
            else "the copy has as many rows, and others or in another order"
        )
