"""Tests of software that uses quorumlog: on a real cluster in the process, and on a simulated one.

In a project of your own the line `pytest_plugins` is in the top `conftest.py`.

python -m pytest examples/pytest_fixture.py
"""

from __future__ import annotations

import pytest

from quorumlog import LocalCluster, OutcomeUnknown, WrongLastIndex, connect
from quorumlog.testing import SimulatedLog

pytest_plugins = ["quorumlog.testing"]


def test_what_was_appended_outlives_the_leader(local_cluster: LocalCluster) -> None:
    with connect(local_cluster.servers) as log:
        receipt = log.append(b"paid")
        local_cluster.kill(local_cluster.leader())
        assert log.get(receipt.first_index).body == b"paid"


@pytest.mark.parametrize("simulated_log", range(3), indirect=True)
def test_a_lock_is_taken_once_whatever_fails(simulated_log: SimulatedLog) -> None:
    """Members are killed and cut off meanwhile, in virtual time, by a seed."""
    taken = 0
    for _ in range(10):
        try:
            simulated_log.append(b"locked", expected_last=-1)
            taken += 1
        except (WrongLastIndex, OutcomeUnknown):
            pass
        simulated_log.run_for(500)
    assert taken <= 1
    assert [entry.body for entry in simulated_log.read()] == [b"locked"]
