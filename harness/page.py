"""The pages in a browser: `python -m harness.page chromium FOLDER` takes pictures of those of a log, a
store and a broker on a desk and a phone, and fails unless that of the log moves by itself."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from quorumlog import LocalCluster, connect
from quorumlog.admin import AdminPort, LogProcess
from quorumlog.admin.broker import look_at_member
from quorumlog.admin.store import look_at_store
from quorumlog.broker import BrokerAdmin, Consumer, Message, Producer
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.broker.groups.group_service import GroupOptions, GroupService
from quorumlog.kv import connect as connect_store
from quorumlog.kv.endpoint import KeyValueEndpoint
from quorumlog.kv.testing import LocalStores
from quorumlog.server.free_ports import free_ports

SIZES = {"desk": "1200,1400", "phone": "400,1400"}
LAST = re.compile(r"<td>leader</td><td>\d+</td><td>\d+</td><td>([\d,]+)</td>")


def last_index_of(page: str) -> int:
    """Of the leader's own row."""
    found = LAST.search(page)
    assert found is not None, page
    return int(found[1].replace(",", ""))


def free_address() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


def look(browser: str, url: str, *more: str) -> str:
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--timeout=4000", *more, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@contextmanager
def a_log() -> Iterator[AdminPort]:
    ended = threading.Event()
    with LocalCluster() as cluster, connect(cluster.servers) as log:
        log.reader("billing", hold=True).commit(0)

        def write() -> None:
            while not ended.wait(0.02):
                log.append_batch([b"x" * 100] * 100)

        writer = threading.Thread(target=write)
        process = LogProcess(cluster.server(cluster.leader()))
        with AdminPort(free_address(), process) as port:
            writer.start()
            try:
                yield port
            finally:
                ended.set()
                writer.join()


class Stores(LocalStores):
    def __init__(self) -> None:
        super().__init__()
        self.endpoints: dict[str, KeyValueEndpoint] = {}

    def _endpoints(self, member_id: str) -> list[KeyValueEndpoint]:
        (self.endpoints[member_id],) = made = super()._endpoints(member_id)
        return made


@contextmanager
def a_store() -> Iterator[AdminPort]:
    with Stores() as stores, connect_store(stores.servers) as keys:
        for number in range(100):
            keys.put(f"orders/{number}", b"x" * number)
        leader = stores.cluster.leader()
        process = LogProcess(
            stores.cluster.server(leader), [partial(look_at_store, stores.endpoints[leader], "default")]
        )
        with AdminPort(free_address(), process) as port:
            yield port


@contextmanager
def a_broker() -> Iterator[AdminPort]:
    with ExitStack() as stack:
        brokers = stack.enter_context(
            LocalBrokers(groups=lambda member_id: GroupService(GroupOptions()))
        )
        producer = stack.enter_context(Producer(brokers.servers))
        with BrokerAdmin(brokers.servers) as admin:
            for topic in ("orders", "a-topic-with-a-name-that-goes-on-and-on-and-on-without-an-end"):
                admin.create_topic(topic, 4)
                producer.send_batch([Message(topic, b"tea")] * 500)
        consumer = stack.enter_context(Consumer(brokers.servers, "billing", "orders"))
        assert consumer.poll(wait_ms=20_000)
        consumer.commit()
        leader = brokers.cluster.leader()
        look = partial(look_at_member, brokers.brokers[leader], "default")
        process = LogProcess(brokers.cluster.server(leader), [look])
        yield stack.enter_context(AdminPort(free_address(), process))


def main(browser: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    words = {a_log: "billing", a_store: "Store", a_broker: "Consumer groups"}
    for made, word in words.items():
        name = made.__name__.removeprefix("a_")
        with made() as port:
            for kind, size in SIZES.items():
                picture = f"--screenshot={folder / f'{name}-{kind}'}.png"
                look(browser, port.url, f"--window-size={size}", picture)
            served = urllib.request.urlopen(f"{port.url}/").read().decode()
            shown = look(browser, port.url, "--dump-dom")
        assert word in shown, f"{word} is not on the page of {name}"
        if made is a_log:
            assert last_index_of(served) < last_index_of(shown), "it does not move"
            print(f"it moves: {last_index_of(served)} -> {last_index_of(shown)}")
    print(f"pictures are in {folder}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
