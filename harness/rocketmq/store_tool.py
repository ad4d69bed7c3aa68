"""A process with one DefaultMessageStore of RocketMQ, and golden data made by it.

python -m harness.rocketmq.store_tool tests/fixtures/rocketmq-store      make the golden data anew
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

from harness.maven import Unavailable, jars_of, run
from quorumlog.server.free_ports import free_ports

FOLDER = Path(__file__).resolve().parent
CACHE = Path.home() / ".cache" / "quorumlog-rocketmq"

FILE_BYTES, QUEUE_BYTES, SLOTS, ENTRIES = 16_384, 1_200, 100, 400
"""Small files, so that few messages fill several of them."""


def class_path() -> str:
    """Of RocketMQ and of what is compiled here. Raises Unavailable."""
    jars, classes = jars_of(FOLDER / "pom.xml", CACHE), CACHE / "classes"
    run(["javac", "-cp", jars, "-d", classes, *sorted(FOLDER.glob("*.java"))])
    return f"{classes}{os.pathsep}{jars}"


class StoreTool:
    """Starts, and has loaded the directory, when this is made."""

    def __init__(
        self,
        classes: str,
        directory: Path,
        *,
        flush: str = "ASYNC_FLUSH",
        master: str = "",
        dledger: bool = False,
    ) -> None:
        """`master`: it is a slave of the one that lets slaves in there; else slaves come to
        `ha_address`. `dledger`: a DLedgerCommitLog, of one member, in `directory/dledger-n0`."""
        port, ledger_port = free_ports(2)
        self.ha_address = f"127.0.0.1:{port}"
        mode = [f"-Ddledger.port={ledger_port}"] if dledger else []
        self._log = CACHE / "logs"
        self._process = subprocess.Popen(
            [
                *("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classes),
                *(f"-Drocketmq.log.root={self._log}", f"-Duser.home={CACHE}", *mode, "StoreTool"),
                *(str(directory), str(FILE_BYTES), str(QUEUE_BYTES), str(SLOTS), str(ENTRIES)),
                *(str(port), flush, *([master] if master else [])),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.loaded = self._answer() == ["loaded"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __call__(self, command: str) -> list[str]:
        """What it answers to a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> list[str]:
        assert self._process.stdout is not None
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith("= "):
                if line == "= ok\n":
                    return lines
                lines.append(line[2:].rstrip("\n"))
        raise Unavailable(f"the Java store ended; its log is in {self._log}")

    def close(self) -> None:
        """A clean stop."""
        self("close")
        self._process.wait(60)

    def halt(self) -> None:
        """Without a stop, as SIGKILL."""
        self._process.kill()
        self._process.wait(60)


def make_golden(directory: Path) -> None:
    """Three queues of two topics over several files."""
    shutil.rmtree(directory, ignore_errors=True)
    with StoreTool(class_path(), directory) as tool:
        tool("put golden 0 0 60")
        tool("put golden 1 60 40")
        tool("put other 0 100 30")
        tool.close()
    for extra in ("compaction", "lock", "abort.bak"):
        path = directory / extra
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    make_golden(Path(sys.argv[1]))
