"""DLedger, the Java original of this design: its default configuration, which acknowledges unsynced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.cache import Cache, maven_version
from benchmarks.peers.peer import Peer
from benchmarks.peers.servers import ServerCommand
from benchmarks.peers.system import IN_FLIGHT_RECORDS, SINGLES, Shape

_JAVA = ("java", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
_BATCH = 256
_WINDOW = IN_FLIGHT_RECORDS // _BATCH


class DLedger(Peer):
    name = family = "dledger"
    durability = "page cache of 2 of 3"
    synced = False
    ports_each = 2
    shapes: Mapping[str, Shape] = {
        **SINGLES,
        "bulk": Shape(1, IN_FLIGHT_RECORDS, 1, f"single appends, {IN_FLIGHT_RECORDS:,} in flight"),
        "batch-call": Shape(
            1, _WINDOW, _BATCH, f"its batch call of {_BATCH} inside the leader, {_WINDOW} in flight"
        ),
    }

    @property
    def title(self) -> str:
        return f"DLedger {maven_version('dledger', 'dledger')}"

    def set_up(self, cache: Cache) -> None:
        self._classpath = cache.javac("dledger", cache.maven_classpath("dledger"))
        self.client = [cache.go_build("dledger", ".", "dledger-load")]

    def address_of(self, ports: Sequence[int]) -> str:
        return f"127.0.0.1:{ports[0]}/{ports[1]}"

    def commands(self, folder: Path, ports: Sequence[Sequence[int]]) -> list[ServerCommand]:
        peers = ";".join(f"n{i}-127.0.0.1:{own[0]}" for i, own in enumerate(ports))
        commands = []
        for number, (_, batch_port) in enumerate(ports):
            name = f"n{number}"
            member = ("-cp", self._classpath, "Member", name, peers, folder / name, str(batch_port))
            commands.append(ServerCommand(name, [*_JAVA, *member]))
        return commands
