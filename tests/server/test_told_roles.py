"""What the log says of roles: hand-overs are called that, and a member is named once."""

from __future__ import annotations

import logging

import pytest

from quorumlog import LocalCluster, connect
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def _told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="quorumlog.server")


def test_a_hand_over_says_from_whom_to_whom_and_why(caplog: pytest.LogCaptureFixture) -> None:
    with LocalCluster(3, staging=False) as cluster, connect(cluster.servers) as log:
        first = cluster.leader()
        second = next(each for each in cluster.running if each != first)
        log.transfer(second)
        eventually(lambda: cluster.leader() == second)
        log.append(b"it leads")
        cluster.stop(second)
        third = eventually(lambda: (found := cluster.leader()) != second and found)
    told = [said for said in caplog.messages if "hands over" in said]
    assert any(
        said.startswith(f"default/{second} is candidate in term ")
        and said.endswith(f": {first} hands over to it")
        for said in told
    )
    assert any(
        said.startswith(f"default/{first} is follower in term ")
        and said.endswith(f": it hands over to {second}: as was asked for")
        for said in told
    )
    assert any(said.endswith(f": {second} hands over to it") for said in told if third in said)
    assert any(said.endswith(f": it hands over to {third}: it stops") for said in told)
    leads = [said for said in caplog.messages if "is leader in term" in said]
    assert leads and not [said for said in leads if ", leader " in said]
    first_term = next(said for said in leads if f"default/{first} " in said)
    assert "hands over" not in first_term


def test_a_member_that_is_lost_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with LocalCluster(3, staging=False) as cluster:
        gone = cluster.leader()
        eventually(lambda: _count(caplog, f"is connected with {gone}") == 2)
        cluster.kill(gone)
        eventually(lambda: cluster.leader() != gone)
        with connect(cluster.servers) as log:
            log.append(b"it is missed")
        eventually(lambda: _count(caplog, f"has lost {gone}") == 2)


def _count(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in said for said in caplog.messages)
