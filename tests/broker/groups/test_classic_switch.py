"""Topics, groups, offsets, delays and retries of classic brokers as real processes outlive their
master."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from nemesis.failover.group import failover_group
from nemesis.failover.run import become_whole
from quorumlog.broker import BrokerAdmin, Consumer, Message, Producer, StoredMessage, connect
from quorumlog.server.free_ports import free_ports
from tests.broker.test_broker_processes import SMALL_FILES
from tests.cli.conftest import Cli
from tests.waiting import eventually

pytestmark = [pytest.mark.processes]

LEVELS = ("--option", "message_delay_level=1s 2s " + "1s " * 15 + "1s")


def test_a_promoted_slave_goes_on_where_the_group_stood(tmp_path: Path, cli: Cli) -> None:
    ports = free_ports(3)
    slave = ["slave", "--master", f"127.0.0.1:{ports[0]}"]
    brokers = {
        name: BrokerProcess(
            tmp_path / name,
            *("--role", *role, "--id", name, "--ha-port", str(port), *SMALL_FILES, *LEVELS),
        )
        for name, port, role in zip("abc", ports, (["sync-master"], slave, slave), strict=True)
    }
    a = brokers["a"]
    servers = ",".join(process.address for process in brokers.values())
    seen: Counter[bytes] = Counter()

    def work(message: StoredMessage) -> None:
        seen[message.body] += 1
        if message.body == b"fails" and seen[message.body] == 1:
            raise RuntimeError("not today")

    with ExitStack() as stack:
        for process in brokers.values():
            stack.push(process)
            process.start()
        with connect(a.address) as master:
            eventually(lambda: sum(slave.counts for slave in master.replica().slaves) == 1)
            eventually(lambda: [slave.is_caught_up for slave in master.replica().slaves] == [True, True])
            (other,) = [slave.id for slave in master.replica().slaves if not slave.counts]
            added = cli("broker", "add", "--servers", a.address, "--broker", other)
            assert added.exit_code == 0, added.output
            eventually(lambda: [slave.counts for slave in master.replica().slaves] == [True, True])
        with BrokerAdmin(servers) as admin, Producer(servers) as producer:
            admin.create_topic("orders", 2)
            for number in range(10):
                producer.send(Message("orders", b"%d" % number))
            with Consumer(servers, "billing", "orders") as consumer:
                consumer.run(work, until=lambda: len(seen) == 10)
                consumer.commit()
                assert sum(lag.messages for lag in admin.lag("billing")) == 0
                producer.send(Message("orders", b"later"), delay_level=2)
                producer.send(Message("orders", b"fails"))
                consumer.run(work, until=lambda: seen[b"fails"] == 1)
                a.kill()
                ends: dict[str, int] = {}
                for name in "bc":
                    with connect(brokers[name].address) as one:
                        eventually(lambda: "no master at" in one.replica().problem)
                        eventually(lambda: (now := one.replica()).flushed_offset == now.max_offset)
                        ends[name] = one.replica().max_offset
                best = max(ends, key=lambda name: ends[name])
                switched = cli("broker", "switch", "--servers", brokers[best].address, "--to", best)
                assert switched.exit_code == 0, switched.output
                consumer.run(work, until=lambda: seen[b"fails"] >= 2 and seen[b"later"] >= 1)
        assert all(seen[b"%d" % number] == 1 for number in range(10)), "what was committed comes again"


def test_a_coordinator_s_next_master_knows_what_the_group_has_committed(tmp_path: Path) -> None:
    with failover_group(tmp_path, "kv") as group:
        first = become_whole(group)
        servers = ",".join(group.addresses)
        with BrokerAdmin(servers, timeout_ms=30_000) as admin, Producer(servers) as producer:
            admin.create_topic("orders", 1)
            producer.send_batch([Message("orders", b"%d" % number) for number in range(10)])
            with Consumer(servers, "billing", "orders", timeout_ms=30_000) as consumer:
                assert len(consumer.poll(most_messages=6, wait_ms=20_000)) == 6
                assert consumer.commit() == []
                group.kill(first)
                eventually(lambda: bool(group.leaders()))
                (topic,) = [row for row in admin.topics() if row.topic == "orders"]
                assert topic.queues == 1
                lags = [lag for lag in admin.lag("billing") if lag.topic == "orders"]
                assert [(lag.committed_offset, lag.messages) for lag in lags] == [(6, 4)]
                assert len(consumer.poll(most_messages=6, wait_ms=20_000)) == 4
                assert consumer.commit() == []
