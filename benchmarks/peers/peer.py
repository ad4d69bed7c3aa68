"""Peer: what all systems but quorumlog have in common: servers by command, a load client by command."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.load_client import Command, prepare, run_load
from benchmarks.peers.servers import ServerCommand, Servers
from benchmarks.peers.system import MEMBERS, Figures, MeasuringFailed, Shape, System
from quorumlog.server.free_ports import free_ports


class Peer(System):
    ports_each = 1
    """Ports of one member."""
    client: Command
    """The load client; known once `set_up` has been."""
    client_env: Mapping[str, str] = {}

    @abstractmethod
    def commands(self, folder: Path, ports: Sequence[Sequence[int]]) -> list[ServerCommand]:
        """What to start, with configuration and empty data directories made; `ports` by member."""

    def address_of(self, ports: Sequence[int]) -> str:
        """What the load client is told about one member: its first port, unless it needs more."""
        return f"127.0.0.1:{ports[0]}"

    @contextmanager
    def running(self, folder: Path) -> Iterator[RunningPeer]:
        numbers = free_ports(MEMBERS * self.ports_each)
        ports = [numbers[i * self.ports_each :][: self.ports_each] for i in range(MEMBERS)]
        addresses = ",".join(map(self.address_of, ports))
        with Servers(folder, self.commands(folder, ports)) as servers:
            try:
                prepare(self.client, addresses, self.client_env)
            except MeasuringFailed:
                servers.check_running()  # the better reason, if that is one
                raise
            yield RunningPeer(self, servers, addresses, folder)


class RunningPeer:
    def __init__(self, peer: Peer, servers: Servers, addresses: str, folder: Path) -> None:
        self._peer = peer
        self._servers = servers
        self._addresses = addresses
        self._folder = folder

    def measure(self, workload: str, seconds: float) -> Figures:
        shape: Shape = self._peer.shapes[workload]
        try:
            return run_load(
                self._peer.client,
                self._addresses,
                shape,
                seconds,
                self._servers.cpu_seconds,
                self._folder / f"load-{workload}.log",
                self._peer.client_env,
            )
        finally:
            self._servers.check_running()
