"""Who led when, read from what the members said on their logs, and how long nobody did.

The group has a leader while some member leads and a majority, itself included, follows it in that term.
Members that are killed or stopped follow nobody.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from nemesis.cluster import Outage
from quorumlog.cli.run.log_lines import ALL_EVENTS

_TEXT_LINE = re.compile(r"(\d+-\d+-\d+.\S+) +[A-Z]+ +(.*)")
_ROLE = re.compile(r"\S+/(\S+) is (\w+) in term (\d+)(?:, leader ([^\s:]+))?(?:$|:)")
LEVELS = ("debug", "info", "warning", "error", "critical")
_LOG_RESOLUTION_NS = 1_000_000


class RoleEvent(NamedTuple):
    """From here on a member has this role. Times are of the monotonic clock."""

    at_ns: int
    member_id: str
    role: str
    """Empty: killed or stopped."""
    term: int
    leader_id: str


class Span(NamedTuple):
    began_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.began_ns) / 1e9

    def within(self, began_ns: int, ended_ns: int) -> Span:
        """The part of it that lies between the two; of no length if none does."""
        first = min(max(self.began_ns, began_ns), ended_ns)
        return Span(first, max(first, min(self.ended_ns, ended_ns)))


def monotonic_offset_ns() -> int:
    """What to subtract from the wall clock, in which logs are written."""
    return time.time_ns() - time.monotonic_ns()


def read_roles(log_path: Path, offset_ns: int, *, is_text: bool = False) -> list[RoleEvent]:
    """Of one member, in order. Each line is an object with a known event, or this raises. `is_text`:
    lines of a member of either release; times were local ones before, and are UTC."""
    events = []
    for line in log_path.read_text(errors="replace").splitlines():
        if is_text:
            at, message = match.groups() if (match := _TEXT_LINE.match(line)) else ("", "")
        else:
            said = json.loads(line)
            assert said["event"] in ALL_EVENTS and said["level"] in LEVELS, line
            at, message = said["time"], said["message"] if said["event"] == "role" else ""
        role_of = _ROLE.match(message)
        assert role_of is not None or is_text or not message, line
        if role_of is not None:
            wall_ns = int(datetime.fromisoformat(at).timestamp() * 1000) * 1_000_000
            member_id, role, term, leader_id = role_of.groups()
            leader_id = leader_id or member_id
            events.append(RoleEvent(wall_ns - offset_ns, member_id, role, int(term), leader_id))
    return events


def with_outages(events: Iterable[RoleEvent], outages: Iterable[Outage]) -> list[RoleEvent]:
    """All events in order, those of killed and stopped members among them. `events`: each member's
    own in its order, in which several may bear one time."""
    told = sorted(events, key=lambda event: event.at_ns)
    changes: list[RoleEvent] = []
    for outage in outages:
        own = [event for event in told if event.member_id == outage.member_id]
        before = [event for event in own if event.at_ns <= outage.began_ns]
        changes.append(RoleEvent(outage.began_ns, outage.member_id, "", -1, ""))
        if outage.keeps_state and before:
            # What it says first when it goes on bears a time that is cut to the millisecond.
            changes.append(before[-1]._replace(at_ns=outage.ended_ns - _LOG_RESOLUTION_NS))
    # Sorting keeps the order of what bears one time.
    return sorted([*changes, *told], key=lambda event: event.at_ns)


def leaderless_spans(
    events: Iterable[RoleEvent], member_count: int, began_ns: int, ended_ns: int
) -> list[Span]:
    """`events` in order; what lies outside of [began_ns, ended_ns] is cut off."""
    now: dict[str, RoleEvent] = {}
    spans: list[Span] = []
    missing_since: int | None = None
    for event in events:
        now[event.member_id] = event
        led = _has_leader(now, member_count)
        if not led and missing_since is None:
            missing_since = event.at_ns
        elif led and missing_since is not None:
            spans.append(Span(missing_since, event.at_ns))
            missing_since = None
    if missing_since is not None:
        spans.append(Span(missing_since, ended_ns))
    inside = (span.within(began_ns, ended_ns) for span in spans)
    return [span for span in inside if span.ended_ns > span.began_ns]


def elections(events: Iterable[RoleEvent]) -> list[RoleEvent]:
    """One for each term that got a leader, when it got it."""
    won: dict[int, RoleEvent] = {}
    for event in events:
        if event.role == "leader":
            won.setdefault(event.term, event)
    return list(won.values())


def _has_leader(now: Mapping[str, RoleEvent], member_count: int) -> bool:
    for leader in now.values():
        if leader.role == "leader":
            following = sum(
                event.term == leader.term and event.leader_id == leader.member_id and event.role != ""
                for event in now.values()
            )
            if 2 * following > member_count:
                return True
    return False
