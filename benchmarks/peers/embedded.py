"""openraft and dragonboat, libraries: members of a few lines embed them; one load client is for both."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.cache import Cache, cargo_version, go_version
from benchmarks.peers.peer import Peer
from benchmarks.peers.servers import ServerCommand
from benchmarks.peers.system import IN_FLIGHT_RECORDS, SINGLES, Shape


class _Embedded(Peer):
    durability = "log synced on 2 of 3"
    synced = True
    ports_each = 2
    shapes: Mapping[str, Shape] = {
        **SINGLES,
        "bulk": Shape(1, IN_FLIGHT_RECORDS, 1, f"single records, {IN_FLIGHT_RECORDS:,} in flight"),
    }

    def set_up(self, cache: Cache) -> None:
        self._server = self.build(cache)
        self.client = [cache.go_build("embedded", ".", "embedded-load")]

    @abstractmethod
    def build(self, cache: Cache) -> Path:
        """The member."""

    def commands(self, folder: Path, ports: Sequence[Sequence[int]]) -> list[ServerCommand]:
        members = ",".join(f"127.0.0.1:{raft}" for _, raft in ports)
        commands = []
        for number, (client, _) in enumerate(ports, start=1):
            data = folder / f"n{number}"
            data.mkdir()
            command: list[str | Path] = [self._server, str(number), data, f"127.0.0.1:{client}", members]
            commands.append(ServerCommand(f"n{number}", command))
        return commands


class OpenRaft(_Embedded):
    name = family = "openraft"

    @property
    def title(self) -> str:
        return f"openraft {cargo_version('openraft', 'openraft')}"

    def build(self, cache: Cache) -> Path:
        return cache.cargo_build("openraft", "openraft-member")


class Dragonboat(_Embedded):
    name = family = "dragonboat"

    @property
    def title(self) -> str:
        version, _, day_and_commit = go_version("dragonboat", "github.com/lni/dragonboat/v4").partition(
            "-"
        )
        return f"dragonboat {version} of {day_and_commit[:8]}"

    def build(self, cache: Cache) -> Path:
        return cache.go_build("dragonboat", ".", "dragonboat-member")
