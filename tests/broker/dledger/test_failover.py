"""The broker's role is the member's, and clients follow it."""

from __future__ import annotations

from quorumlog.broker import Message, connect
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.errors import LedgerError
from tests.waiting import eventually


def test_a_client_follows_the_master_and_finds_all_that_was_acknowledged() -> None:
    with LocalBrokers(topics={"orders": 1}) as brokers, connect(brokers.servers) as client:
        bodies = [b"%d" % number for number in range(20)]
        sent = [client.send(Message("orders", body)) for body in bodies]
        old = brokers.cluster.leader()
        assert client.status().role == "SYNC_MASTER"
        brokers.cluster.kill(old)

        def send_again() -> int | None:
            try:
                return client.send(Message("orders", b"behind")).queue_offset
            except LedgerError:  # the one that was on its way, if it was
                return None

        assert eventually(send_again) is not None
        master = client.status()
        assert (master.role, master.broker_id) == ("SYNC_MASTER", 0)
        assert master.master != brokers.addresses[old]
        pulled = eventually(lambda: [m for m in [client.pull("orders", 0, 0)] if m.max_offset > 20])
        messages = pulled[0].messages
        assert [m.body for m in messages[:20]] == bodies
        assert [m.physical_offset for m in messages[:20]] == [r.physical_offset for r in sent]
        assert [m.queue_offset for m in messages] == list(range(len(messages)))
        # The one that was killed comes back as a slave, and derives the same queues.
        brokers.cluster.restart(old)
        with connect(brokers.addresses[old]) as slave:
            eventually(lambda: slave.queues("orders")[0].max_offset == len(messages))
            assert slave.pull("orders", 0, 0).messages == messages
            assert slave.status().broker_id == int(old[1:]) + 1
