"""A broker whose clients have all descriptors that it may have open."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from quorumlog.broker import Message, connect
from quorumlog.errors import LedgerError

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

        def closed() -> int:
            count = 0
            for client in idle:
                try:
                    client.status()
                except LedgerError:
                    count += 1
            return count

        assert 0 < closed() < IDLE
        with pytest.raises(LedgerError):
            connect(process.address)
        assert len(sender.pull("t", 1, 0).records)
        assert process.stop() == 0
