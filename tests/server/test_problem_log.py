"""The log says what `status` says, when it begins, once a minute, and when it ends."""

from __future__ import annotations

import logging

import pytest

from quorumlog.figures import now
from quorumlog.server.problem_log import LOOK_INTERVAL_S, MOST_NOTED, REPEAT_S, ProblemLog

LOG = logging.getLogger("quorumlog.tests.problems")


def test_a_problem_is_said_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    problems = ProblemLog(LOG, "g/n0", 0.0)
    assert not problems.is_due(0.0)
    assert problems.is_due(LOOK_INTERVAL_S)
    for second in range(1, 10):
        problems.look(["", "the disk is full"], second)
    assert caplog.messages == ["g/n0: the disk is full"]
    problems.look([], 10.0)
    assert caplog.messages[1:] == ["g/n0: no longer: the disk is full"]
    problems.look(["the disk is full"], 11.0)
    assert len(caplog.messages) == 3


def test_a_problem_that_lasts_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    problems = ProblemLog(LOG, "g/n0", 0.0)
    for second in range(1, int(3 * REPEAT_S)):
        problems.look(["waits for n2"], second)
    assert len(caplog.messages) == 3


def test_a_figure_that_changes_makes_no_other_problem(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    problems = ProblemLog(LOG, "g/n0", 0.0)
    for second in range(1, 40):
        problems.look(
            [f"the disk fills up{now(f'{second} %')}: free space", "n1 is slow", "n2 is slow"], second
        )
    assert caplog.messages == [
        "g/n0: the disk fills up (now 1 %): free space",
        "g/n0: n1 is slow",
        "g/n0: n2 is slow",
    ]
    problems.look([], 40)
    assert caplog.messages[3] == "g/n0: no longer: the disk fills up: free space"


def test_a_stranger_that_comes_again_and_again_is_one_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = ProblemLog(LOG, "g/n0", 0.0)
    for tenth in range(20):
        refusals.note("n9 is not among the members", tenth / 10)
    refusals.note("another stranger", 2.0)
    refusals.note("n9 is not among the members", REPEAT_S + 1)
    assert len(caplog.messages) == 3


def test_strangers_that_choose_other_names_get_no_line_each(caplog: pytest.LogCaptureFixture) -> None:
    refusals = ProblemLog(LOG, "g/n0", 0.0)
    for number in range(1000):
        refusals.note(f"refused a connection of {number:x}x", number / 1000)
    assert len(caplog.messages) == MOST_NOTED
    refusals.note("refused a connection of n9", REPEAT_S + 1)
    assert caplog.messages[MOST_NOTED:] == [
        f"g/n0: {1000 - MOST_NOTED} more of the kind were left out",
        "g/n0: refused a connection of n9",
    ]
