"""Ports for members on one machine."""

from __future__ import annotations

import subprocess
import sys

from quorumlog.server.free_ports import free_ports

MOST = "from quorumlog.server.free_ports import free_ports; print(*free_ports(12_000))"


def test_a_port_is_given_to_one_process_although_nobody_listens_there_yet() -> None:
    mine = free_ports(12)
    others = subprocess.run(
        [sys.executable, "-c", MOST], check=True, capture_output=True, text=True, timeout=60
    )
    assert len(others.stdout.split()) == 12_000
    assert not set(mine) & set(map(int, others.stdout.split()))


def test_nor_is_it_given_to_this_one_again_soon() -> None:
    ports = [port for _ in range(25) for port in free_ports(10)]
    assert len(set(ports)) == len(ports)
