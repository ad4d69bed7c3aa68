"""Who led when, from what members log."""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path

import pytest

from nemesis.cluster import Outage
from nemesis.leaders import (
    RoleEvent,
    Span,
    elections,
    leaderless_spans,
    monotonic_offset_ns,
    read_roles,
    with_outages,
)
from quorumlog.cli.run.log_lines import JsonLines, TextLines

MS = 1_000_000


def leads(at_ms: int, member_id: str, term: int) -> RoleEvent:
    return RoleEvent(at_ms * MS, member_id, "leader", term, member_id)


def follows(at_ms: int, member_id: str, term: int, leader_id: str) -> RoleEvent:
    return RoleEvent(at_ms * MS, member_id, "follower", term, leader_id)


def seeks(at_ms: int, member_id: str, term: int) -> RoleEvent:
    return RoleEvent(at_ms * MS, member_id, "candidate", term, "unknown")


def gaps(events: list[RoleEvent], *outages: Outage) -> list[tuple[int, int]]:
    """In milliseconds, of three members between 100 and 1000."""
    spans = leaderless_spans(with_outages(events, outages), 3, 100 * MS, 1000 * MS)
    return [(span.began_ns // MS, span.ended_ns // MS) for span in spans]


SETTLED = [leads(50, "n0", 1), follows(51, "n1", 1, "n0"), follows(52, "n2", 1, "n0")]


def test_a_group_whose_majority_follows_a_leader_is_never_without_one() -> None:
    assert gaps([*SETTLED, seeks(300, "n2", 1)]) == []


def test_a_killed_leader_is_missed_until_another_has_a_majority() -> None:
    events = [*SETTLED, leads(330, "n1", 2), follows(340, "n2", 2, "n1")]
    assert gaps(events, Outage("n0", 300 * MS, 600 * MS, keeps_state=False)) == [(300, 340)]


def test_a_member_that_went_on_believes_what_it_believed_and_leads_nobody_in_a_later_term() -> None:
    events = [*SETTLED, seeks(500, "n1", 1), leads(600, "n1", 2), follows(610, "n2", 2, "n1")]
    outage = Outage("n0", 300 * MS, 700 * MS, keeps_state=True)
    assert gaps([*events, seeks(720, "n2", 2)], outage) == [(300, 610), (720, 1000)]


def test_a_leader_that_nobody_follows_any_more_is_none() -> None:
    assert gaps([*SETTLED, seeks(400, "n1", 1), seeks(420, "n2", 1)]) == [(420, 1000)]


def test_what_a_member_says_twice_in_one_millisecond_keeps_its_order() -> None:
    events = [leads(50, "n0", 1), follows(51, "n1", 1, "unknown"), follows(51, "n1", 1, "n0")]
    assert gaps(events) == []


def test_an_election_is_counted_once_a_term() -> None:
    events = [*SETTLED, leads(60, "n0", 1), leads(90, "n1", 3)]
    assert [event.term for event in elections(events)] == [1, 3]


def test_a_span_is_cut_to_what_lies_inside() -> None:
    assert Span(10, 50).within(20, 40) == Span(20, 40)
    assert Span(10, 50).within(60, 70).seconds == 0


def test_roles_are_read_from_a_members_log(tmp_path: Path) -> None:
    path = tmp_path / "n0.log"
    path.write_text(
        line("04:57.123", "role", "default/n0 is candidate in term 4, leader unknown")
        + line("04:57.200", "problem", "default/n0: waits for members: n1")
        + line("04:57.623", "role", "default/n0 is leader in term 5")
        + line("04:58.123", "role", "default/n0 is follower in term 6, leader n1: n0 hands over")
    )
    first, second, third = read_roles(path, monotonic_offset_ns())
    assert first[1:] == ("n0", "candidate", 4, "unknown")
    assert second[1:] == ("n0", "leader", 5, "n0")
    assert second.at_ns - first.at_ns == 500 * MS
    assert third[1:] == ("n0", "follower", 6, "n1")
    path.write_text("no object\n")
    with pytest.raises(ValueError, match="Expecting value"):
        read_roles(path, 0)


def test_roles_are_read_from_the_text_of_a_member_of_either_release(tmp_path: Path) -> None:
    path = tmp_path / "n0.log"
    made = logging.makeLogRecord(
        {"levelname": "INFO", "msg": "default/n0 is leader in term 5, leader n0"}
    )
    made.created, made.msecs = 1_795_280_697.5, 500
    before = datetime.fromtimestamp(made.created - 0.5)
    path.write_text(
        "quorumlog 0.2: n0 of group default, one of 3, listens on 127.0.0.1:1, flush sync\n"
        f"{before:%Y-%m-%d %H:%M:%S},000 INFO    default/n0 is candidate in term 4, leader unknown\n"
        f"{before:%Y-%m-%d %H:%M:%S},200 WARNING default/n0: waits for members: n1\n"
        f"{TextLines().format(made)}\n"
    )
    first, second = read_roles(path, monotonic_offset_ns(), is_text=True)
    assert first[1:] == ("n0", "candidate", 4, "unknown")
    assert second[1:] == ("n0", "leader", 5, "n0")
    assert second.at_ns - first.at_ns == 500 * MS


def line(time: str, event: str, message: str) -> str:
    made = logging.LogRecord("quorumlog.server", logging.INFO, "", 0, message, (), None)
    made.event = event
    made.created = datetime.fromisoformat(f"2026-11-21T17:{time}Z").timestamp()
    return f"{JsonLines().format(made)}\n"
