"""The key-value store as processes; `make nemesis-kv` breaks it for minutes, in more ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemesis.kv.run import run


@pytest.mark.long
@pytest.mark.processes
def test_what_clients_of_the_store_saw_can_be_true(tmp_path: Path) -> None:
    report = run(tmp_path, seed=1, rounds=2, faults=("pause", "wipe"))
    assert report.faults.total() == 2
    assert report.counts["looked"] > 20


@pytest.mark.long
@pytest.mark.processes
def test_what_clients_of_etcds_api_saw_can_be_true(tmp_path: Path) -> None:
    report = run(tmp_path, seed=2, rounds=2, faults=("kill", "cut"), over_etcd=True)
    assert report.faults.total() == 2
    assert report.counts["looked"] > 20 and report.counts["watched"] > 20
