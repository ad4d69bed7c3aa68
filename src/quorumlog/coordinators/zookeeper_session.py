"""ZooKeeperSession: one session of ZooKeeper on an event loop, through kazoo, whose threads stay here.

kazoo replaces a session that has ended by another one, does not say which timeout was granted, and
notices no silent server while it sends requests to it (`findings/`). What that takes here are two of its
private methods: its version is pinned.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import AuthFailedError, KazooException, NoNodeError
from kazoo.handlers.threading import SequentialThreadingHandler

from quorumlog.broker.errors import CoordinatorUnreachable

log = logging.getLogger("quorumlog.zookeeper")
log.setLevel(
    logging.ERROR
)  # each attempt to connect is a line, and what is wrong is a broker's `problem`

TIMEOUT_S = 1.0
"""Of a request and of a connection: another server is asked next time."""
RETRY = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5}

Call = Callable[[KazooClient], Any]
"""Sends a request; its result comes later."""


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Any:
        return super().create_connection(*args, timeout=min(timeout, TIMEOUT_S), **kwargs)


class ZooKeeperSession:
    def __init__(self, servers: str, timeout_ms: int, *, pings: bool) -> None:
        """`pings`: False: it ends where no request was answered for its time."""
        self._loop = asyncio.get_running_loop()
        self._client = KazooClient(
            servers,
            timeout=timeout_ms / 1000,
            handler=_Handler(),
            connection_retry=RETRY,
            logger=log,
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

    async def do(self, *calls: Call) -> list[Any]:
        """Sends them one behind the other; their results, None of a node that is not there. Raises
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

    async def opened(self) -> None:
        """Raises CoordinatorUnreachable."""
        await self.do()

    async def end(self) -> None:
        """What it holds goes with it, if a server hears of it."""
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

        def answered(_: object) -> None:
            result = kept.value if kept.successful() else kept.exception
            self._tell(lambda: self._set(future, None if isinstance(result, NoNodeError) else result))

        kept.rawlink(answered)
        return future

    @staticmethod
    def _set(future: asyncio.Future[Any], result: Any) -> None:
        if not future.done():
            future.set_result(result)

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
