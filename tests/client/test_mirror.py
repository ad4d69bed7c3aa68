"""What is not written from an asyncio class is like it: the same verbs, parameters and defaults."""

from __future__ import annotations

import inspect

from quorumlog.client import (
    AppendStream,
    AsyncAppendStream,
    AsyncLedgerClient,
    LedgerClient,
    connect,
    connect_async,
)
from quorumlog.client.reading import AsyncResults, Results


def parameters(function: object) -> list[tuple[str, object, object]]:
    """Name, kind and default of each. What is iterated by one client is awaited by the other."""
    assert callable(function), function
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def public(kind: type) -> dict[str, object]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


def test_both_are_made_alike() -> None:
    assert parameters(connect) == parameters(connect_async)
    assert parameters(LedgerClient) == parameters(AsyncLedgerClient)


def test_streams_have_the_same_verbs() -> None:
    assert public(AppendStream).keys() == public(AsyncAppendStream).keys()
    assert public(Results).keys() == {*public(AsyncResults).keys()} - {"aclose"} | {"close"}
