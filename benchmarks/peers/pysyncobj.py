"""PySyncObj, Raft as a Python library: with its default batching, and with that off."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.cache import PEERS_FOLDER, Cache
from benchmarks.peers.peer import Peer
from benchmarks.peers.servers import ServerCommand
from benchmarks.peers.system import IN_FLIGHT_RECORDS, Shape

_PROGRAM = PEERS_FOLDER / "python" / "pysyncobj_program.py"
_REQUIREMENTS = PEERS_FOLDER / "python" / "requirements.txt"


class PySyncObj(Peer):
    family = "pysyncobj"
    durability = "page cache of 2 of 3"
    synced = False
    ports_each = 2
    shapes: Mapping[str, Shape] = {
        "one-writer": Shape(1, 1, 1, "one chain of calls inside the leader"),
        "64-writers": Shape(64, 1, 1, "64 chains of calls inside the leader"),
        "256-writers": Shape(256, 1, 1, "256 chains of calls inside the leader"),
        "bulk": Shape(
            IN_FLIGHT_RECORDS, 1, 1, f"{IN_FLIGHT_RECORDS:,} chains of calls inside the leader"
        ),
    }

    def __init__(self, *, batching: bool) -> None:
        self.name = "pysyncobj" if batching else "pysyncobj-single"
        self._batching = batching

    @property
    def title(self) -> str:
        found = re.search(r"^pysyncobj==(\S+)", _REQUIREMENTS.read_text(), re.MULTILINE)
        assert found, _REQUIREMENTS
        return f"PySyncObj {found[1]}{'' if self._batching else ' batching off'}"

    def set_up(self, cache: Cache) -> None:
        folder = cache.folder / "pysyncobj"
        self._python = folder / "bin" / "python"
        if not self._python.exists():
            cache.run([sys.executable, "-m", "venv", folder])
        install = ("-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps")
        cache.run([self._python, *install, "-r", _REQUIREMENTS])
        self.client = [self._python, _PROGRAM]

    def address_of(self, ports: Sequence[int]) -> str:
        return f"127.0.0.1:{ports[1]}"

    def commands(self, folder: Path, ports: Sequence[Sequence[int]]) -> list[ServerCommand]:
        addresses = ",".join(f"127.0.0.1:{own[0]}" for own in ports)
        mode = "batching" if self._batching else "single"
        commands = []
        for number, (_, control_port) in enumerate(ports):
            journal = str(folder / f"n{number}.journal")
            member = ("serve", addresses, str(number), str(control_port), journal, mode)
            commands.append(ServerCommand(f"n{number}", [*self.client, *member]))
        return commands
