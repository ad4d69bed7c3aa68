"""Ports for members that are started on one machine for a test, a demo or a notebook."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections import deque
from functools import cache
from pathlib import Path

LOOPBACK = "127.0.0.1"
_given: deque[int] = deque(maxlen=256)
"""By this process; a lock on a file does not keep a process from itself."""
_SHARED_MEMORY = Path("/dev/shm")
_OUTGOING_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen()
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Unused ports, below those that the kernel gives to outgoing connections.

    From that range, a peer that dials a dead member's port could be given this very port as its own,
    connect to itself, and keep the member from listening again when it is restarted. Each is this
    process's own while it lives: a stopped member's port is given to no other caller, nor soon to this
    process. Raises OSError if there are not so many.
    """
    lowest_outgoing = int(_OUTGOING_RANGE.read_text().split()[0])
    candidates = list(range(max(1024, lowest_outgoing - 16_384), lowest_outgoing))
    random.shuffle(candidates)
    free: list[int] = []
    for port in candidates:
        # Asked first: whose port it is may be about to listen there.
        if port in _given or not _claimed(port):
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        free.append(port)
        _given.append(port)
        if len(free) == count:
            return free
    raise OSError(f"fewer than {count} free ports on {LOOPBACK} below {lowest_outgoing}")


def _claimed(port: int) -> bool:
    """A lock on one byte of a file that all processes of this user share; it ends with the process."""
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    return True


@cache
def _claims() -> int:
    # Not where a process of its own has what is temporary: all have to find the same file.
    folder = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    path = folder / f"quorumlog-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
