"""An asyncio client that is used in a second loop says so, whatever it is a client of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quorumlog.broker import AsyncBrokerAdmin, AsyncBrokerClient, AsyncProducer
from quorumlog.client import AsyncLedgerClient
from quorumlog.errors import LedgerError
from quorumlog.kv import AsyncKeyValueClient

NOBODY = "127.0.0.1:1"
CALLS: dict[str, tuple[Callable[[], Any], Callable[[Any], Coroutine[Any, Any, Any]]]] = {
    "log": (lambda: AsyncLedgerClient(NOBODY, timeout_ms=1), lambda log: log.end_index()),
    "kv": (lambda: AsyncKeyValueClient(NOBODY, timeout_ms=1), lambda kv: kv.get("a")),
    "broker": (lambda: AsyncBrokerClient(NOBODY, timeout_ms=1), lambda broker: broker.queues()),
    "producer": (lambda: AsyncProducer(NOBODY, timeout_ms=1), lambda broker: broker.queue_count("t")),
    "admin": (lambda: AsyncBrokerAdmin(NOBODY, timeout_ms=1), lambda broker: broker.topics()),
}


@pytest.mark.parametrize("product", CALLS)
def test_a_second_loop_is_named_at_once(product: str) -> None:
    make, call = CALLS[product]
    client = make()
    with pytest.raises(LedgerError):
        asyncio.run(call(client))
    with pytest.raises(RuntimeError, match="belongs to the event loop that it was first used in"):
        asyncio.run(call(client))
