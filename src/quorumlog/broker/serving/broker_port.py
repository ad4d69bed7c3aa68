"""BrokerPort: where clients reach a broker, classic or on a replicated log; and what every broker has
beside it: a thread that reads, pulls that wait, and ticks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from quorumlog.broker.serving.broker_service import TICK_MS, BrokerService, Reads
from quorumlog.broker.serving.broker_session import BrokerSession
from quorumlog.broker.serving.waiting_pulls import WaitingPulls
from quorumlog.broker.wire.broker_framing import GROUP, broker_request_decoder
from quorumlog.broker.wire.broker_messages import EarlierHello, EarlierHelloResponse
from quorumlog.config import parse_address
from quorumlog.errors import ProtocolViolation
from quorumlog.net.connection import Connection
from quorumlog.net.frame import Frame
from quorumlog.net.hello import BROKER, Hello, HelloResponse, refusal_of_other
from quorumlog.net.listener import Listener
from quorumlog.net.tls import Tls
from quorumlog.server.disk_thread import DiskThread

MOST_READS = 4


class ReadTurns:
    """Few reads at a time, for all clients: what was read is in memory until the loop has sent it."""

    def __init__(self, thread: Reads) -> None:
        self._thread = thread
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._under_way = 0

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._waiting.append((work, done))
        self._begin()

    def _begin(self) -> None:
        while self._waiting and self._under_way < MOST_READS:
            work, done = self._waiting.popleft()
            self._under_way += 1
            self._thread.submit(work, partial(self._done, done))

    def _done(self, done: Callable[[Any], None], outcome: Any) -> None:
        self._under_way -= 1
        self._begin()
        done(outcome)


class BrokerPort:
    """Of the loop that runs."""

    def __init__(
        self,
        service: BrokerService,
        listen: str,
        tick: Callable[[], None],
        ports: Mapping[str, str],
        tls: Tls | None = None,
    ) -> None:
        """`tls`: None: it is plain. `tick`: called every `TICK_MS`. `ports`: see `refusal_of_other`."""
        self._service = service
        self._listen = parse_address(listen)
        self._tick_service = tick
        self._ports = ports
        self._loop = asyncio.get_running_loop()
        self._listener = Listener(
            "the broker",
            self._connect,
            decoder=broker_request_decoder,
            option="the broker's address",
            tls=tls,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._thread = DiskThread("broker-reads", self._loop)
        self.reads = ReadTurns(self._thread)
        self.waiting = WaitingPulls(self._loop)

    async def open(self) -> None:
        """Raises ConfigError, after which nothing is left of it."""
        try:
            await self._listener.open(*self._listen)
        except BaseException:
            self.ended()
            raise

    @property
    def address(self) -> str:
        return self._listener.address

    @property
    def speaks(self) -> str:
        """As `Listener.speaks`."""
        return self._listener.speaks

    def close(self) -> None:
        """Whoever is connected stays."""
        self._listener.close()
        if self._timer is not None:
            self._timer.cancel()

    async def close_connections(self) -> None:
        await asyncio.sleep(0)  # what was answered last leaves
        self._listener.close_connections()

    def abort_connections(self) -> None:
        self._listener.abort_connections()

    def ended(self) -> None:
        """Nothing more is read."""
        self._thread.close()

    def tick(self) -> None:
        """Now, and from now on."""
        self._timer = self._loop.call_later(TICK_MS / 1000, self.tick)
        self._tick_service()

    def _connect(self, connection: Connection) -> None:
        connection.on_frame = self._greet

    def _greet(self, connection: Connection, frame: Frame) -> None:
        hello = frame.message
        if isinstance(hello, EarlierHello):
            connection.send(GROUP, EarlierHelloResponse(request_id=hello.request_id))
            connection.close()
            return
        if not isinstance(hello, Hello):
            raise ProtocolViolation(f"a connection begins with {type(hello).__name__} instead of Hello")
        refusal = refusal_of_other(hello, BROKER, self._ports)
        if refusal is None:
            connection.session = BrokerSession(self._service, connection)
            welcome = HelloResponse(request_id=hello.request_id, product=BROKER)
            connection.send(GROUP, welcome)
        else:
            connection.send(frame.group, refusal)
            connection.close()
