"""Processes behind addresses of this machine, and what they have used."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from quorumlog.bench.running_group import listening_processes, usage_of

LISTENER = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_listening_processes_are_found_by_address() -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", LISTENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other,
        socket.create_server(("127.0.0.1", 0)) as own,
    ):
        assert other.stdout is not None
        theirs = f"127.0.0.1:{other.stdout.readline().strip()}"
        ours = f"127.0.0.1:{own.getsockname()[1]}"
        assert listening_processes([theirs]) == [other.pid]
        assert listening_processes([ours, theirs]) == sorted([os.getpid(), other.pid])
        other.communicate("")
    assert listening_processes([theirs, ours]) == [], "one of the members is gone"
    assert listening_processes(["192.0.2.1:20911"]) == [], "not this machine"


def test_usage_counts_processor_time_and_memory() -> None:
    works = "input(); held = bytearray(b'x') * (32 << 20); sum(range(3_000_000)); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", works], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = usage_of(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        after = usage_of(process.pid)
        process.communicate("\n")
    assert after.cpu_seconds > before.cpu_seconds
    assert after.anonymous_bytes >= before.anonymous_bytes + (32 << 20)
