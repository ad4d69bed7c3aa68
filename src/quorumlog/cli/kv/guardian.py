"""The guardian of a command that runs under a lock: a process that outlives SIGKILL of the one that
holds the lock, and ends the command then.

    python guardian.py PIPE GROUP COMMAND...

PIPE is the number of the end of a pipe that is read here: each byte is a signal to pass on, and its end
says that the lock is held no more. GROUP is `own` for a process group of its own, which signals go to;
else COMMAND stays in that of its terminal, and they go to it and to what it has started. Ends with the
command's status, as a shell has it. It is run as a file: its imports are loaded each time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OWN_GROUP = "own"
STOP_S = 5.0
"""From SIGTERM to SIGKILL, and from the end of the command to that of its descendants."""
LOOK_S = 0.05
CANNOT_RUN = 127
SIGNALLED = 128
"""Plus the number of the signal: a shell's status of a command ended by one."""


class _Guarded:
    def __init__(self, process: subprocess.Popen[bytes], *, own_group: bool) -> None:
        self._process = process
        self._own_group = own_group
        self._targets = {-process.pid if own_group else process.pid}
        """Ids of processes; below 0: of a group."""
        self.is_ending = False

    def send(self, number: int) -> None:
        if not self._own_group:
            self._targets |= _with_descendants(self._process.pid)
        for target in self._targets:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(target, number)

    def obey(self, pipe: int) -> None:
        while number := os.read(pipe, 1):
            self.is_ending = True
            self.send(number[0])
        self.is_ending = True
        self.send(signal.SIGTERM)
        self.kill_late()

    def kill_late(self) -> None:
        """Returns once all of it has ended."""
        deadline_s = time.monotonic() + STOP_S
        while any(map(_is_there, self._targets)):
            if time.monotonic() >= deadline_s:
                self.send(signal.SIGKILL)
                return
            time.sleep(LOOK_S)


def _is_there(target: int) -> bool:
    """A zombie is not: the first process of a container may reap none."""
    processes = Path("/proc").glob("[0-9]*") if target < 0 else [Path(f"/proc/{target}")]
    for process in processes:
        with suppress(OSError):  # it has ended
            state, _, group, *_ = (process / "stat").read_text().rpartition(")")[2].split()
            if state != "Z" and (target > 0 or int(group) == -target):
                return True
    return False


def _with_descendants(pid: int) -> set[int]:
    found = {pid}
    with suppress(OSError):  # it has ended
        for listed in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in listed.read_text().split():
                found |= _with_descendants(int(child))
    return found


def main() -> int:
    pipe, group, *command = sys.argv[1:]
    for number in PASSED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:
            # With a handler, not ignored: the command would inherit that.
            signal.signal(number, lambda *_: None)
    own_group = group == OWN_GROUP
    try:
        process = subprocess.Popen(command, process_group=0 if own_group else None)
    except OSError as error:
        print(f"{command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return CANNOT_RUN
    guarded = _Guarded(process, own_group=own_group)
    threading.Thread(target=guarded.obey, args=(int(pipe),), daemon=True).start()
    status = process.wait()
    if guarded.is_ending:
        guarded.kill_late()
    return status if status >= 0 else SIGNALLED - status


if __name__ == "__main__":
    sys.exit(main())
