"""What reads of the log give by their options, and options that there are not.

mypy checks this folder, and refuses a `type: ignore` that is not needed: each is a line that is wrong.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, assert_type

import pytest

from quorumlog import AsyncLedgerClient, Entry, LedgerClient, TimedEntry, connect, connect_async
from quorumlog.client.reading import AsyncResults, Results

NOBODY = "127.0.0.1:1"


def test_an_option_that_there_is_not() -> None:
    with pytest.raises(TypeError, match="timeout"):
        connect(NOBODY, timeout=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="grup"):
        connect_async(NOBODY, grup="g")  # type: ignore[call-arg]
    with connect(NOBODY) as log:
        with pytest.raises(TypeError, match="lmit"):
            log.read(0, lmit=3)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="wiat"):
            log.tail(0, wiat=True)  # type: ignore[call-overload]


def test_entries_have_times_if_they_are_asked_for() -> None:
    """Nothing is sent: what is asserted here, mypy holds."""
    with connect(NOBODY) as log:
        assert_type(log.read(0, 9, limit=3), Results[Entry])
        assert_type(log.read(0, with_time=False), Results[Entry])
        assert_type(log.read(0, with_time=True, from_member="any"), Results[TimedEntry])
        assert_type(log.tail("latest", wait=True), Results[Entry])
        assert_type(log.tail(with_time=True, timeout_ms=9), Results[TimedEntry])
    times_of(log, with_time=True)


def times_of(log: LedgerClient, with_time: bool) -> Any:
    assert_type(log.read(0, with_time=with_time), Results[Entry])
    return lambda: assert_type(next(log.read(0, with_time=True)).append_time, datetime | None)


async def times_for_asyncio(log: AsyncLedgerClient) -> None:
    assert_type(log.read(0, limit=3), AsyncResults[Entry])
    assert_type(log.tail(with_time=False), AsyncResults[Entry])
    assert_type(log.tail(0, with_time=True), AsyncResults[TimedEntry])
    async for entry in log.read(0, 9, with_time=True):
        assert_type(entry, TimedEntry)
    log.read(0, with_tiem=True)  # type: ignore[call-overload]
