"""etcd, a key-value store on Raft: a record is a put of a new key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.cache import Cache, go_version
from benchmarks.peers.peer import Peer
from benchmarks.peers.servers import ServerCommand
from benchmarks.peers.system import IN_FLIGHT_RECORDS, SINGLES, Shape

_SERVER = "go.etcd.io/etcd/server/v3"
_PUTS = 100
"""In a transaction; the server takes 128 at most unless told otherwise."""
_IN_FLIGHT = IN_FLIGHT_RECORDS // _PUTS
_QUOTA_BYTES = 32 << 30
"""Above what any run writes; at its default of 2 GiB etcd refuses writes."""


class Etcd(Peer):
    name = family = "etcd"
    durability = "log synced on 2 of 3"
    synced = True
    ports_each = 2
    shapes: Mapping[str, Shape] = {
        **SINGLES,
        "bulk": Shape(1, _IN_FLIGHT, _PUTS, f"transactions of {_PUTS} puts, {_IN_FLIGHT} in flight"),
    }

    @property
    def title(self) -> str:
        return f"etcd {go_version('etcd', _SERVER)}"

    def set_up(self, cache: Cache) -> None:
        self._server = cache.go_build("etcd", _SERVER, "etcd")
        self.client = [cache.go_build("etcd", ".", "etcd-load")]

    def commands(self, folder: Path, ports: Sequence[Sequence[int]]) -> list[ServerCommand]:
        peers = [f"http://127.0.0.1:{own[1]}" for own in ports]
        cluster = ",".join(f"n{i}={peer}" for i, peer in enumerate(peers))
        commands = []
        for number, own in enumerate(ports):
            client = f"http://127.0.0.1:{own[0]}"
            flags = {
                "name": f"n{number}",
                "data-dir": folder / f"n{number}",
                "listen-client-urls": client,
                "advertise-client-urls": client,
                "listen-peer-urls": peers[number],
                "initial-advertise-peer-urls": peers[number],
                "initial-cluster": cluster,
                "quota-backend-bytes": _QUOTA_BYTES,
                "log-level": "error",
            }
            arguments = [f"--{flag}={value}" for flag, value in flags.items()]
            commands.append(ServerCommand(f"n{number}", [self._server, *arguments]))
        return commands
