"""A broker as a real process on loopback: started, killed and stopped by its id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from quorumlog.server.free_ports import free_ports

STOP_TIMEOUT_S = 30.0


class BrokerProcess:
    def __init__(self, folder: Path, *options: str, topics: str = "t:2") -> None:
        """`options`: further ones of `quorumlog broker serve`. Started by `start`, or by `with`."""
        (port,) = free_ports(1)
        self.folder = folder
        self.address = f"127.0.0.1:{port}"
        self.said = ""
        self._command = [
            *(sys.executable, "-m", "quorumlog.cli.main", "broker", "serve", "--dir", str(folder)),
            *("--bind", self.address, "--topics", topics, *options),
        ]
        self._process: subprocess.Popen[str] | None = None
        self.run_package(None)

    def run_package(self, package: Path | None) -> None:
        """From the next start on, the quorumlog in this folder; None: the one that is installed."""
        self._environment = {**os.environ, **({"PYTHONPATH": str(package)} if package else {})}

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    def start(self) -> Self:
        """Returns once it listens."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            process_group=0,
            env=self._environment,
        )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline()
        if not self.said:
            raise RuntimeError(f"{' '.join(self._command)} ended: {self._process.wait()}")
        return self

    @property
    def is_running(self) -> bool:
        """It was started, and nobody has ended it here."""
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; its exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        process.send_signal(number)
        try:
            return process.wait(STOP_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
