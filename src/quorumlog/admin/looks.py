"""What is left for the port by the loop that it looks at: values, and nothing that the loop changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from quorumlog.config import is_staging_name
from quorumlog.measures import Taken


class Sample(NamedTuple):
    name: str
    """Of a metric in `METRICS`."""
    value: float | Taken
    labels: tuple[str, ...] = ()
    """Behind `group`, in the order of the metric."""


class Table(NamedTuple):
    """Of the page."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]


class Look(NamedTuple):
    """One group of the log, store or broker."""

    group: str
    product: str
    """`log`, `store` or `broker`."""
    unready: tuple[str, ...] = ()
    """Why nothing should be sent to it just now, in sentences."""
    leads: bool = False
    failure: str = ""
    """Why it has stopped; empty: it has not."""
    samples: tuple[Sample, ...] = ()
    tables: Callable[[], Sequence[Table]] = tuple


TakeLook = Callable[[], Look]
"""On the loop."""


class Seen(NamedTuple):
    """All of a process."""

    at_s: float
    """On `time.monotonic`, when it was asked for on the loop."""
    looks: tuple[Look, ...]


def unhealthy(seen: Seen | None, now_s: float, limit_s: float) -> list[str]:
    """Why the process should be started again. Nothing is seen while it starts."""
    if seen is None:
        return []
    found = [f"group {each.group}: {each.failure}" for each in seen.looks if each.failure]
    if now_s - seen.at_s > limit_s:
        found.append(f"its loop has not turned for {now_s - seen.at_s:.1f} s")
    return found


def unready(seen: Seen | None, now_s: float, limit_s: float, leads: str | None = None) -> list[str]:
    """Why nothing should be sent to it. `leads`: it is asked for as the leader of that group; empty: of
    each but those of staging."""
    if seen is None:
        return ["it starts"]
    found = unhealthy(seen, now_s, limit_s)
    if not seen.looks:
        found.append("it has stopped")
    for look in seen.looks:
        reasons = look.unready
        is_meant = not is_staging_name(look.group) if leads == "" else look.group == leads
        if leads is not None and is_meant and not look.leads:
            reasons = (*reasons, "it does not lead")
        found += [f"group {look.group}: {each}" for each in reasons]
    return found
