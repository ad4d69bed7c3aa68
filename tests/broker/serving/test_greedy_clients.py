"""A broker whose clients take all that they can: descriptors, and memory."""

from __future__ import annotations

import os
import re
import resource
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from quorumlog.broker import BrokerClient, Message, connect
from quorumlog.broker.wire import PullRequest, encode
from quorumlog.errors import LedgerError
from tests.broker.serving.served import dialled, hello
from tests.waiting import eventually

pytestmark = [pytest.mark.processes]
SMALL_FILES = ("--option", "mapped_file_size_commit_log=65536")
FILES = 12
IDLE = 40


def test_a_broker_closes_connections_where_its_files_need_descriptors(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store", *SMALL_FILES) as process, ExitStack() as clients:
        idle = [clients.enter_context(connect(process.address)) for _ in range(IDLE)]
        sender = clients.enter_context(connect(process.address))
        sender.send(Message("t", b"first"), queue_id=0)
        most = 1 + max(map(int, os.listdir(f"/proc/{process.pid}/fd")))
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, most))
        files = tmp_path / "store" / "commitlog"
        before = len(list(files.iterdir()))
        for number in range(3 * FILES):
            sender.send(Message("t", b"%d" % number + bytes(30_000)), queue_id=number % 2)
        assert len(list(files.iterdir())) >= before + FILES

        def is_closed(client: BrokerClient) -> bool:
            try:
                client.status()
            except LedgerError:
                return True
            return False

        found = set[bool]()
        for client in (idle[-1], *idle):  # those that have been silent for longest go first
            if len(found) < 2:
                found.add(is_closed(client))
        assert found == {True, False}, "some, and not all"
        assert len(sender.pull("t", 1, 0).records)
        assert process.stop() == 0


def open_files(process: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def peak_mib(process: BrokerProcess) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s*(\d+) kB", status)[0]) >> 10


def test_pulls_whose_answers_nobody_reads_take_little_memory(tmp_path: Path) -> None:
    """300 of 8 MiB each, by one client or by many: 2.4 GB were made for them."""
    asked = PullRequest(topic="t", queue_id=0, offset=0, most_messages=1024, most_bytes=8 << 20)
    with BrokerProcess(tmp_path / "store", topics="t:1") as process, ExitStack() as clients:
        sender = clients.enter_context(connect(process.address))
        for _ in range(100):
            sender.send(Message("t", bytes(100_000)))
        before = peak_mib(process)
        silent = [clients.enter_context(dialled(process.address)) for _ in range(100)]
        for sock in silent:
            sock.sendall(hello())
            assert sock.recv(1 << 16)
        open_then = open_files(process)
        for sock in silent:
            sock.sendall(b"".join([*encode(asked), *encode(asked), *encode(asked)]))
        # Who leaves most unread is closed, and does not hear of it.
        eventually(lambda: open_files(process) < open_then - len(silent) // 2)
        assert peak_mib(process) - before < 300
        assert len(sender.pull("t", 0, 0).records)
        assert process.stop() == 0
