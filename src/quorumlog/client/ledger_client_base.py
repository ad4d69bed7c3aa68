"""What both clients have in common: options, and the requests that their verbs are made of.

Nothing here waits. Everything that could differ between the two beside waiting is a bug.
"""

from __future__ import annotations

import math
import operator
import os
import random
import time
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, SupportsIndex

from quorumlog.batch import Entry, EntryBatch
from quorumlog.client.protocol.append_joiner import AppendFrame
from quorumlog.client.protocol.client_protocol import ClientProtocol
from quorumlog.client.protocol.client_requests import (
    ANY_MEMBER,
    LEADER,
    Request,
    Stream,
    Target,
    TargetKind,
    read_target,
)
from quorumlog.client.protocol.client_timings import ClientTimings
from quorumlog.client.protocol.read_plan import ReadPlan
from quorumlog.config import DEFAULT_GROUP, parse_address
from quorumlog.errors import BadRequest, ConfigError, IndexOutOfRange
from quorumlog.wire.client_messages import (
    AppendRequest,
    ReadRequest,
    ReadResponse,
    TransferRequest,
)

DEFAULT_TIMEOUT_MS = 30_000
MAX_TIMEOUT_MS = 1e12
"""Thirty years: whoever gives more, sys.maxsize or infinity, means for ever."""
TAIL_WAIT_MS = 1000
"""How long one request of a tail waits at the server; also how soon a silent server is noticed."""
LAGGING_MEMBER_WAIT_MS = 1000
"""How long a follower may take to learn that an entry that others know of is committed."""
GET_LIMIT_BYTES = 1
_INDEX_LIMIT = 1 << 63
"""Indices are signed 64-bit numbers."""
SUBSTITUTE_TIMEOUT_MS = 5000
"""For a member that is asked in place of a damaged one: there may be another to ask after it."""


def now_ms() -> float:
    return time.monotonic() * 1000.0


def reason_of(error: OSError | UnicodeError) -> str:
    """What the operating system says, without asyncio's or Python's additions."""
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error)


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


class LedgerClientBase:
    """Options and request making; see `LedgerClient` and `AsyncLedgerClient` for the verbs."""

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        group: str = DEFAULT_GROUP,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        timings: ClientTimings | None = None,
    ) -> None:
        milliseconds = _milliseconds(timeout_ms)
        if milliseconds is None or milliseconds <= 0:
            raise ConfigError(f"timeout_ms must be positive, in milliseconds, not {timeout_ms!r}")
        if not isinstance(group, str):
            raise ConfigError(f"group must be the name of a replicated log, not {group!r}")
        self.servers = parse_servers(servers)
        self.group = "".join(group)  # a plain str, which is all that a message can carry
        self.timeout_ms = milliseconds
        self._protocol = ClientProtocol(
            self.servers, group=self.group, random=random.Random(), timings=timings
        )

    def _patience_ms(self, timeout_ms: float | None) -> float:
        """What a call was given, or what all are; there may be none left. Raises BadRequest."""
        if timeout_ms is None:
            return self.timeout_ms
        milliseconds = _milliseconds(timeout_ms)
        if milliseconds is None:
            raise BadRequest(f"timeout_ms must be a number of milliseconds, not {timeout_ms!r}")
        return milliseconds

    def _append_request(
        self, batch: EntryBatch, timeout_ms: float, stream: Stream | None = None
    ) -> Request:
        now = now_ms()
        return Request(
            AppendRequest(),
            LEADER,
            now_ms=now,
            deadline_ms=now + timeout_ms,
            payload=batch,
            stream=stream,
            context=self._new_waiter(),
        )

    def _alone_request(self, body: bytes, frame: AppendFrame) -> Request:
        """One body of a frame that was refused for its size, in the time that is left to it."""
        return self._append_request(EntryBatch.from_bodies([body]), frame.deadline_ms - now_ms())

    def _transfer_request(self, to: str, timeout_ms: int | None) -> Request:
        if not isinstance(to, str):
            raise BadRequest(f"to must be the id of a member, not {to!r}")
        now = now_ms()
        return Request(
            TransferRequest(to_member_id="".join(to)),
            LEADER,
            now_ms=now,
            deadline_ms=now + self._patience_ms(timeout_ms),
            context=self._new_waiter(),
        )

    def _read_request(self, message: ReadRequest, target: Target, timeout_ms: float) -> Request:
        now = now_ms()
        return Request(
            message,
            target,
            now_ms=now,
            deadline_ms=now + timeout_ms + message.wait_ms,
            context=self._new_waiter(),
        )

    def _substitute_request(self, message: ReadRequest, tried: set[str]) -> Request | None:
        address = self._protocol.view.untried_address(tried)
        if address is None:
            return None
        timeout_ms = min(self.timeout_ms, SUBSTITUTE_TIMEOUT_MS)
        return self._read_request(message, Target(TargetKind.ADDRESS, address), timeout_ms)

    def _get_plan(self, index: int, from_member: str | None) -> ReadPlan:
        index = _whole("index", index)
        if index < 0:
            raise IndexOutOfRange(f"index {index} is below 0, where every log begins")
        return self._plan(index, index + 1, from_member, batch_bytes=GET_LIMIT_BYTES)

    def _read_plan(
        self,
        first_index: int,
        stop_index: int | None,
        from_member: str | None,
        *,
        entries_hint: int | None = None,
        follow: bool = False,
        **sizes: int,
    ) -> ReadPlan:
        wait_ms = 0
        if follow:
            wait_ms = TAIL_WAIT_MS
        elif stop_index is not None and from_member is not None:
            wait_ms = LAGGING_MEMBER_WAIT_MS
        return self._plan(
            _whole("first_index", first_index),
            None if stop_index is None else _whole("stop_index", stop_index),
            from_member,
            wait_ms=wait_ms,
            entries_hint=entries_hint,
            follow=follow,
            **{name: _whole(name, size) for name, size in sizes.items()},
        )

    def _plan(
        self, first_index: int, stop_index: int | None, from_member: str | None, **options: Any
    ) -> ReadPlan:
        target = read_target(from_member)
        may_ask_others = target in (LEADER, ANY_MEMBER)
        return ReadPlan(
            first_index,
            stop_index,
            make_request=lambda message: self._read_request(message, target, self.timeout_ms),
            make_substitute=self._substitute_request if may_ask_others else None,
            **options,
        )

    def _new_waiter(self) -> Any:
        """Whatever the client wakes its callers with."""
        raise NotImplementedError


def entry_of(request: Request, batch: EntryBatch, index: int) -> Entry:
    """The entry of what `get(index)` brought, checked; raises IndexOutOfRange for a no-op."""
    assert batch.first_index == index, (batch.first_index, index)
    response = request.response
    assert isinstance(response, ReadResponse), response
    bounds = {
        "ledger_begin_index": response.ledger_begin_index,
        "committed_index": response.committed_index,
    }
    for entry in batch.entries():
        return entry
    term = int(batch.headers()["term"][0])
    raise IndexOutOfRange(
        f"index {index} holds no appended entry: it is the no-op that opened term {term}", **bounds
    )


def _milliseconds(timeout_ms: Any) -> float | None:
    """Within `MAX_TIMEOUT_MS`; None for what is no number. A float of Python's own: the clock does not
    fit into numpy's short ones."""
    try:
        milliseconds = float(timeout_ms) if isinstance(timeout_ms, Real) else math.nan
    except OverflowError:  # an integer beyond all floats
        milliseconds = math.inf if timeout_ms > 0 else -math.inf
    if math.isnan(milliseconds):
        return None
    return max(-MAX_TIMEOUT_MS, min(milliseconds, MAX_TIMEOUT_MS))


def _whole(name: str, value: SupportsIndex) -> int:
    """numpy's integers are as good as Python's, but no message can carry them."""
    try:
        whole = operator.index(value)
    except TypeError:
        raise BadRequest(f"{name} must be a whole number, not {value!r}") from None
    if not -_INDEX_LIMIT <= whole < _INDEX_LIMIT:
        raise BadRequest(f"{name} must fit in 64 bits, which {whole} does not")
    return whole


def checked_limit(limit: int | None) -> int | None:
    if limit is None:
        return None
    limit = _whole("limit", limit)
    if limit < 0:
        raise BadRequest(f"limit must not be negative, but is {limit}")
    return limit
