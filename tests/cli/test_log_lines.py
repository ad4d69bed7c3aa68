"""What a process that serves logs: lines for programs, of a closed list of events, repeats folded."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

from quorumlog.cli.run.log_lines import ALL_EVENTS, EVENTS, FOLDS_AFTER, Folding, JsonLines, event_of
from tests.docs.markdown import DOCS, section, tables

SOURCE = Path(__file__).resolve().parents[2] / "src" / "quorumlog"


def record(message: str, *arguments: object, created: float = 0.0, event: str = "") -> logging.LogRecord:
    made = logging.LogRecord("quorumlog.server", logging.WARNING, "", 0, message, arguments, None)
    made.created, made.event = created, event
    return made


def logged_events() -> set[str]:
    """What the sources say in `extra` of a record."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        found.update(re.findall(r'extra=\{"event": "(\w+)"\}', path.read_text()))
    return found


def test_every_event_is_logged_somewhere_and_no_other() -> None:
    """Not found out by the name of a function: what is compiled has no frames."""
    assert logged_events() == set(EVENTS)


def test_the_events_are_documented() -> None:
    (rows,) = tables(section((DOCS / "operations.md").read_text(), "Logs"))
    assert {each for row in rows for each in row["event"].replace("`", "").split(", ")} == ALL_EVENTS


def test_a_line_is_an_object_with_a_time_that_has_a_zone() -> None:
    line = json.loads(JsonLines().format(record("%s is %s", "n0", "leader\nx", event="role")))
    assert line == {
        "time": "1970-01-01T00:00:00.000Z",
        "level": "warning",
        "event": "role",
        "message": "n0 is leader\nx",
    }
    assert event_of(logging.LogRecord("aiohttp", 20, "", 0, "a", (), None)) == "other"


def test_what_repeats_is_folded_whatever_its_figures() -> None:
    said: list[str] = []
    folding = Folding(lambda each: said.append(each.getMessage()))
    for number in range(46):
        each = record("it fills up (now %d %%)", number, created=number / 100)
        if folding.filter(each):
            said.append(each.getMessage())
    assert len(said) == FOLDS_AFTER
    assert folding.filter(record("something else", created=61))
    assert said[-1] == "it fills up (now 45 %) (41 more in the last minute)"
    assert folding.filter(record("it fills up (now %d %%)", 1, created=62))
