"""Three members with brokers as real processes on loopback: started, killed, paused and stopped by their
ids."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Self

from harness.broker_process import BrokerProcess
from harness.proxy import Network
from quorumlog.server.free_ports import free_ports


class BrokerCluster:
    def __init__(
        self,
        folder: Path,
        *options: str,
        members: int = 3,
        topics: str = "t:2",
        log_options: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`options`: further ones of `quorumlog broker serve`; `log_options`: those of --config. They
        run within `with`; what their logs say to each other passes `network`."""
        ports = free_ports(2 * members)
        ids = [f"n{number}" for number in range(members)]
        logs = dict(zip(ids, ports, strict=False))
        brokers = dict(zip(ids, ports[members:], strict=True))
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in brokers.items()}
        own = {name: f"127.0.0.1:{port}" for name, port in logs.items()}
        self._stack = ExitStack()
        self.network = self._stack.enter_context(Network(own))
        reached = {name: self.network.common_address(name) for name in ids}
        listed = [
            ",".join(f"{name}={address}" for name, address in each.items())
            for each in (reached, self.addresses)
        ]
        folder.mkdir(parents=True, exist_ok=True)
        for name in ids:
            lines = [
                f'bind = "{own[name]}"',
                *(f"{key} = {value}" for key, value in log_options.items()),
            ]
            (folder / f"{name}.toml").write_text("\n".join(lines) + "\n")
        self._processes = {
            name: BrokerProcess(
                folder / name,
                *("--role", "dledger", "--id", name, "--members", listed[0], "--brokers", listed[1]),
                *("--config", str(folder / f"{name}.toml")),
                *options,
                topics=topics,
            )
            for name in ids
        }
        self._paused: set[str] = set()

    @property
    def servers(self) -> str:
        return ",".join(self.addresses.values())

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor() as starting:
                list(starting.map(self.start, self._processes))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._paused):
            self.resume(name)
        for process in self._processes.values():
            process.__exit__()
        self._stack.close()

    def start(self, name: str) -> None:
        self._processes[name].start()

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._processes[name].kill()

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        os.kill(self._processes[name].pid, signal.SIGSTOP)
        self._paused.add(name)

    def resume(self, name: str) -> None:
        self._paused.discard(name)
        os.kill(self._processes[name].pid, signal.SIGCONT)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]
