"""How long a blocking client goes on asking."""

from __future__ import annotations

import time
from typing import Any

import pytest

from quorumlog.broker.client.blocking_broker_client import BrokerClient
from quorumlog.errors import Unreachable


class Silent:
    """A connection that breaks as soon as something is asked there."""

    address, host, is_demoted = "127.0.0.1:1", bytes(4), False

    def call(self, message: Any, encoded: Any, deadline_s: float) -> Any:
        raise Unreachable("the broker closed the connection")

    def close(self) -> None:
        pass


class Dialled(BrokerClient):
    """Which may connect once."""

    left_s: list[float]

    def _link(self, deadline_s: float | None = None) -> Any:
        if deadline_s is None:
            self.left_s = []
            return None
        self.left_s.append(deadline_s - time.monotonic())
        if len(self.left_s) == 1:
            return Silent()
        raise Unreachable("nobody listens")


def test_only_a_broker_that_was_asked_may_take_the_time_to_wait_for_something() -> None:
    with Dialled("127.0.0.1:1,127.0.0.1:2", timeout_ms=100) as client:
        with pytest.raises(Unreachable):
            client.pull("t", 0, 0, wait_ms=60_000)
        assert len(client.left_s) == 2
        assert max(client.left_s) <= 0.1
