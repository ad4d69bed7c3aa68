"""NATS JetStream, a stream of three replicas in files: with the disk synced now and then, and always."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.cache import Cache, go_version
from benchmarks.peers.peer import Peer
from benchmarks.peers.servers import ServerCommand
from benchmarks.peers.system import IN_FLIGHT_RECORDS, SINGLES, Shape

_SERVER = "github.com/nats-io/nats-server/v2"
_FLOW = 256
"""Records for one answer of fast ingest, as many as in a batch of quorumlog's load."""
_WINDOW = IN_FLIGHT_RECORDS // _FLOW


class Nats(Peer):
    family = "nats"
    ports_each = 2
    shapes: Mapping[str, Shape] = {
        **SINGLES,
        "bulk": Shape(
            1, IN_FLIGHT_RECORDS, 1, f"asynchronous publishes, {IN_FLIGHT_RECORDS:,} in flight"
        ),
        "batch-call": Shape(
            1, _WINDOW, _FLOW, f"fast ingest, an answer for {_FLOW}, {_WINDOW} in flight"
        ),
    }

    def __init__(self, *, sync_always: bool) -> None:
        self.synced = sync_always
        self.name = "nats-always" if sync_always else "nats"
        self.durability = "log synced on 2 of 3" if sync_always else "page cache of 2 of 3"

    @property
    def title(self) -> str:
        return f"NATS {go_version('nats', _SERVER)}{' sync always' if self.synced else ''}"

    def set_up(self, cache: Cache) -> None:
        self._server = cache.go_build("nats", _SERVER, "nats-server")
        self.client = [cache.go_build("nats", ".", "nats-load")]

    def commands(self, folder: Path, ports: Sequence[Sequence[int]]) -> list[ServerCommand]:
        commands = []
        for number, (client_port, route_port) in enumerate(ports):
            jetstream = {"store_dir": str(folder / f"n{number}")}
            if self.synced:
                jetstream["sync_interval"] = "always"
            config = {
                "server_name": f"n{number}",
                "listen": f"127.0.0.1:{client_port}",
                "jetstream": jetstream,
                "cluster": {
                    "name": "bench",
                    "listen": f"127.0.0.1:{route_port}",
                    "routes": [f"nats://127.0.0.1:{own[1]}" for own in ports],
                },
            }
            path = folder / f"n{number}.conf"
            # What is JSON is a configuration of NATS too.
            path.write_text(json.dumps(config))
            commands.append(ServerCommand(f"n{number}", [self._server, "--config", path]))
        return commands
