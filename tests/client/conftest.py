from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from quorumlog.client import LedgerClient
from tests.client.both_clients import Blocked, Client
from tests.client.fake_server import FakeGroup


@pytest.fixture
def group() -> Iterator[FakeGroup]:
    """Three servers; n0 leads in term 2, whose no-op is entry 0."""
    with FakeGroup() as group:
        yield group


@pytest.fixture(params=["blocking", "asyncio", "uvloop"])
def new_client(request: pytest.FixtureRequest) -> Iterator[Callable[..., Client]]:
    """Makes clients of the kind under test; closes them at the end."""
    clients: list[Client] = []

    def make(servers: str, **options: Any) -> Client:
        options.setdefault("timeout_ms", 10_000)
        client: Client
        if request.param == "blocking":
            client = LedgerClient(servers, **options)
        else:
            loops = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
            client = Blocked(loops, servers, **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(group: FakeGroup, new_client: Callable[..., Client]) -> Client:
    return new_client(group.addresses)
