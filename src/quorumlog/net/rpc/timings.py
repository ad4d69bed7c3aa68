"""A client's time-outs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds. A fail-over costs at most `tick_ms` and `ask_interval_ms` above the election."""

    tick_ms: float = 25.0
    """How often deadlines and silences are looked at while anything is under way."""
    ask_interval_ms: float = 30.0
    """Between two rounds of requests for the leader; each is drawn from two thirds to four thirds of
    it."""
    probe_after_ms: float = 250.0
    """An answer overdue for so long makes a server suspect."""
    listen_ms: float = 1000.0
    """A server with watches that was not heard of for so long is asked for a sign of life, too."""
    move_read_after_ms: float = 1000.0
    """A read that any member may answer goes to another after so long."""
    connect_timeout_ms: float = 1000.0
    """To connect and be greeted: a stopped process accepts connections and says nothing."""
    redial_ms: float = 20.0
    """After the first connection that failed; doubled each time."""
    redial_limit_ms: float = 250.0
    """A server that comes back is found within it, however long it was away."""
    backoff_ms: float = 5.0
    """First wait after a refusal without `retry_after_ms`; doubled each time."""
    backoff_limit_ms: float = 250.0
