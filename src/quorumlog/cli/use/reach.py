"""A list of servers that is dead is told at once: most often it is a slip, and no time-out helps."""

from __future__ import annotations

import errno
import os
import time

from quorumlog.client import LedgerClient
from quorumlog.errors import Unreachable

DEAD_AFTER_S = 3.0
ASK_AGAIN_S = 0.25
"""Between two questions: a refused connection answers at once."""

_WILL_NOT_MEND = (
    os.strerror(errno.ECONNREFUSED),
    "Name or service not known",
    "No address associated with hostname",
)
"""Of a name: what the resolver says of one that does not exist. A failure of the resolver may pass."""


def refuse_dead_servers(log: LedgerClient, timeout_s: float) -> None:
    """Raises Unreachable, with the reason of each address, if nobody listens at any of them or its name
    does not resolve, and that stays so for `DEAD_AFTER_S` (or `timeout_s`, if that is less).

    Whatever else goes wrong may pass: a server that is silent, or one that answers and has no leader.
    Then the verb itself goes on trying. Only before a command has had its first answer.
    """
    allowed_s = min(DEAD_AFTER_S, timeout_s)
    deadline = time.monotonic() + allowed_s
    while True:
        left_s = deadline - time.monotonic()
        rows = log.status(timeout_ms=max(left_s, ASK_AGAIN_S) * 1000)
        reasons = {row.address: row.problem.removeprefix(f"{row.address}: ") for row in rows}
        if any(row.reachable for row in rows) or not set(reasons.values()) <= set(_WILL_NOT_MEND):
            return
        if left_s <= 0:
            tried = ", ".join(f"{address} ({reason})" for address, reason in reasons.items())
            waited = f"gave up after {allowed_s:.1f} s"
            raise Unreachable(f"no server could be reached: {waited}; tried: {tried}; check --servers")
        time.sleep(min(ASK_AGAIN_S, left_s))
