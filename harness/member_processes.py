"""Members as real processes on loopback: started, killed, stopped and continued by their ids.

They lead process groups of their own, so that Ctrl-C on the terminal reaches only the program that must
stop them in order.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from harness.encryption import options_of
from quorumlog.bench.running_group import RunningGroup
from quorumlog.server.free_ports import free_ports

STOP_TIMEOUT_S = 20.0
_LOG_TAIL_LINES = 20


class MemberFailed(RuntimeError):
    """A member ended by itself, or did not end when told to; the message has its last words."""


SERVE = ("serve",)


class MemberProcess:
    """One `quorumlog serve` and the data directory that it is restarted on."""

    def __init__(
        self,
        member_id: str,
        address: str,
        folder: Path,
        members: str,
        options: str,
        package: Path | None = None,
        groups: Sequence[str] = (),
        command: Sequence[str] = SERVE,
    ) -> None:
        """`options`: further lines of its TOML file; `package`: a folder with another quorumlog than the
        one that is installed; `groups`: what it serves, each in a folder of its directory; one without a
        name if there are none; `command`: another one that serves a member."""
        self.member_id = member_id
        self.address = address
        self.module = "quorumlog.cli.main"
        """Has the commands."""
        self.data_dir = folder / member_id
        self.starts = 0
        self._log_path = folder / f"{member_id}.log"
        self._config_path = folder / f"{member_id}.toml"
        # A string of JSON is one of TOML too, whatever characters the path has.
        lines = [f'member_id = "{member_id}"\nmembers = "{members}"\n']
        if not groups:
            lines.append(f"data_dir = {json.dumps(str(self.data_dir))}\n")
        lines.append(options)
        for group in groups:
            place = json.dumps(str(self.data_dir / group))
            lines.append(f"[groups.{group}]\ndata_dir = {place}\n")
        lines.append(options_of(member_id))
        self._config_path.write_text("".join(lines))
        self._command = command
        self.run_package(package)
        self._process: subprocess.Popen[bytes] | None = None

    # ---------------------------------------------------------------- life

    def run_package(self, package: Path | None) -> None:
        """From the next start on, the quorumlog in this folder; None: the one that is installed."""
        self._environment = {**os.environ, **({"PYTHONPATH": str(package)} if package else {})}

    def start(self) -> None:
        assert not self.running, f"{self.member_id} runs already as process {self.pid}"
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    self.module,
                    *self._command,
                    "--config",
                    str(self._config_path),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                process_group=0,
                env=self._environment,
            )
        self.starts += 1

    def kill(self) -> None:
        """SIGKILL; returns once the process is gone."""
        self._signal(signal.SIGKILL)
        self._wait()

    def pause(self) -> None:
        """SIGSTOP: its sockets stay open and nothing answers on them."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM: it hands leadership over, flushes and ends. Raises MemberFailed if it does not."""
        self._signal(signal.SIGTERM)
        try:
            status = self._wait()
        except subprocess.TimeoutExpired:
            raise MemberFailed(
                f"{self.member_id} did not stop within {STOP_TIMEOUT_S:g} s of SIGTERM:\n"
                f"{self.last_words()}"
            ) from None
        if status != 0:
            raise MemberFailed(
                f"{self.member_id} ended with status {status} after SIGTERM:\n{self.last_words()}"
            )

    def destroy(self) -> None:
        """End it by whatever it takes; no error if it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    # ---------------------------------------------------------------- looking at it

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.member_id} was never started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def last_words(self) -> str:
        if not self._log_path.exists():
            return ""
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, f"{self.member_id} was never started"
        if self._process.poll() is not None:
            raise MemberFailed(
                f"{self.member_id} ended by itself with status {self._process.returncode}:\n"
                f"{self.last_words()}"
            )
        self._process.send_signal(number)

    def _wait(self) -> int:
        assert self._process is not None
        return self._process.wait(STOP_TIMEOUT_S)


def _toml(value: str | int | dict[str, str]) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {json.dumps(item)}" for name, item in value.items()) + " }"
    return json.dumps(value)


class MemberProcesses:
    """`with MemberProcesses(folder) as members:` makes `folder` anew and starts them; none is left."""

    def __init__(
        self,
        folder: Path,
        *,
        count: int = 3,
        package: Path | None = None,
        groups: Sequence[str] = (),
        command_of: Callable[[str], Sequence[str]] | None = None,
        **options: str | int | dict[str, str],
    ) -> None:
        """`command_of`: what serves the member of an id, if it is not `quorumlog serve`."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self._addresses = {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(count))}
        self._options = "".join(f"{name} = {_toml(value)}\n" for name, value in options.items())
        self._package = package
        self._groups = groups
        self._command_of = command_of or (lambda member_id: SERVE)
        self.members: Sequence[MemberProcess]
        self.dial_at(lambda own, other: self._addresses[other])

    def dial_at(self, address_of: Callable[[str, str], str]) -> None:
        """Before they start: each member dials every other one at `address_of(its id, the other's)`."""
        self.members = tuple(
            MemberProcess(
                own,
                address,
                self.folder,
                ",".join(
                    f"{other}={address if other == own else address_of(own, other)}"
                    for other in self._addresses
                ),
                self._options,
                self._package,
                self._groups,
                self._command_of(own),
            )
            for own, address in self._addresses.items()
        )

    def reach_at(self, addresses: Mapping[str, str]) -> None:
        """Before they start: each member is to be found there, by id, for everybody; it listens where it
        always did."""
        listed = ",".join(f"{member_id}={address}" for member_id, address in addresses.items())
        self.members = tuple(
            MemberProcess(
                own,
                address,
                self.folder,
                listed,
                f'bind = "{address}"\n{self._options}',
                self._package,
                command=self._command_of(own),
            )
            for own, address in self._addresses.items()
        )

    def __enter__(self) -> Self:
        try:
            for member in self.members:
                member.start()
        except BaseException:
            self.destroy()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        self.destroy()

    def __getitem__(self, member_id: str) -> MemberProcess:
        return next(m for m in self.members if m.member_id == member_id)

    @property
    def servers(self) -> str:
        return ",".join(m.address for m in self.members)

    @property
    def running_group(self) -> RunningGroup:
        return RunningGroup(self.servers, pids=[member.pid for member in self.members])

    @property
    def data_dirs(self) -> list[Path]:
        return [m.data_dir for m in self.members]

    def check_running(self) -> None:
        """Raise MemberFailed if one has ended."""
        for member in self.members:
            if member.starts and not member.running:
                raise MemberFailed(f"{member.member_id} ended by itself:\n{member.last_words()}")

    def destroy(self) -> None:
        for member in self.members:
            member.destroy()
