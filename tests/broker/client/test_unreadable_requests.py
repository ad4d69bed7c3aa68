"""A request that no broker can read ends its connection, and is not sent again until its time is up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker import BrokerClient, Message
from quorumlog.errors import BadRequest
from tests.broker.serving.served import served

NO_TEXT: Any = None


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.pull("orders", 2**63, 0),
        lambda client: client.pull("orders", 0, 2**63),
        lambda client: client.pull("orders", 0, 0, wait_ms=float("nan")),
        lambda client: client.query(NO_TEXT, "key"),
        lambda client: client.send(Message(NO_TEXT, b"x")),
    ],
)
def test_what_no_broker_can_read_is_said_and_the_client_goes_on(
    tmp_path: Path, call: Callable[[BrokerClient], object]
) -> None:
    with (
        served(tmp_path, {"orders": 1}) as server,
        BrokerClient(server.address, timeout_ms=60_000) as client,
    ):
        with pytest.raises(BadRequest, match="no server can read the request: Expected"):
            call(client)
        client.send(Message("orders", b"next"))
        assert len(client.pull("orders", 0, 0, wait_ms=10_000).messages) == 1
