"""Job: a command of a pipeline, run again and again. It ends well, is killed, or says why in short."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 300.0
"""Of one run, however slow the machine is."""
_NUMBERS = re.compile(r"\d+|127\.[\d.:,]+|[0-9a-f]{8,}|/\S+|s3://\S+")
_AWAY = re.compile("does not answer|cannot be opened: ")
"""What an audit tells of a member that is down, or not up to its end yet."""


class Job(threading.Thread):
    """Problems are what must never be: a traceback, two places that differ, a run without end."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        stop: threading.Event,
        archive: str = "",
    ) -> None:
        """`archive`: of an audit, the place that has to be sound at any time."""
        super().__init__(name=name, daemon=True)
        self.command = [sys.executable, "-m", "quorumlog", "pipeline", *command]
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []
        self._log = folder / f"{name}.log"
        self._stop_event = stop
        self._archive = archive
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False

    def run(self) -> None:
        while not self._stop_event.is_set():
            status, told, said = self.once()
            self._note(status, told, said)
            self._stop_event.wait(random.uniform(0.0, 0.5))

    def once(self) -> tuple[int, str, bytes]:
        """Exit status, what it told on standard error, and on standard output."""
        self._is_killed = False
        with self._log.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,
            )
            try:
                said, _ = self._process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.problems.append(f"{self.name} did not end within {PATIENCE_S:g} s")
                self.kill()
                said, _ = self._process.communicate()
        with self._log.open("rb") as log:
            log.seek(begin)
            told = log.read().decode(errors="replace")
        return self._process.returncode, told, said

    def kill(self) -> bool:
        """With the JVM below it, if it has one. Whether it ran."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        self._is_killed = True
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return True

    def _note(self, status: int, told: str, said: bytes) -> None:
        if status == -signal.SIGKILL and self._is_killed:
            self.outcomes["killed"] += 1
            return
        if "Traceback" in told or status < 0:
            self.problems.append(f"{self.name} ended with {status}: {told[-2000:]}")
            return
        if self._archive and said:
            self._check_audit(json.loads(said))
        last = told.strip().splitlines()[-1] if status and told.strip() else ""
        self.outcomes["well" if not status else _NUMBERS.sub("N", last)[:110] or "differs"] += 1

    def _check_audit(self, found: dict[str, list[dict[str, object]]]) -> None:
        """Members may be away; nobody may hold another entry or a damaged one, and the archive is always
        sound."""
        for each in found["differences"]:
            is_away = not each["other"] and _AWAY.search(str(each["what"]))
            if each["place"] == self._archive or not is_away:
                self.problems.append(f"{self.name} found: {each}")
