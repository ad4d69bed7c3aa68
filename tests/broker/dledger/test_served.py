"""Three members with brokers in one process: what clients see."""

from __future__ import annotations

import pytest

from quorumlog.broker import Message, connect
from quorumlog.broker.dledger.local_brokers import LocalBrokers
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
