"""A classic broker in the process of a test, and a raw connection to one."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from quorumlog.broker.broker_server import BrokerServer
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.broker.wire import encode
from quorumlog.net.hello import BROKER, client_hello
from quorumlog.server.free_ports import free_ports
from quorumlog.store.disk import Disk


@contextmanager
def served(folder: Path, topics: dict[str, int], disk: Disk | None = None) -> Iterator[BrokerServer]:
    """On a loop of its own; it is stopped in the end."""
    store = MessageStore(str(folder), topics=topics, disk=disk)
    server = BrokerServer(store, f"127.0.0.1:{free_ports(1)[0]}")
    started = threading.Event()
    stop = asyncio.Event()

    async def run() -> None:
        await server.start()
        started.loop = asyncio.get_running_loop()  # type: ignore[attr-defined]
        started.set()
        await stop.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert started.wait(60)
        yield server
    finally:
        started.loop.call_soon_threadsafe(stop.set)  # type: ignore[attr-defined]
        thread.join()
        store.close()


def hello() -> bytes:
    """How a client greets a broker."""
    return b"".join(encode(client_hello(BROKER)))


@contextmanager
def dialled(address: str) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with closing(socket.create_connection((host, int(port)), timeout=60)) as sock:
        yield sock
