"""How fresh an answer is, and that it is as fresh as it was asked to be."""

from __future__ import annotations

import math
from collections.abc import Callable

from quorumlog.errors import BadRequest, LedgerError, NotCaughtUp, TooStale
from quorumlog.server.node_driver import NodeDriver
from quorumlog.wire.read_promise import COMMITTED, CONSISTENCIES, READ_INDEX, ReadPromise

CATCH_UP_WAIT_MS = 1000
"""For what the client has appended itself; then another member may have it."""
RETRY_MS = 20

Kept = Callable[[float | LedgerError], None]
"""Gets since when nothing is missing (-inf: only the member's own freshness counts), or a refusal."""


def age_of(driver: NodeDriver, since_ms: float) -> float:
    """Nothing is missing that was acknowledged before `since_ms`; -1: nothing is known."""
    age_ms = driver.node.raft.reads.now_ms - since_ms
    return age_ms if age_ms < math.inf else -1.0


def wait_for_promise(driver: NodeDriver, promise: ReadPromise, done: Kept, owner: object) -> None:
    """Tell `done` once what is committed here is as fresh as promised."""
    node, index = driver.node, promise.at_least_index
    reads = node.raft.reads
    if promise.consistency == READ_INDEX:
        since_ms = reads.now_ms  # it joins only a round that begins after this
        node.confirmations.request_read(lambda refusal: done(refusal or since_ms), owner)
    elif promise.consistency != COMMITTED:
        known = " and ".join(CONSISTENCIES)
        done(BadRequest(f"{promise.consistency!r} is no read_consistency; this release knows {known}"))
    elif index <= node.committed_index:
        done(refusal_of_age(driver, promise, reads.fresh_since_ms()) or -math.inf)
    else:

        def woken() -> None:
            refusal: LedgerError | None = refusal_of_age(driver, promise, reads.fresh_since_ms())
            if index > node.committed_index:
                refusal = NotCaughtUp(
                    f"{driver.config.member_id} has committed entries up to {node.committed_index},"
                    f" and not up to {index} yet, which this client has appended",
                    retry_after_ms=RETRY_MS,
                )
            done(refusal or -math.inf)

        driver.reads.wait_for(index, CATCH_UP_WAIT_MS, woken)


def refusal_of_age(driver: NodeDriver, promise: ReadPromise, since_ms: float) -> LedgerError | None:
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
