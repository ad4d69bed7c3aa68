"""Values that a loop leaves for the port: never changed by the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from quorumlog.config import is_staging_name
from quorumlog.errors import LedgerError
from quorumlog.measures import Requests, Taken
from quorumlog.store.disk import Disk, DiskUsage, OsDisk


class Sample(NamedTuple):
    name: str
    """Of a metric in `METRICS`."""
    value: float | Taken
    labels: tuple[str, ...] = ()
    """After `group`, in the order of the metric."""


def _name_of(code: int) -> str:
    known = LedgerError.of_code.get(code)
    return str(code) if known is None else known.__name__


def request_samples(
    part: str, requests: Requests, name_of: Callable[[int], str] = _name_of
) -> Iterator[Sample]:
    """`name_of`: a code that is not 0."""
    for (kind, code), times in list(requests.of.items()):
        name = name_of(code) if code else "OK"
        labels, taken = (kind.__name__.removesuffix("Request"), name), times.taken()
        yield Sample(f"quorumlog_{part}_requests_total", sum(taken.counts), labels)
        yield Sample(f"quorumlog_{part}_request_duration_seconds", taken, labels)


def disk_samples(disk: Disk, usage: DiskUsage) -> Iterator[Sample]:
    yield Sample("quorumlog_disk_used_ratio", usage.used_ratio)
    yield Sample("quorumlog_disk_free_bytes", usage.free_bytes)
    if isinstance(disk, OsDisk):
        yield Sample("quorumlog_disk_write_duration_seconds", disk.times.write_us.taken())


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
