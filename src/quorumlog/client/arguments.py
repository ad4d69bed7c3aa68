"""Checked arguments of a client's callers: numbers, times and lists of servers of any type."""

from __future__ import annotations

import math
import operator
from collections.abc import AsyncIterable, Iterable, Sequence
from datetime import datetime
from numbers import Real
from typing import Any, SupportsIndex

from quorumlog.append_times import milliseconds_of
from quorumlog.config import parse_address
from quorumlog.errors import BadRequest, ConfigError
from quorumlog.log_state.control_entries import ANONYMOUS

MAX_TIMEOUT_MS = 1e12
"""Thirty years: a longer time-out means for ever."""
INDEX_LIMIT = 1 << 63
"""Indices are signed 64-bit numbers."""


def parse_servers(servers: str | Sequence[str]) -> list[str]:
    """`host:port,host:port` or a list of such; raises ConfigError."""
    listed = servers.split(",") if isinstance(servers, str) else servers
    if isinstance(listed, bytes) or not isinstance(listed, Iterable):
        raise ConfigError(f"servers must be text or a list of texts, not {servers!r}")
    listed = list(listed)
    for address in listed:
        if not isinstance(address, str):
            raise ConfigError(f"an address must be text, host:port, not {address!r}")
    addresses = [address.strip() for address in listed if address.strip()]
    if not addresses:
        raise ConfigError("no server is listed; write host:port,host:port,...")
    for address in addresses:
        parse_address(address)
    return addresses


def milliseconds(timeout_ms: Any) -> float | None:
    """Within `MAX_TIMEOUT_MS`; None for a non-number. The clock does not fit into numpy's short floats,
    so the result is Python's own."""
    try:
        value_ms = float(timeout_ms) if isinstance(timeout_ms, Real) else math.nan
    except OverflowError:  # an integer beyond all floats
        value_ms = math.inf if timeout_ms > 0 else -math.inf
    if math.isnan(value_ms):
        return None
    return max(-MAX_TIMEOUT_MS, min(value_ms, MAX_TIMEOUT_MS))


def time_ms_of(time: Any) -> int:
    """Milliseconds since 1970, rounded down. Raises BadRequest for a value that is no time of a known
    zone."""
    if not isinstance(time, datetime) or time.utcoffset() is None:
        raise BadRequest(
            f"time must be a datetime with a time zone, as in datetime.now(UTC), not {time!r}"
        )
    return milliseconds_of(time)


def whole(name: str, value: SupportsIndex) -> int:
    """numpy's integers are as good as Python's, but no message can carry them."""
    try:
        number = operator.index(value)
    except TypeError:
        raise BadRequest(f"{name} must be a whole number, not {value!r}") from None
    if not -INDEX_LIMIT <= number < INDEX_LIMIT:
        raise BadRequest(f"{name} must fit in 64 bits, which {number} does not")
    return number


def positive(name: str, value: SupportsIndex) -> int:
    number = whole(name, value)
    if number < 1:
        raise BadRequest(f"{name} must be at least 1, not {number}")
    return number


def check_items(items: object) -> None:
    """Of a stream: a single body would be taken for many numbers."""
    is_one = isinstance(items, (str, bytes, bytearray, memoryview))
    if is_one or not isinstance(items, Iterable | AsyncIterable):
        kind = type(items).__name__
        raise BadRequest(f"items must be a list, or another iterable, of bodies or batches, not {kind}")


def checked_limit(limit: int | None) -> int | None:
    if limit is None:
        return None
    limit = whole("limit", limit)
    if limit < 0:
        raise BadRequest(f"limit must not be negative, but is {limit}")
    return limit


def checked_producer(producer_id: str) -> str:
    """As a server takes it, and no anonymous one's."""
    if not isinstance(producer_id, str) or not 0 < len(producer_id) <= 255:
        raise BadRequest(f"a producer's id is a text of 1 to 255 characters, not {producer_id!r}")
    return "".join(producer_id)


def checked_producer_id(producer_id: str) -> str:
    """Of a client; raises ConfigError."""
    try:
        producer = checked_producer(producer_id)
    except BadRequest as error:
        raise ConfigError(str(error)) from None
    if producer.startswith(ANONYMOUS):
        raise ConfigError(f"a producer's id cannot begin with {ANONYMOUS!r}, which is reserved")
    return producer


def checked_expected_last(expected_last: int | None) -> int | None:
    if expected_last is None:
        return None
    expected_last = whole("expected_last", expected_last)
    if expected_last < -1:
        raise BadRequest(f"expected_last must be an index, or -1 for an empty log, not {expected_last}")
    return expected_last


def checked_machine(machine: str) -> str:
    """The name of a state machine; "" for none. Raises BadRequest."""
    if not isinstance(machine, str):
        raise BadRequest(f"machine must be the name of a state machine, not {machine!r}")
    return "".join(machine)


def checked_sequence(sequence: int, expected_last: int | None, producer: str | None) -> int:
    """Of an append by a client that is this producer."""
    if producer is None:
        raise BadRequest("sequence needs a producer: connect(..., producer_id=...)")
    if expected_last is not None:
        raise BadRequest("sequence and expected_last exclude each other")
    sequence = whole("sequence", sequence)
    if sequence < 0:
        raise BadRequest(f"sequence numbers of a producer start at 0, so {sequence} is not one")
    return sequence
