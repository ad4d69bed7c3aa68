"""Where connections have run out, it is still told how a broker is, and nobody else is let in."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.broker import BrokerClient
from quorumlog.cli.main import main
from quorumlog.errors import LedgerError
from quorumlog.net.limits import ProcessLimits
from tests.broker.serving.served import served


def test_status_is_told_and_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each client was let in for five seconds, and what it had sent by then was lost or unknown."""
    with served(tmp_path, {"orders": 1}) as server:
        monkeypatch.setattr(ProcessLimits, "most_connections", 0)
        with pytest.raises(LedgerError, match="the limit of open files"):
            BrokerClient(server.address, timeout_ms=500)
        monkeypatch.setattr("sys.argv", ["quorumlog", "broker", "status", "--servers", server.address])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        assert "orders" in capsys.readouterr().out
