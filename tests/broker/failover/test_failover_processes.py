"""Brokers as processes, with a coordinator that the master loses sight of; `make nemesis-failover` does
much more of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemesis.failover.group import failover_group
from nemesis.failover.run import Report, become_whole, befall, check
from nemesis.failover.senders import Senders
from quorumlog.broker import connect
from quorumlog.broker.errors import SwitchRefused
from quorumlog.broker.wire.broker_messages import ReplicaRequest

pytestmark = [pytest.mark.processes]


def test_nothing_is_lost_where_the_master_loses_its_coordinator_and_then_its_process(
    tmp_path: Path,
) -> None:
    report = Report("kv")
    with failover_group(tmp_path, "kv") as group:
        master = become_whole(group)
        with Senders(group.addresses, count=2) as senders:
            befall(group, "coordinator cut", master, senders)
            befall(group, "kill", become_whole(group), senders)
        check(group, senders, report)
        assert not report.lost, report
        assert report.reigns >= 3, report
        with connect(group.addresses[0]) as broker:
            with pytest.raises(SwitchRefused, match="broker resign"):
                broker.replica(ReplicaRequest(verb="drain"))
            assert broker.failover().epoch == report.reigns
