"""A short run of pipelines beside writers, with members and drivers killed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from nemesis.pipelines.jobs import Job
from nemesis.pipelines.run import Options, run
from nemesis.pipelines.writers import body_of, place_of


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_acknowledged_row_stands_once(tmp_path: Path) -> None:
    told: list[str] = []
    run(Options(tmp_path, minutes=0.3, seed=1), told.append)
    assert "each once, in order" in told[-1]


def test_a_row_says_what_it_is() -> None:
    assert place_of(body_of(3, 250)) == (3, 250)


def test_an_audit_may_miss_a_member_and_find_nothing_else(tmp_path: Path) -> None:
    def problems(place: str, other: str, what: str) -> int:
        job = Job("audit", [], tmp_path, threading.Event(), "/archive")
        job._check_audit({"differences": [{"place": place, "other": other, "index": 1, "what": what}]})
        return len(job.problems)

    assert not problems("n1", "", "does not answer: it is down")
    assert not problems("n1", "", "n1 does not answer at 127.0.0.1:1")
    assert problems("n1", "", "chain_crc does not continue at index 7")
    assert problems("n1", "", "entry 7: body_crc is 1 instead of 2")
    assert problems("n1", "n2", "body_crc is 1 and 2")
    assert problems("/archive", "", "does not answer")
