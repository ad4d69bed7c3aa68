"""Whoever knows one client knows the other: the same verbs, with the same parameters and defaults."""

from __future__ import annotations

import inspect

import pytest

from quorumlog.client import (
    AppendStream,
    AsyncAppendStream,
    AsyncLedgerClient,
    LedgerClient,
    connect,
    connect_async,
)
from quorumlog.client.io.io_thread import IoThread
from quorumlog.net.io_loop import IoLoop


def parameters(function: object) -> list[tuple[str, object, object]]:
    """Name, kind and default of each. What is iterated by one client is awaited by the other."""
    assert callable(function), function
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def public(kind: type) -> dict[str, object]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("blocking", "of_asyncio"), [(LedgerClient, AsyncLedgerClient), (AppendStream, AsyncAppendStream)]
)
def test_both_clients_have_the_same_verbs(blocking: type, of_asyncio: type) -> None:
    assert public(blocking).keys() == public(of_asyncio).keys()
    for name, verb in public(blocking).items():
        if inspect.isfunction(verb):
            assert parameters(verb) == parameters(public(of_asyncio)[name]), name
    assert parameters(blocking) == parameters(of_asyncio)


def test_both_are_made_alike() -> None:
    assert parameters(connect) == parameters(connect_async)


def test_a_verb_that_both_stand_on_is_found_under_one_name() -> None:
    assert {"submit", "cancel", "wait", "close"} <= public(IoThread).keys() & public(IoLoop).keys()
