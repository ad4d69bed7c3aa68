"""A client's time-outs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds. A fail-over costs at most `tick_ms` and `ask_interval_ms` above the election."""

    tick_ms: float = 25.0
    """Interval between checks of deadlines and silent servers while work is under way."""
    ask_interval_ms: float = 30.0
    """Mean interval between rounds of requests for the leader, drawn from two thirds to four thirds
    of it."""
    probe_after_ms: float = 250.0
    """A server is suspect when an answer is overdue for this long."""
    listen_ms: float = 1000.0
    """A server with watches is also probed after silence for this long."""
    move_read_after_ms: float = 1000.0
    """A read that any member may answer moves to another one after this time."""
    connect_timeout_ms: float = 1000.0
    """Time-out to connect and receive the greeting: a stopped process accepts connections and sends
    nothing."""
    redial_ms: float = 20.0
    """Pause after the first failed connection; doubled each time."""
    redial_limit_ms: float = 250.0
    """Maximum of that pause: a server that is back is found within it."""
    backoff_ms: float = 5.0
    """First back-off after a refusal without `retry_after_ms`; doubled each time."""
    backoff_limit_ms: float = 250.0
