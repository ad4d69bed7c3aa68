"""Either side as processes on loopback: one real etcd, or three members of ours."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from harness.member_processes import MemberProcesses
from quorumlog.server.free_ports import free_ports


class Side(NamedTuple):
    """Where a server of etcd's API listens, as HOST:PORT of each member."""

    grpc: Sequence[str]
    gateways: Sequence[str]
    check: Callable[[], object]
    """Raises if a process of it has ended."""


@contextmanager
def running(server: Path, folder: Path) -> Iterator[Side]:
    """One real etcd. `folder`: for its data."""
    client, peer = (f"127.0.0.1:{port}" for port in free_ports(2))
    flags = {
        "data-dir": folder / "etcd",
        "listen-client-urls": f"http://{client}",
        "advertise-client-urls": f"http://{client}",
        "listen-peer-urls": f"http://{peer}",
        "initial-advertise-peer-urls": f"http://{peer}",
        "initial-cluster": f"default=http://{peer}",
        "log-level": "error",
        "unsafe-no-fsync": "true",
    }
    command = [str(server), *(f"--{name}={value}" for name, value in flags.items())]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def check() -> None:
        if process.poll() is not None:
            raise RuntimeError(f"{server} has ended with status {process.returncode}")

    try:
        yield Side([client], [client], check)
    finally:
        process.kill()
        process.wait()


@contextmanager
def ours(folder: Path) -> Iterator[Side]:
    """Three members of ours, each with both ports. `folder`: made anew."""
    with members(folder) as (side, _):
        yield side


@contextmanager
def members(folder: Path) -> Iterator[tuple[Side, MemberProcesses]]:
    ports = free_ports(9)
    stores, grpc, gateways = (
        [f"127.0.0.1:{port}" for port in ports[start : start + 3]] for start in (0, 3, 6)
    )

    def command_of(member_id: str) -> Sequence[str]:
        number = int(member_id.removeprefix("n"))
        return (
            *("kv", "serve", "--listen", stores[number], "--servers", ",".join(stores)),
            *("--etcd", grpc[number], "--etcd-gateway", gateways[number]),
        )

    with MemberProcesses(folder, command_of=command_of) as processes:
        yield Side(grpc, gateways, processes.check_running), processes
