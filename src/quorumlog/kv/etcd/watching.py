"""Watches of one stream of etcd's Watch service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import msgspec

from quorumlog.errors import LeaderNotReady, LedgerError
from quorumlog.kv.errors import Compacted
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.calls import TIMEOUT_S, Watched
from quorumlog.kv.etcd.conversions import event_of, watch_of
from quorumlog.kv.etcd.errors import Code, error_of, etcd_error
from quorumlog.kv.etcd.handlers import Handlers
from quorumlog.kv.requests import FROM_KEY, MAX_REQUEST_BYTES, Event, WatchRequest

NO_WATCH = -1
"""Watch id in answers that concern no watch, or all of them."""
FRAGMENT_BYTES = MAX_REQUEST_BYTES + (512 << 10)
"""Most bytes of a response of a watch with `fragment`; larger ones are sent in parts."""
MOST_PENDING = 5_000
"""Most watches of a stream, and most of its requests whose answers were not read."""
ASK_AGAIN_S = 0.1
"""Seconds between requests for progress: a watch that reads history reports none until it has caught
up. And between attempts to begin a watch."""

Tell = Callable[[pb.WatchResponse], Awaitable[None]]


class WatchStream:
    def __init__(self, handlers: Handlers, tell: Tell, may_add: Callable[[int], str]) -> None:
        """`tell` sends a response, and returns when there is room for more. `may_add` counts watches:
        with 1 it adds one, and returns a reason to refuse it, or ""; with -1 it removes one."""
        self._handlers = handlers
        self._tell = tell
        self._may_add = may_add
        self._watches: dict[int, _Watch] = {}
        self._next_id = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._progress: asyncio.Task[None] | None = None
        self._asks_again = False
        self._moved = asyncio.Event()
        self._begins_again = asyncio.Lock()
        """Held by the one watch that tries again to begin."""

    def ask(self, request: pb.WatchRequest) -> None:
        """Invalid requests are ignored, as in etcd. Raises RpcError."""
        if len(self._tasks) >= MOST_PENDING:
            raise etcd_error(Code.RESOURCE_EXHAUSTED, "too many requests")
        match request.WhichOneof("request_union"):
            case "create_request":
                self._create(request.create_request)
            case "cancel_request":
                self._cancel(request.cancel_request.watch_id)
            case "progress_request":
                self._asks_again = True
                if self._progress is None:
                    self._progress = self._begin(self._tell_progress())

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---------------------------------------------------------------- watches

    def _create(self, asked: pb.WatchCreateRequest) -> None:
        number, end = asked.watch_id, asked.range_end
        refusal = ""
        if number in self._watches and number:
            refusal = "mvcc: duplicate watch ID provided on the WatchStream"
        elif end and end != FROM_KEY and end <= (asked.key or b"\0"):
            refusal = "mvcc: watcher range is empty"
        elif asked.start_revision < 0:
            refusal = "etcdserver: mvcc: required revision has been compacted"
        else:
            refusal = self._may_add(1)
        if refusal:
            self._begin(self._refuse(refusal))
            return
        if not number:
            while self._next_id in self._watches:
                self._next_id += 1
            number, self._next_id = self._next_id, self._next_id + 1
        watch = self._watches[number] = _Watch(number, asked)
        watch.task = self._begin(self._follow(watch))

    async def _refuse(self, reason: str) -> None:
        header = self._handlers.identity.header(await self._revision())
        response = pb.WatchResponse(header=header, watch_id=NO_WATCH, created=True, canceled=True)
        response.cancel_reason = reason
        await self._tell(response)

    async def _revision(self) -> int:
        try:
            return await self._handlers.revision_here()
        except LedgerError:
            return 0

    def _cancel(self, number: int) -> None:
        watch = self._watches.get(number)
        if watch is None or watch.task is None:
            return
        watch.task.cancel()
        self._forget(watch)
        self._begin(self._say_cancelled(number))

    async def _say_cancelled(self, number: int) -> None:
        header = self._handlers.identity.header(await self._revision())
        await self._tell(pb.WatchResponse(header=header, watch_id=number, canceled=True))

    def _forget(self, watch: _Watch) -> None:
        if self._watches.get(watch.number) is watch:
            del self._watches[watch.number]
            self._may_add(-1)
            self._moved.set()

    async def _follow(self, watch: _Watch) -> None:
        asked = watch.asked
        header = self._handlers.identity.header
        try:
            try:
                wanted = watch_of(asked)
                watched = await self._begun(watch, wanted)
            except LedgerError as refusal:
                known = error_of(refusal)
                await self._refuse(f"rpc error: code = {_name(known.code.name)} desc = {known.words}")
                return
            # A watch from now on has come as far as the store; others are still behind.
            revision = await self._revision() if asked.start_revision else watched.next_revision - 1
            await self._tell(
                pb.WatchResponse(header=header(revision), watch_id=watch.number, created=True)
            )
            watch.told_revision = watched.next_revision - 1
            while True:
                try:
                    events = await watched.batch()
                except LeaderNotReady:  # etcd's clients do not resume a watch that is cancelled
                    left_off = msgspec.structs.replace(wanted, first_revision=watched.next_revision)
                    await watched.close()
                    watched = await self._begun(watch, left_off)
                    continue
                for response in _responses(events, asked.fragment):
                    response.header.CopyFrom(header(events[-1].kv.mod_revision))
                    response.watch_id = watch.number
                    await self._tell(response)
                if not events and asked.progress_notify and self._progress is None:
                    revision = watched.next_revision - 1
                    await self._tell(pb.WatchResponse(header=header(revision), watch_id=watch.number))
                watch.told_revision = watched.next_revision - 1
                self._moved.set()
        except Compacted as error:
            compacted = error.compacted_revision
            cancelled = pb.WatchResponse(
                watch_id=watch.number, canceled=True, compact_revision=compacted
            )
            cancelled.header.CopyFrom(header(0))
            cancelled.header.ClearField("revision")  # in etcd it has none either
            await self._tell(cancelled)
        except LedgerError as error:
            cancelled = pb.WatchResponse(header=header(0), watch_id=watch.number, canceled=True)
            cancelled.cancel_reason = error_of(error).words
            await self._tell(cancelled)
        finally:
            self._forget(watch)
            if watch.watched is not None:
                await watch.watched.close()

    async def _begun(self, watch: _Watch, wanted: WatchRequest) -> Watched:
        """Waits while this member does not know the users, as a new leader does not until it has
        committed an entry; one watch asks for all, since thousands would keep its loop from that. Raises
        LedgerError."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + TIMEOUT_S
        async with AsyncExitStack() as turn:
            has_turn = False
            while True:
                watched = watch.watched = self._handlers.calls.watch(wanted)
                try:
                    # etcd creates a watch below the compacted revision too, and then cancels it.
                    with suppress(Compacted):
                        await watched.began()
                    return watched
                except LeaderNotReady:
                    await watched.close()
                    if loop.time() >= until_s:
                        raise
                if has_turn:
                    await asyncio.sleep(ASK_AGAIN_S)
                else:
                    await turn.enter_async_context(self._begins_again)
                    has_turn = True

    # ---------------------------------------------------------------- progress

    async def _tell_progress(self) -> None:
        """Send the progress once every watch has sent all changes up to its revision."""
        try:
            while self._asks_again:
                self._asks_again = False
                revision = await self._revision()
                if not revision:
                    continue
                await self._reach(revision)
                header = self._handlers.identity.header(revision)
                await self._tell(pb.WatchResponse(header=header, watch_id=NO_WATCH))
        finally:
            self._progress = None

    async def _reach(self, revision: int) -> None:
        while behind := [each for each in self._watches.values() if each.told_revision < revision]:
            self._moved.clear()
            for each in behind[:1]:  # it asks for all watches of the connection
                if each.watched is not None:
                    each.watched.ask_progress()
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_AGAIN_S):
                    await self._moved.wait()


class _Watch:
    def __init__(self, number: int, asked: pb.WatchCreateRequest) -> None:
        self.number = number
        self.asked = asked
        self.watched: Watched | None = None
        self.told_revision = 0
        """All changes up to this revision were sent."""
        self.task: asyncio.Task[None] | None = None


def _responses(events: list[Event], in_parts: bool) -> Iterator[pb.WatchResponse]:
    """Responses for a batch of events, without header and id."""
    if not events:
        return
    told = [event_of(event) for event in events]
    part: list[pb.Event] = []
    size_bytes = 0
    for event in told if in_parts else ():
        size_bytes += event.ByteSize()
        if part and size_bytes > FRAGMENT_BYTES:
            yield pb.WatchResponse(events=part, fragment=True)
            part, size_bytes = [], event.ByteSize()
        part.append(event)
    yield pb.WatchResponse(events=part if in_parts else told)


def _name(code: str) -> str:
    """Name of a gRPC code, as Go prints it: PermissionDenied."""
    return "".join(map(str.capitalize, code.split("_")))
