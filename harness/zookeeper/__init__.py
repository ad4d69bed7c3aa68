"""A ZooKeeper of three on loopback, from Maven Central; its servers are stopped by their process."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from harness.maven import jars_of
from quorumlog.server.free_ports import free_ports

SERVERS = 3
START_TIMEOUT_S = 60.0
CACHE = Path.home() / ".cache" / "quorumlog-zookeeper"
TICK_MS = 100


class ZooKeeperCluster(NamedTuple):
    servers: str
    processes: list[subprocess.Popen[bytes]]

    def leads(self, number: int) -> bool:
        return "Mode: leader" in _say(self.servers.split(",")[number], b"srvr")


@contextmanager
def zookeeper_of_three(folder: Path, tick_ms: int = TICK_MS) -> Iterator[ZooKeeperCluster]:
    """`folder`: for their directories. `tick_ms`: what sessions end by. Raises Unavailable."""
    jars = jars_of(Path(__file__).with_name("pom.xml"), CACHE)
    ports = free_ports(3 * SERVERS)
    clients, peers = ports[:SERVERS], ports[SERVERS:]
    options: dict[str, object] = {
        "tickTime": tick_ms,
        "initLimit": 100,
        "syncLimit": 20,
        "maxSessionTimeout": 600_000,
        "clientPortAddress": "127.0.0.1",
        "admin.enableServer": "false",
        **{f"server.{n + 1}": f"127.0.0.1:{peers[2 * n]}:{peers[2 * n + 1]}" for n in range(SERVERS)},
    }
    processes = []
    for number, port in enumerate(clients):
        own = folder / f"z{number}"
        own.mkdir(parents=True)
        (own / "myid").write_text(f"{number + 1}\n")
        given = {**options, "clientPort": port, "dataDir": own}
        (own / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        command = [
            *("java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no", "-cp", jars),
            *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(own / "zoo.cfg")),
        ]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    addresses = [f"127.0.0.1:{port}" for port in clients]
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not all("Mode: " in _say(address, b"srvr") for address in addresses):
            if time.monotonic() > deadline_s:
                raise RuntimeError("ZooKeeper does not start")
            time.sleep(0.05)
        yield ZooKeeperCluster(",".join(addresses), processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _say(address: str, word: bytes) -> str:
    """Its answer to a word of four letters; empty: it gives none."""
    host, port = address.split(":")
    said = b""
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=2) as connection:
        connection.sendall(word)
        while data := connection.recv(4096):
            said += data
    return said.decode()
