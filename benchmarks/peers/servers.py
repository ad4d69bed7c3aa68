"""Servers: the three processes of one system, stopped by their ids whatever happens in between."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from benchmarks.peers.cache import last_lines
from benchmarks.peers.system import MeasuringFailed
from quorumlog.bench.running_group import usage_of


class ServerCommand(NamedTuple):
    name: str
    """Its output goes to NAME.log."""
    command: Sequence[str | os.PathLike[str]]
    env: Mapping[str, str] = {}
    """Added to the environment."""


class Servers:
    """`with Servers(folder, commands)`: starts them in groups of their own, so that Ctrl-C on the
    terminal reaches only the program that stops them."""

    def __init__(self, folder: Path, commands: Sequence[ServerCommand]) -> None:
        self._folder = folder
        self._commands = commands
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            for command in self._commands:
                with self._log_path(command).open("ab") as log:
                    process = subprocess.Popen(
                        command.command,
                        cwd=self._folder,
                        env={**os.environ, **command.env},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        process_group=0,
                    )
                self._processes.append(process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        self.stop()

    def check_running(self) -> None:
        """Raise MeasuringFailed if one has ended, with its last words."""
        for command, process in zip(self._commands, self._processes, strict=True):
            if (status := process.poll()) is not None:
                words = last_lines(self._log_path(command).read_text(errors="replace"))
                raise MeasuringFailed(f"{command.name} ended by itself with status {status}: {words}")

    def cpu_seconds(self) -> float:
        """User and system time of the processes and all their living descendants since they began."""
        total = 0.0
        for pid in with_descendants([process.pid for process in self._processes], parents()):
            with suppress(FileNotFoundError, ProcessLookupError):  # a child that ended just now
                total += usage_of(pid).cpu_seconds
        return total

    def stop(self) -> None:
        """SIGKILL, to the children too, which outlive a killed parent. Nobody needs an orderly end: the
        data is removed, and the last of three can be slow to give up."""
        # One that has been waited for has no id any more: it may be another's by now.
        ours = [process.pid for process in self._processes if process.returncode is None]
        for pid in with_descendants(ours, parents()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def _log_path(self, command: ServerCommand) -> Path:
        return self._folder / f"{command.name}.log"


def parents() -> dict[int, int]:
    """Every process of this machine -> its parent."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):  # gone since it was listed
                # The name of the program, in brackets, may hold spaces; fields count from behind it.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                found[int(entry.name)] = int(fields[1])
    return found


def with_descendants(pids: Iterable[int], parent_of: Mapping[int, int]) -> set[int]:
    """`pids`, their children, the children's children."""
    family = set(pids)
    while more := {pid for pid, parent in parent_of.items() if parent in family} - family:
        family |= more
    return family
