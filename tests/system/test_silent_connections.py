"""Real members with few descriptors, and connections that take them and never say a word."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.member_processes import MemberProcesses
from quorumlog import connect
from tests.system.test_processes import stop_and_compare

DESCRIPTORS = 128
BODY = bytes(8000)

pytestmark = pytest.mark.processes


def test_connections_that_say_nothing_stop_no_member(tmp_path: Path) -> None:
    """Segments are made meanwhile, each of which needs descriptors, and clients come and go."""
    with (
        ExitStack() as silent,
        MemberProcesses(tmp_path / "members", segment_bytes=1 << 16) as members,
    ):
        with connect(members.servers) as client:
            client.append(BODY)
        for member in members.members:
            resource.prlimit(member.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
            host, _, port = member.address.rpartition(":")
            for _ in range(200):
                dialled = silent.enter_context(socket.socket())
                dialled.setblocking(False)
                dialled.connect_ex((host, int(port)))
        with connect(members.servers, timeout_ms=60_000) as client:
            for _ in range(60):
                client.append(BODY)
            members.check_running()
            stop_and_compare(members, client)
