"""The operating system for clients: the time, and why a connection failed."""

from __future__ import annotations

import os
import time


def now_ms() -> float:
    return time.monotonic() * 1000.0


def boot_ms() -> float:
    """Milliseconds of a clock that continues while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6


def system_reason_of(error: OSError | UnicodeError) -> str:
    """The operating system's message, without asyncio's or Python's additions, such as the address."""
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # of a name that does not resolve; its numbers are negative
    return str(error)
