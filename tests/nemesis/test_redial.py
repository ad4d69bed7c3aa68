"""Connections that break all at once, over links that take time: members find each other again at the
first dial, and do not give it up because the other one's has arrived."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from harness.proxy import LinkConditions, Network, both_ways
from nemesis.cluster import Cluster
from tests.waiting import eventually

DIALS_NEEDED = 12
"""Three members, each with two connections to both others."""


def are_linked(cluster: Cluster) -> bool:
    rows = cluster.client.status()
    return all(row.reachable and all(m.reachable for m in row.members) for row in rows)


@pytest.mark.processes
def test_after_a_reset_of_everything_each_link_is_dialled_about_once(
    tmp_path: Path, monkeypatch: Any
) -> None:
    dials = []
    accept = Network._accept

    def counted(network: Network, direction: Any) -> Any:
        dials.append(direction)
        return accept(network, direction)

    monkeypatch.setattr(Network, "_accept", counted)
    with Cluster(tmp_path / "members", 3, with_small_disk=False) as cluster:
        pairs = list(combinations(cluster.member_ids, 2))
        cluster.wait_until_whole()
        cluster.network.impose(both_ways(pairs), LinkConditions(delay_ms=25))
        cluster.wait_until_whole()
        for _ in range(3):
            dials.clear()
            cluster.network.reset(pairs)
            eventually(lambda: len(dials) >= DIALS_NEEDED and are_linked(cluster))
            assert len(dials) < 3 * DIALS_NEEDED
