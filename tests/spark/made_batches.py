"""Stamped batches of a made-up log, for tests that need no disk and no server."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.spark.partitions import EntryPoint


class MadeLog:
    """Entries as a leader would have stamped them: no-ops where `None` stands for a body."""

    def __init__(self, bodies: Sequence[bytes | None], *, term: int = 1) -> None:
        parts = [EntryBatch.noop() if b is None else EntryBatch.from_bodies([b]) for b in bodies]
        self.batch = EntryBatch.concatenate(parts)
        self.batch.stamp(0, term, np.cumsum(self.batch.sizes) - self.batch.sizes, 0)

    def range(self, first_index: int, stop_index: int) -> EntryBatch:
        """A copy, so that a test may damage it."""
        piece = self.batch.slice(first_index, stop_index)
        return EntryBatch(bytearray(piece.buffer), piece.sizes)

    def point_of(self, index: int) -> EntryPoint:
        return EntryPoint(int(self.batch.starts[index]), int(self.batch.headers()["chain_crc"][index]))
