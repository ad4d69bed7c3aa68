"""Where connections have run out, it is still told how a broker is, and nobody else is let in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog.broker import BrokerClient
from quorumlog.errors import LedgerError
from quorumlog.net.limits import ProcessLimits
from tests.broker.serving.served import served


def test_status_is_told_and_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each client was let in for five seconds, and what it had sent by then was lost or unknown."""
    with served(tmp_path, {"orders": 1}) as server:
        monkeypatch.setattr(ProcessLimits, "most_connections", 0)
        with pytest.raises(LedgerError, match="the limit of open files"):
            BrokerClient(server.address, timeout_ms=500)
        command = [sys.executable, "-m", "quorumlog", "broker", "status", "--servers", server.address]
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert "orders" in told.stdout
