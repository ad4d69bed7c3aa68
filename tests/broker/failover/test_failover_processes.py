"""Brokers as processes, with a coordinator that the master loses sight of; `make nemesis-failover` does
much more of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nemesis.failover.group import failover_group
from nemesis.failover.run import Report, become_whole, befall, check
from nemesis.failover.senders import Senders
from quorumlog.broker import Message, connect, connect_async
from quorumlog.broker.client.switching import ClusterProbe
from quorumlog.broker.errors import SwitchRefused
from quorumlog.broker.wire import ReplicaRequest

pytestmark = [pytest.mark.processes]


def test_nothing_is_lost_where_the_master_loses_its_coordinator(tmp_path: Path) -> None:
    report = Report("kv")
    with failover_group(tmp_path, "kv") as group:
        assert "unless both have --in-sync-replicas 1" in group.brokers["b1"].said
        master = become_whole(group)
        with Senders(group.addresses, count=2) as senders:
            befall(group, "coordinator cut", master, senders, report)
        check(group, senders, report)
        assert not report.lost, report
        assert report.epochs >= 2, report
        with connect(group.addresses[0]) as broker:
            with pytest.raises(SwitchRefused, match="broker resign"):
                broker.replica(ReplicaRequest(verb="drain"))
            with pytest.raises(SwitchRefused, match=f"broker resign --servers {group.addresses[0][:9]}"):
                ClusterProbe(group.addresses[0])
            assert broker.failover().epoch == report.epochs

        async def asked() -> str:
            async with connect_async(",".join(group.addresses)) as client:
                receipt = await client.send(Message("t", b"to whoever leads"), queue_id=0)
                assert receipt.queue_offset >= 0
                state = await client.failover()
                return state.master if state.lease_left_ms else "one that does not lead"

        assert asyncio.run(asked()) == become_whole(group)
