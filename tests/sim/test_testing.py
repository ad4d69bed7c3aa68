"""quorumlog.testing as its users meet it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quorumlog import LocalCluster, connect, testing
from quorumlog.errors import BadRequest, LedgerError, OutcomeUnknown
from quorumlog.testing import SimulatedLog

# As the plugin gives them; that it does is shown below, in a pytest of its own: here the module is
# imported before pytest could rewrite its assertions.
local_cluster = testing.local_cluster
simulated_log = testing.simulated_log

USERS_TEST = """
def test_a(simulated_log):
    assert simulated_log.append(b"x").count == 1

def test_b(local_cluster):
    assert len(local_cluster.servers.split(",")) == 3
"""


def test_a_conftest_brings_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["quorumlog.testing"]')
    (tmp_path / "test_users.py").write_text(USERS_TEST)
    told = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert told.returncode == 0 and "2 passed" in told.stdout, told.stdout + told.stderr


def test_a_real_cluster_in_the_process(local_cluster: LocalCluster) -> None:
    with connect(local_cluster.servers) as log:
        receipt = log.append(b"x")
        assert log.get(receipt.first_index).body == b"x"


@pytest.mark.parametrize("simulated_log", range(5), indirect=True)
def test_what_was_acknowledged_is_read_whatever_strikes(simulated_log: SimulatedLog) -> None:
    acknowledged = []
    for number in range(20):
        body = b"%d" % number
        try:
            acknowledged.append((simulated_log.append(body).first_index, body))
        except OutcomeUnknown:
            continue
        simulated_log.run_for(500)
    entries = {entry.index: entry.body for entry in simulated_log.read()}
    assert acknowledged
    assert [(index, entries[index]) for index, _ in acknowledged] == acknowledged


def test_one_seed_is_one_story() -> None:
    def story(seed: int) -> tuple[list[bytes], int]:
        log = SimulatedLog(seed)
        for number in range(10):
            log.append(b"%d" % number) if number % 2 else log.run_for(1_000)
        return [entry.body for entry in log.read()], log.trace.hash

    assert story(3) == story(3)
    assert story(3) != story(4)


def test_without_faults_nothing_is_unknown() -> None:
    log = SimulatedLog(1, faults=())
    receipts = [log.append(b"a", b"b") for _ in range(10)]
    appended = [index for r in receipts for index in range(r.first_index, r.last_index + 1)]
    assert [entry.index for entry in log.read(receipts[0].first_index)] == appended
    log.heal()


def test_an_unknown_fault_is_named() -> None:
    with pytest.raises(ValueError, match="earthquake"):
        SimulatedLog(1, faults=("earthquake",))


@pytest.mark.parametrize("seed", [389, 400])
def test_what_was_acknowledged_is_read_whoever_leads_by_then(seed: int) -> None:
    """In these runs a new leader that knew of no commit yet was asked, and gave nothing."""
    log = SimulatedLog(seed)
    acknowledged = 0
    for number in range(25):
        try:
            first_index = log.append(b"%d" % number).first_index
        except LedgerError:
            continue
        assert log.read(first_index)[0].body == b"%d" % number
        acknowledged += 1
        log.run_for(150)
    assert acknowledged > 15


@pytest.mark.parametrize(("bodies", "said"), [((), "at least one body"), (("a",), "str"), ((5,), "int")])
def test_what_no_client_would_append_is_refused(bodies: tuple[Any, ...], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        SimulatedLog(1, faults=()).append(*bodies)
