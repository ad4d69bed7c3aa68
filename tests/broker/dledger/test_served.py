"""Three members with brokers in one process: what clients see."""

from __future__ import annotations

import pytest

from quorumlog import connect as log_of
from quorumlog.broker import Message, connect
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.broker.errors import NotReplicated
from quorumlog.config import StoreConfig
from quorumlog.errors import NotLeader
from tests.waiting import eventually


def test_messages_are_sent_to_the_master_and_found_on_every_member() -> None:
    with LocalBrokers(topics={"orders": 2}) as brokers:
        leader = brokers.cluster.leader()
        eventually(lambda: brokers.brokers[leader].role.state.is_master)
        with connect(brokers.addresses[leader]) as client:
            first = client.send(Message("orders", b"a", keys=["k"], tags="t"), queue_id=0)
            batch = client.send_batch(
                [Message("orders", b"b" * number) for number in range(50)], queue_id=1
            )
            assert (first.queue_offset, batch.queue_offset, batch.message_count) == (0, 0, 50)
            status = client.status()
            assert (status.role, status.broker_id, status.flush) == ("SYNC_MASTER", 0, "log: sync")
            for asks in (client.replica, client.failover):
                with pytest.raises(NotReplicated, match="its log elects"):
                    asks()
            # The log ends with what is no message, too.
            with log_of(brokers.cluster.servers) as log:
                log.append(b"an entry of nobody")
            eventually(lambda: client.status().dispatch_behind_bytes == 0)
        for member_id, address in brokers.addresses.items():
            with connect(address) as client:
                eventually(lambda c=client: sum(q.max_offset for q in c.queues("orders")) == 51)
                pulled = client.pull("orders", 1, 0).messages
                assert [m.body for m in pulled] == [b"b" * number for number in range(50)]
                assert [m.queue_offset for m in pulled] == list(range(50))
                (found,) = client.query("orders", "k")
                assert found == client.message(first.message_id)
                assert found.physical_offset == first.physical_offset
                if member_id != leader:
                    assert client.status().broker_id == int(member_id[1:]) + 1
                    with pytest.raises(NotLeader) as refused:
                        client.send(Message("orders", b"c"))
                    assert refused.value.leader_address == brokers.addresses[leader]


def test_queues_begin_with_what_the_log_has_also_while_nothing_comes() -> None:
    storage = StoreConfig(
        segment_bytes=1 << 16, retention_bytes=100_000, snapshot_log_bytes=60_000, delete_when=""
    )
    with LocalBrokers(1, topics={"busy": 1, "rare": 1}, storage=storage) as brokers:
        broker = brokers.brokers["n0"]
        eventually(lambda: broker.role.state.is_master)
        with connect(brokers.addresses["n0"]) as client:
            client.send_batch([Message("rare", b"rare")] * 5)
            for _ in range(6):
                client.send_batch([Message("busy", bytes(900))] * 50)
            eventually(lambda: client.min_offset("rare", 0) == 5)
            assert client.max_offset("rare", 0) == 5
            low = client.min_offset("busy", 0)
            assert 0 < low < client.max_offset("busy", 0) == 300
            assert client.pull("busy", 0, low).messages[0].queue_offset == low
            assert client.offset_at("busy", 0, 0.0) >= low
        brokers.cluster.kill("n0")
        brokers.cluster.restart("n0")
        broker = brokers.brokers["n0"]
        eventually(lambda: broker.role.state.is_master)
        with connect(brokers.addresses["n0"]) as client:
            low = client.min_offset("busy", 0)
            assert client.pull("busy", 0, low).messages[0].queue_offset == low
            assert client.send(Message("rare", b"rare")).queue_offset == 5
