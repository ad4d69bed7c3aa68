"""ReadPromises: how fresh an answer is, and that it is as fresh as it was asked to be."""

from __future__ import annotations

import math
from collections.abc import Callable

from quorumlog.errors import BadRequest, LedgerError, NotCaughtUp, TooStale
from quorumlog.net.connection import Connection
from quorumlog.server.node_driver import NodeDriver
from quorumlog.wire.read_promise import COMMITTED, CONSISTENCIES, READ_INDEX, ReadPromise

CATCH_UP_WAIT_MS = 1000
"""For what the client has appended itself; then another member may have it."""
RETRY_MS = 20

Kept = Callable[[float, LedgerError | None], None]
"""Gets since when nothing is missing (-inf: only the member's own freshness counts), or a refusal."""


def age_of(driver: NodeDriver, since_ms: float) -> float:
    """Nothing is missing that was acknowledged before `since_ms`; -1: nothing is known."""
    age_ms = driver.node.raft.reads.now_ms - since_ms
    return age_ms if age_ms < math.inf else -1.0


class ReadPromises:
    """Of the reads and questions of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def wait(self, driver: NodeDriver, promise: ReadPromise, done: Kept) -> None:
        """Tell `done` once what is committed here is as fresh as promised."""
        node = driver.node
        fresh_since_ms = node.raft.reads.fresh_since_ms
        if promise.consistency == READ_INDEX:
            since_ms = node.raft.reads.now_ms  # it joins only a round that begins after this

            def granted(refusal: LedgerError | None) -> None:
                done(since_ms, refusal)

            node.confirmations.request_read(granted, self._connection)
        elif promise.consistency != COMMITTED:
            known = " and ".join(CONSISTENCIES)
            unknown = f"{promise.consistency!r} is no read_consistency; this release knows {known}"
            done(-math.inf, BadRequest(unknown))
        elif promise.at_least_index > node.committed_index:
            index = promise.at_least_index

            def woken() -> None:
                refusal: LedgerError | None = None
                if index > node.committed_index:
                    refusal = NotCaughtUp(
                        f"{driver.config.member_id} has committed entries up to {node.committed_index},"
                        f" and not up to {index} yet, which this client has appended",
                        retry_after_ms=RETRY_MS,
                    )
                done(
                    -math.inf,
                    refusal or self.refusal_of_age(driver, promise, fresh_since_ms()),
                )

            driver.reads.wait_for(index, CATCH_UP_WAIT_MS, woken)
        else:
            done(-math.inf, self.refusal_of_age(driver, promise, fresh_since_ms()))

    def refusal_of_age(
        self, driver: NodeDriver, promise: ReadPromise, since_ms: float
    ) -> LedgerError | None:
        """Asked once more when the answer is there: it may have been read from a file."""
        most_ms = promise.max_staleness_ms
        if most_ms < 0:
            return None
        age_ms = age_of(driver, since_ms)
        if 0 <= age_ms <= most_ms:
            return None
        how_old = f"may be {age_ms:.0f} ms old" if age_ms >= 0 else "is of unknown age"
        return TooStale(
            f"what {driver.config.member_id} knows {how_old}, asked for were {most_ms:.0f} ms at most",
            retry_after_ms=RETRY_MS,
        )
