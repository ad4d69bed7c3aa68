"""`quorumlog member` and `quorumlog upgrade status`: how long they wait, and what they say to do."""

from __future__ import annotations

from typing import Any, cast

import pytest

from quorumlog import LedgerClient
from quorumlog.cli.log import members
from quorumlog.errors import LedgerError, MembershipRefused, OutcomeUnknown, RequestTimeout

MEMBERS = (("n0", "n1", "n2"), ())


class FakeLog:
    """Nobody says that it leads, and a change ends as the test says."""

    def __init__(self, *outcomes: LedgerError | None) -> None:
        self.outcomes = list(outcomes)

    def status(self) -> list[Any]:
        return []

    def change_members(self, *change: str, dry_run: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return MEMBERS


def changed(log: FakeLog, until_s: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return members._change(cast(LedgerClient, log), "promote", "n2", "", False, until_s)


def test_a_wait_whose_progress_nobody_can_tell_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader that is asked for it was lost just then."""
    monkeypatch.setattr(members, "ASK_AGAIN_S", 0.0)
    behind = MembershipRefused("n2 has not caught up", retry_after_ms=1)
    assert changed(FakeLog(behind, None), float("inf")) == MEMBERS


def test_a_wait_goes_on_over_a_time_without_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """But a command that has not reached anybody yet says so."""
    monkeypatch.setattr(members, "ASK_AGAIN_S", 0.0)
    behind = MembershipRefused("n2 has not caught up", retry_after_ms=1)
    lost = RequestTimeout("no leader was found")
    assert changed(FakeLog(behind, lost, None), float("inf")) == MEMBERS
    with pytest.raises(RequestTimeout):
        changed(FakeLog(lost), float("inf"))


def test_outcomes_that_stay_unknown_are_not_waited_for_beyond_the_time_out() -> None:
    with pytest.raises(OutcomeUnknown):
        changed(FakeLog(OutcomeUnknown("lost")), 0.0)


@pytest.mark.parametrize(
    "log_level, levels, told",
    [
        (5, {"n0": 6, "n1": 6, "n2": 5}, "n2 runs an earlier release than others: update it"),
        (6, {"n0": 6, "n1": 5, "n2": 6}, "n1 runs an earlier release than others: update it"),
        (5, {"n0": 6, "n1": -1, "n2": 5}, "or remove it if it is lost (quorumlog member remove n1)"),
        (5, {"n0": 6, "n1": 6}, "quorumlog upgrade finish"),
        (6, {"n0": 6, "n1": 6}, "there is nothing to finish"),
    ],
)
def test_what_is_left_of_an_upgrade(log_level: int, levels: dict[str, int], told: str) -> None:
    assert told in members._what_to_do(log_level, [*levels.items()])
