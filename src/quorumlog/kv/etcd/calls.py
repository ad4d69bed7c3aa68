"""Calls of one client of etcd to the store.

If this member leads, its own store answers, in this process, as always for requests that any member may
answer; other requests are forwarded to the leader. Both go through the session that the store's port has
for each client: rights, limits and metrics are applied there.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import msgspec

from quorumlog.errors import (
    LedgerError,
    OutcomeUnknown,
    Overloaded,
    PendingFull,
    ProtocolViolation,
    RequestTimeout,
    Unreachable,
)
from quorumlog.kv.client.async_store import AsyncKeyValueClient
from quorumlog.kv.client.watching import Watching
from quorumlog.kv.endpoint import KeyValueEndpoint
from quorumlog.kv.etcd.errors import TokenEnded
from quorumlog.kv.requests import (
    GROUP,
    AnswerResponse,
    CancelRequest,
    CommandRequest,
    Event,
    EventsResponse,
    KeyValue,
    Request,
    Response,
    WatchRequest,
    checked,
    encode,
    read_answer,
    size_bytes_of,
)
from quorumlog.net.errors import error_of
from quorumlog.net.frame import Frame
from quorumlog.net.hello import HelloResponse
from quorumlog.net.quotas import Meter
from quorumlog.net.rpc.calls import ANY_MEMBER, LEADER

T = TypeVar("T")
TIMEOUT_S = 5.0
"""etcd's own time-out for a majority."""
LOOK_AGAIN_S = 0.005
_events = msgspec.msgpack.Decoder(list[Event])


class Watched(Protocol):
    """The changes of one watch."""

    @property
    def next_revision(self) -> int:
        """All changes of this watch below it were returned by `batch`."""

    async def began(self) -> None:
        """Wait until the watch has begun. Raises the LedgerError of a refusal."""

    async def batch(self) -> list[Event]:
        """The next events; an empty list: only `next_revision` has advanced. Raises LedgerError."""

    def ask_progress(self) -> None:
        """Request the watch's progress, to be sent once it has caught up."""

    async def close(self) -> None: ...


class Calls(Protocol):
    async def call(self, request: Request, answer: type[T], *, here: bool = False) -> tuple[int, T]:
        """(revision of the store, answer). `here`: answered by this member from its applied state.
        Raises LedgerError."""

    def watch(self, asked: WatchRequest) -> Watched:
        """Raises InvalidRequest, NotAuthenticated."""

    async def reach_compaction(self, revision: int) -> None:
        """Wait until an acknowledged compaction is carried out by this member."""


# ---------------------------------------------------------------- forwarded


class ForwardedCalls:
    def __init__(self, client: AsyncKeyValueClient) -> None:
        """`client`: connected to all members' stores, with the codec `bytes`."""
        self.client = client

    async def call(self, request: Request, answer: type[T], *, here: bool = False) -> tuple[int, T]:
        return await self.client.asking.call(request, answer, target=ANY_MEMBER if here else LEADER)

    def watch(self, asked: WatchRequest) -> Watched:
        return _ForwardedWatch(Watching(self.client.asking, self.client.values, asked))

    async def reach_compaction(self, revision: int) -> None:
        """The leader has carried it out before it answers."""


class _ForwardedWatch:
    def __init__(self, watching: Watching[Any]) -> None:
        self._watching = watching

    @property
    def next_revision(self) -> int:
        return self._watching.next_revision

    async def began(self) -> None:
        await self._watching.began()

    async def batch(self) -> list[Event]:
        return [
            Event(_kv_of(change.item), None if change.previous is None else _kv_of(change.previous))
            for change in await self._watching.batch()
        ]

    def ask_progress(self) -> None:
        """Does nothing: progress arrives each minute."""

    async def close(self) -> None:
        await self._watching.close()


def _kv_of(item: Any) -> KeyValue:
    revisions = item.create_revision, item.mod_revision, item.version
    return KeyValue(item.key, *revisions, item.value or b"", item.lease)


# ---------------------------------------------------------------- this member's store


class EtcdCarrier(Protocol):
    """The connection of an etcd client, by which its calls arrive."""

    @property
    def peer_name(self) -> str: ...
    @property
    def meter(self) -> Any: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def unsent_bytes(self) -> int: ...
    def when_room(self, act: Callable[[], None]) -> None: ...
    def abort(self) -> None: ...
    def violate(self, violation: ProtocolViolation) -> None: ...
    def hold(self, size_bytes: int) -> None:
        """Add `size_bytes`, which may be negative, to the unsent bytes that wait in memory."""

    def next_number(self) -> int:
        """A request number, unique among the calls of the carrier."""


class LocalCalls:
    """Calls of one user on one carrier. To a session of the store's port it is a connection."""

    def __init__(
        self,
        store: KeyValueEndpoint,
        forwarded: ForwardedCalls,
        carrier: EtcdCarrier,
        user: str,
    ) -> None:
        """`user`: the authenticated user; empty: none. Raises Overloaded if the user has too many
        connections."""
        self._store = store
        self._forwarded = forwarded
        self._carrier = carrier
        self.user = user
        self.meter: Meter | None = None
        """Quota of the user; the address has one of its own, at the carrier."""
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._watches: dict[int, _LocalWatch] = {}
        self._is_revoked = False
        refusal = store.access.quotas.refusal_of_connection(self)
        if refusal is not None:
            raise refusal
        store.access.quotas.enter(self)
        self._session = store.session_of(self)

    # ---------------------------------------------------------------- Calls

    async def call(self, request: Request, answer: type[T], *, here: bool = False) -> tuple[int, T]:
        if self._is_revoked:
            raise TokenEnded()
        if here or self._store.leads:
            asking = self._forwarded.client.asking
            try:
                found = read_answer(await self._asked(request), answer)
            except LedgerError as refusal:
                is_ours = isinstance(refusal, Overloaded) and not isinstance(refusal, PendingFull)
                if is_ours or not refusal.retriable:
                    raise
            else:
                # What a client was told once stays told. A command is carried out, however late that is
                # heard, and never asked for again.
                if found[0] >= asking.seen_revision or isinstance(request, CommandRequest):
                    asking.seen_revision = max(asking.seen_revision, found[0])
                    return found
        try:
            return await self._forwarded.call(request, answer)
        except Unreachable:
            if self._is_revoked:  # its connections were closed
                raise TokenEnded() from None
            raise

    async def _asked(self, request: Request) -> bytes:
        number = self._carrier.next_number()
        loop = asyncio.get_running_loop()
        future = self._waiting[number] = loop.create_future()
        timer = loop.call_later(TIMEOUT_S, self._late, number, request)
        try:
            self._say(msgspec.structs.replace(request, request_id=number))
            response = await future
        finally:
            timer.cancel()
            self._waiting.pop(number, None)
        if isinstance(response, AnswerResponse):
            return response.answer
        raise error_of(response)

    def _late(self, number: int, request: Request) -> None:
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            kind = OutcomeUnknown if isinstance(request, CommandRequest) else RequestTimeout
            future.set_exception(kind("this member did not answer in time"))

    def _say(self, request: Request) -> None:
        frames = [Frame(GROUP, cast(Any, request), None, size_bytes_of(request))]
        for meter in (self._carrier.meter, self.meter):
            if meter is not None:
                frames = meter.admitted(frames, self)
        for frame in frames:
            self._session.frame(frame)

    def watch(self, asked: WatchRequest) -> Watched:
        if self._is_revoked:
            raise TokenEnded()
        number = self._carrier.next_number()
        # From now on: this member may not have come as far as another one whose answer was told, or
        # much further since.
        seen = self._forwarded.client.asking.seen_revision
        is_behind = self._store.service.watches.delivered_revision < seen
        first_revision = asked.first_revision or (seen + 1 if is_behind else 0)
        asked = msgspec.structs.replace(asked, request_id=number, first_revision=first_revision)
        asked = checked(asked)
        watch = self._watches[number] = _LocalWatch(self, asked)
        self._say(asked)
        return watch

    async def reach_compaction(self, revision: int) -> None:
        """Wait until this member has carried out an acknowledged compaction, as in etcd, for a
        limited time: the compaction is committed. It may lead by now, and another one have answered."""
        service, until_s = self._store.service, time.monotonic() + TIMEOUT_S
        while service.compacted_revision < revision and time.monotonic() < until_s:
            await asyncio.sleep(LOOK_AGAIN_S)

    def cancel(self, watch: int) -> None:
        if self._watches.pop(watch, None) is not None:
            self._say(CancelRequest(request_id=self._carrier.next_number(), watch=watch))

    def hold(self, size_bytes: int) -> None:
        """Count bytes of changes that no watch has returned yet."""
        self._carrier.hold(size_bytes)

    def ask_progress(self) -> None:
        self._store.service.watches.ask_progress(self._session)

    @property
    def is_idle(self) -> bool:
        """There are no pending calls and no watches."""
        return not (self._waiting or self._watches)

    def revoke(self) -> None:
        """End its watches and refuse further calls: the user was removed or has another password."""
        self._is_revoked = True
        for watch in list(self._watches.values()):
            watch.forget()
            watch.fail(TokenEnded())

    def lost(self) -> None:
        """The connection or the login has ended: refuse further calls, also of open streams."""
        self._is_revoked = True
        self._store.access.quotas.leave(self)
        self._session.lost()
        for waiting in self._waiting.values():
            waiting.cancel()
        for watch in list(self._watches.values()):
            watch.fail(Unreachable("the connection is closed"))
        self._watches.clear()

    # ---------------------------------------------------------------- the connection of its session

    @property
    def peer_name(self) -> str:
        return self._carrier.peer_name

    password = None
    peer_host = ""
    """Empty: the carrier is counted for its address."""

    @property
    def is_full(self) -> bool:
        return self._carrier.is_full

    @property
    def unsent_bytes(self) -> int:
        return self._carrier.unsent_bytes

    def when_room(self, act: Callable[[], None]) -> None:
        self._carrier.when_room(act)

    def abort(self) -> None:
        self._carrier.abort()

    close = abort

    def violate(self, violation: ProtocolViolation) -> None:
        self._carrier.violate(violation)

    def send(self, group: str, message: Response | HelloResponse) -> None:
        assert not isinstance(message, HelloResponse), "there was no Hello"
        for meter in (self._carrier.meter, self.meter):
            if meter is not None:
                meter.answered(message, len(getattr(message, "answer", b"")))
        number = message.request_id
        watch = self._watches.get(number)
        if watch is not None:
            if isinstance(message, EventsResponse):
                watch.told(message)
            else:
                del self._watches[number]
                assert not isinstance(message, AnswerResponse), message
                watch.fail(error_of(message))
            return
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result(message)


class _LocalWatch:
    def __init__(self, calls: LocalCalls, asked: WatchRequest) -> None:
        self._calls = calls
        self._number = asked.request_id
        self.next_revision = asked.first_revision
        self._batches: deque[tuple[list[Event], int, int]] = deque()
        """(events, size in bytes, next revision)."""
        self._news = asyncio.Event()
        self._failure: LedgerError | None = None

    def told(self, message: EventsResponse) -> None:
        if self._failure is not None:
            return
        data = encode(message.events)  # some are encoded already, as they lie in the store
        events = _events.decode(data)
        self._calls.hold(len(data))
        self._batches.append((events, len(data), message.next_revision))
        self._news.set()

    def fail(self, error: LedgerError) -> None:
        self._failure = self._failure or error
        self._news.set()

    async def began(self) -> None:
        await self.batch()  # says that it has begun

    async def batch(self) -> list[Event]:
        while not self._batches:
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()
        return self._take()

    def _take(self) -> list[Event]:
        events, size_bytes, self.next_revision = self._batches.popleft()
        self._calls.hold(-size_bytes)
        return events

    def forget(self) -> None:
        """Discard changes that were received and not returned yet."""
        while self._batches:
            self._take()

    def ask_progress(self) -> None:
        self._calls.ask_progress()

    async def close(self) -> None:
        self._calls.cancel(self._number)
        self.forget()
        self.fail(Unreachable("the watch is closed"))
