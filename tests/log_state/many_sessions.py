"""As many sessions as a log remembers, with all receipts, as a member has them."""

from __future__ import annotations

from itertools import count
from random import Random

import msgspec

from quorumlog.log_state.control_entries import ANONYMOUS, MOST_PRODUCERS, ProducerEpoch
from quorumlog.log_state.log_state import LogState
from quorumlog.log_state.producers import MOST_BATCHES, ProducerRange, Producers, SessionRecord


def many_sessions() -> LogState:
    """Ids and tokens are random, as those of clients are: nothing makes them shorter."""
    random, encode = Random(21), msgspec.msgpack.Encoder().encode
    items, indices = [], count(5_000_000, 300)
    for _ in range(MOST_PRODUCERS):
        epoch, last, ranges = ProducerEpoch(next(indices), 17), random.randrange(100_000), []
        for _ in range(MOST_BATCHES):
            size = random.choice((1, 1, 64, 256))
            ranges.append((ProducerRange(last + 1, next(indices), size, 17),))
            last += size
        session = SessionRecord(epoch, random.randbytes(16), last, tuple(ranges))
        used = (ranges[-1][0].first_index - 1).to_bytes(8, "big")
        items.append((ANONYMOUS + random.randbytes(16).hex(), used + encode(session)))
    return LogState(level=3, producers=Producers.of_record(None, items))
