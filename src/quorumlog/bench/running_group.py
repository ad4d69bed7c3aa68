"""The loaded group, and the resources its local members used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from quorumlog.client import AsyncLedgerClient, connect_async, leader_of
from quorumlog.config import DEFAULT_GROUP, parse_address


class RunningGroup(NamedTuple):
    servers: str
    name: str = DEFAULT_GROUP
    pids: Sequence[int] = ()
    """Processes of its members on this machine, if any."""

    def connect(self, *, in_session: bool = False) -> AsyncLedgerClient:
        """`in_session`: an anonymous producer."""
        return connect_async(self.servers, group=self.name, idempotent=in_session)

    async def leader_address(self) -> str:
        """The leader's own address: another member may know it by that of a proxy.

        Waits for a leader; raises the client's error once its deadline has passed.
        """
        async with self.connect() as client:
            while True:
                await client.append(b"who leads?")
                leader = leader_of(await client.status())
                if leader is not None:
                    return leader.address


# ----------------------------------------------------------------
# The processes behind addresses of this machine, and what they have used, as the kernel counts it.

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""


class ProcessUsage(NamedTuple):
    cpu_seconds: float
    """User and system time of all threads since the process began."""
    anonymous_bytes: int
    """RssAnon: memory that is not the cache of a file."""


def usage_of(pid: int) -> ProcessUsage:
    """Raises FileNotFoundError if there is no such process."""
    # The name of the program, in brackets, may hold spaces; the fields are counted after it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    anonymous_kib = next((int(line.split()[1]) for line in status if line.startswith("RssAnon")), 0)
    return ProcessUsage((int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND, anonymous_kib * 1024)


def listening_processes(addresses: Iterable[str]) -> list[int]:
    """Ids of the processes that listen on `addresses` (`host:port`), each once.

    Empty unless all are loopback addresses whose processes are this user's.
    """
    ports = set()
    for address in addresses:
        host, port = parse_address(address)
        if host not in ("127.0.0.1", "localhost", "::1"):
            return []
        ports.add(port)
    inodes = _listening_inodes(ports)
    pids: set[int] = set()
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            held = {inodes[target] for target in _open_files(entry) if target in inodes}
            pids |= {int(entry.name)} if held else set()
            found |= held
    return sorted(pids) if found == ports else []


def _listening_inodes(ports: set[int]) -> dict[str, int]:
    """What /proc/PID/fd calls a listening socket -> its port."""
    inodes = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            port = int(fields[1].rpartition(":")[2], 16)
            if fields[3] == _LISTEN and port in ports:
                inodes[f"socket:[{fields[9]}]"] = port
    return inodes


def _open_files(process: Path) -> list[str]:
    try:
        entries = list((process / "fd").iterdir())
    except OSError:
        return []  # another user's, or gone by now
    targets = []
    for entry in entries:
        with suppress(OSError):  # closed since it was listed
            targets.append(os.readlink(entry))
    return targets
