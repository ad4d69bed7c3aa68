"""The record and its holder as two nodes of ZooKeeper.

    /quorumlog/failover/GROUP/record    JSON
    /quorumlog/failover/GROUP/holder    ephemeral, of the session of the master

A lease is a session of its own; a revision is the record's version. The `multi` that makes the holder
sets the record, too: where the revision is the same, no other holder has come.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
)
from kazoo.handlers.threading import SequentialThreadingHandler

from quorumlog.broker.errors import CoordinatorUnreachable
from quorumlog.broker.failover import NO_HOLDER, CoordinatorSnapshot, GrantedLease

# ----------------------------------------------------------------
# ZooKeeperSession: one session on an event loop, through kazoo, whose threads stay here.
#
# kazoo replaces a session that has ended by another one, does not say which timeout was granted, and
# notices no silent server while it sends requests to it (`findings/`). What that takes here are two of
# its private methods: its version is pinned.

log = logging.getLogger("quorumlog.zookeeper")
log.setLevel(logging.ERROR)
"""Each attempt to connect is a line, and what is wrong is a broker's `problem`."""

TIMEOUT_S = 1.0
"""Of a request and of a connection: another server is asked next time."""
RETRY = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5}

ZooKeeperCall = Callable[[KazooClient], Any]
"""Sends a request; its result comes later."""


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Any:
        return super().create_connection(*args, timeout=min(timeout, TIMEOUT_S), **kwargs)


class ZooKeeperSession:
    def __init__(self, servers: str, timeout_ms: int, *, pings: bool) -> None:
        """`pings`: False: it ends where no request was answered for its time."""
        self._loop = asyncio.get_running_loop()
        self._client = KazooClient(
            servers, timeout=timeout_ms / 1000, handler=_Handler(), connection_retry=RETRY, logger=log
        )
        connection = self._client._connection
        self._connect_kazoo = connection._connect
        connection._connect = self._connect
        if not pings:
            connection._send_ping = lambda timeout: None
        self._is_connected = asyncio.Event()
        self.id = 0
        self.ttl_ms = 0
        """As granted."""
        self.is_over = False
        self._client.add_listener(self._changed)
        self._client.start_async()

    async def do(self, *calls: ZooKeeperCall) -> list[Any]:
        """Sends them one after the other; their results, None of a node that is not there. Raises
        CoordinatorUnreachable: they may have been carried out or not."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._is_connected.wait()
                if self.is_over:
                    raise CoordinatorUnreachable("the session in ZooKeeper has ended")
                sent = [self._result(call(self._client)) for call in calls]
                results = [await each for each in sent]
        except (TimeoutError, asyncio.CancelledError) as late:
            self._drop()
            if isinstance(late, asyncio.CancelledError):
                raise
            raise CoordinatorUnreachable("ZooKeeper does not answer") from None
        for result in results:
            if isinstance(result, Exception):
                raise CoordinatorUnreachable(f"ZooKeeper: {result!r}")
        return results

    async def end(self) -> None:
        """Its ephemeral nodes end with it, if a server receives the end."""
        stops = self._loop.run_in_executor(None, self._client.stop)
        done, _ = await asyncio.wait([stops], timeout=TIMEOUT_S)
        if not done:
            self._drop()
        with suppress(KazooException):
            await stops
            self._client.close()
        self.is_over = True

    def _result(self, kept: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()

        def on_result(_: object) -> None:
            result = kept.value if kept.successful() else kept.exception
            self._tell(partial(answer, None if isinstance(result, NoNodeError) else result))

        def answer(result: Any) -> None:
            if not future.done():
                future.set_result(result)

        kept.rawlink(on_result)
        return future

    def _drop(self) -> None:
        """The connection, not the session: kazoo looks for another server."""
        with suppress(OSError, AttributeError):  # there is none
            self._client._connection._socket.shutdown(socket.SHUT_RDWR)

    # ---------------------------------------------------------------- in kazoo's threads

    def _tell(self, act: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(act)

    def _connect(self, host: str, address: str, port: int) -> Any:
        client = self._client
        if self.id and not client._session_id:
            raise AuthFailedError("the session has ended")  # ends kazoo's attempts
        read_ms, connect_ms = self._connect_kazoo(host, address, port)
        self.id, self.ttl_ms = client._session_id, round(connect_ms * len(client.hosts))
        self._tell(self._is_connected.set)
        return read_ms, connect_ms

    def _changed(self, state: str) -> None:
        if state == KazooState.LOST:
            self.is_over = True
            self._tell(self._is_connected.set)  # nobody waits for it any more
        elif state == KazooState.SUSPENDED:
            self._tell(self._is_connected.clear)


# ---------------------------------------------------------------- ZooKeeperCoordinator

READER_TIMEOUT_MS = 10_000
PREFIX = "/quorumlog/failover"
MOST_READS = 5
ANY_VERSION = -1


class ZooKeeperCoordinator:
    relays_renewals = True
    """The leader ends sessions. Its followers report renewed ones when it pings them, twice in a
    tickTime."""

    def __init__(self, servers: str, group: str) -> None:
        self._servers = servers
        self._group = f"{PREFIX}/{group}"
        self._record, self._holder = f"{self._group}/record", f"{self._group}/holder"
        self._leases: dict[int, ZooKeeperSession] = {}
        self._reader: ZooKeeperSession | None = None
        self._ending: set[asyncio.Task[None]] = set()

    # ---------------------------------------------------------------- as Coordinator

    async def read(self) -> CoordinatorSnapshot:
        for _ in range(MOST_READS):
            _, found, holder, then = await self._reading().do(
                lambda zk: zk.sync_async(self._group),
                lambda zk: zk.get_async(self._record),
                lambda zk: zk.exists_async(self._holder),
                lambda zk: zk.exists_async(self._record),
            )
            owner = NO_HOLDER if holder is None else holder.ephemeralOwner
            if found is None and then is None:
                return CoordinatorSnapshot(0, None, owner)
            if found is not None and then is not None and found[1].mzxid == then.mzxid:
                # It was the same before and after: all of this was so when the holder was read.
                return CoordinatorSnapshot(then.version + 1, found[0], owner)
        raise CoordinatorUnreachable("the record in ZooKeeper changes all the time")

    async def grant(self, ttl_ms: int) -> GrantedLease:
        for lease in [each for each, held in self._leases.items() if held.is_over]:
            self._end(self._leases.pop(lease))
        session = ZooKeeperSession(self._servers, ttl_ms, pings=False)
        try:
            await session.do()  # until it is connected
            if session.ttl_ms < ttl_ms:
                raise CoordinatorUnreachable(
                    f"ZooKeeper grants {session.ttl_ms} ms at most, and not the {ttl_ms} of the lease:"
                    " raise its maxSessionTimeout (20 times tickTime)"
                )
        except BaseException:
            self._end(session)
            raise
        self._leases[session.id] = session
        return GrantedLease(session.id, session.ttl_ms)

    async def put(self, revision: int, record: bytes, lease: int, *, takes: bool) -> int | None:
        session = self._leases.get(lease)
        if session is None or session.is_over:
            return None
        if takes and not revision:
            await session.do(lambda zk: zk.ensure_path_async(self._group))
        if not takes:
            _, holder = await session.do(
                lambda zk: zk.sync_async(self._group), lambda zk: zk.exists_async(self._holder)
            )
            if holder is None or holder.ephemeralOwner != lease:
                return None

        def write(multi: Any) -> None:
            if takes:
                multi.create(self._holder, ephemeral=True)
            else:
                multi.check(self._holder, ANY_VERSION)
            if revision:
                multi.set_data(self._record, record, version=revision - 1)
            else:
                multi.create(self._record, record)

        written = await self._multi(session, write)
        if written is None:
            return None
        return int(written[-1].version) + 1 if revision else 1

    async def renew(self, lease: int) -> int:
        session = self._leases.get(lease)
        if session is None or session.is_over:
            return 0
        # A write: it is answered by the leader of a majority, where a ping is answered by any server.
        try:
            await self._multi(session, lambda multi: multi.check("/", ANY_VERSION))
        except CoordinatorUnreachable:
            if not session.is_over:
                raise
        return 0 if session.is_over else session.ttl_ms

    async def revoke(self, lease: int) -> None:
        session = self._leases.pop(lease, None)
        if session is not None:
            await asyncio.shield(self._end(session))
        # Of a process that was killed, or of one of ours whose end no server has heard of.
        snapshot = await self.read()
        if snapshot.holder != lease:
            return

        def delete(multi: Any) -> None:
            multi.check(self._record, snapshot.revision - 1)
            multi.delete(self._holder)

        if await self._multi(self._reading(), delete) is None:
            raise CoordinatorUnreachable("the holder changes in ZooKeeper")

    async def watch(self, changed: Callable[[], None]) -> None:
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def on_change(_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(news.set)

        while True:
            await self._reading().do(
                lambda zk: zk.exists_async(self._record, on_change),
                lambda zk: zk.exists_async(self._holder, on_change),
            )
            changed()
            await news.wait()
            news.clear()

    async def close(self) -> None:
        for session in (self._reader, *self._leases.values()):
            if session is not None:
                self._end(session)
        self._leases.clear()
        await asyncio.gather(*self._ending)

    # ---------------------------------------------------------------- requests

    def _reading(self) -> ZooKeeperSession:
        if self._reader is not None and self._reader.is_over:
            self._end(self._reader)
            self._reader = None
        if self._reader is None:
            self._reader = ZooKeeperSession(self._servers, READER_TIMEOUT_MS, pings=True)
        return self._reader

    def _end(self, session: ZooKeeperSession) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(session.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    @staticmethod
    async def _multi(session: ZooKeeperSession, fill: Callable[[Any], None]) -> list[Any] | None:
        """All of it is done, or None: a version, or that a node is there, is not as it should be."""

        def commit(zk: Any) -> Any:
            multi = zk.transaction()
            fill(multi)
            return multi.commit_async()

        (results,) = await session.do(commit)
        # Each has an error where one has: the others were rolled back, or not come to.
        reasons = [each for each in results if isinstance(each, Exception)]
        if any(isinstance(each, BadVersionError | NodeExistsError | NoNodeError) for each in reasons):
            return None
        if reasons:
            raise CoordinatorUnreachable(f"ZooKeeper: {reasons[0]!r}")
        return list(results)
