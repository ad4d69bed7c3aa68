"""KeyValueDoor: the store's port on a member, and the state machine behind it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from quorumlog.config import parse_address
from quorumlog.errors import ConnectionFull, LedgerError, ProtocolViolation
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.requests.messages import (
    GROUP,
    CancelRequest,
    EventsResponse,
    Request,
    Response,
    WatchRequest,
    request_decoder,
    size_bytes_of,
    words_to_old_client,
)
from quorumlog.kv.service.needs import lease_of, needs_of
from quorumlog.kv.service.service import TICK_MS, KeyValueService, StoreOptions
from quorumlog.kv.service.sessions import refuse
from quorumlog.kv.store.changes import Feed
from quorumlog.kv.store.engine import Engine, MemoryEngine
from quorumlog.kv.store.machine import MACHINE_NAME, KeyValueMachine, KeyValueMachines
from quorumlog.log_state.users import Kind, Right
from quorumlog.net.access import Caller, Need
from quorumlog.net.connection import Connection
from quorumlog.net.frame import Frame
from quorumlog.net.hello import (
    STORE,
    WELCOME,
    ChallengeResponse,
    Hello,
    HelloResponse,
    refusal_of_other,
)
from quorumlog.net.listener import Listener
from quorumlog.net.tls import Tls
from quorumlog.node import DoorMember
from quorumlog.server import Door

log = logging.getLogger("quorumlog.kv")

REQUEST_BYTES = 1024
"""What a request takes beside its command or question, with room to spare."""
MOST_ASKED_BYTES = 32 << 20
"""Of one client that sends without waiting for answers."""
RETRY_FULL_MS = 100


def boot_ms() -> float:
    """Goes on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6


class _Client:
    """One client: the session of its connection, and a `Session` of the service."""

    def __init__(self, door: KeyValueDoor, connection: Connection) -> None:
        self._door = door
        self._connection = connection
        self._is_greeted = False
        self._asked: dict[int, int] = {}
        """How large the requests are that are not answered, by their ids."""
        self._asked_bytes = 0
        self._waits = False
        self._access = door.access
        self._caller = Caller(door.access, connection)

    def frame(self, frame: Frame) -> None:
        message = frame.message
        if isinstance(message, Hello):
            self._greeted(frame.group, message)
        elif not self._is_greeted or isinstance(message, ChallengeResponse):
            raise ProtocolViolation(f"{type(message).__name__} is no request of a store's client")
        else:
            self._requested(cast(Request, message))

    def _requested(self, request: Request) -> None:
        """Raises ProtocolViolation."""
        number = request.request_id
        if not isinstance(request, WatchRequest | CancelRequest):
            if number in self._asked:
                raise ProtocolViolation(f"two requests with the id {number} wait for answers")
            size_bytes = REQUEST_BYTES + size_bytes_of(request)
            if self._asked_bytes + size_bytes > MOST_ASKED_BYTES:
                full = f"{len(self._asked)} requests of this connection wait: ask less at once"
                refuse(self, number, ConnectionFull(full, retry_after_ms=RETRY_FULL_MS))
                return
            self._asked[number] = size_bytes
            self._asked_bytes += size_bytes
        if self._caller.open_in != self._access.generation and self._caller.is_checked:
            self._checked(request)
        else:
            self._door.service.request(self, request)

    def _checked(self, request: Request) -> None:
        """Its rights first."""
        number, service = request.request_id, self._door.service
        refusal = self.refusal_of(request)
        lease = None if refusal is not None else lease_of(request)
        if isinstance(request, CancelRequest):
            service.request(self, request)
        elif refusal is not None:
            refuse(self, number, refusal)
        elif lease is None:
            service.request(self, request)
        else:
            service.ask_lease_keys(self, lease[0], partial(self._lease_keys, request, lease[1]))

    def _lease_keys(self, request: Request, right: Right, keys: list[bytes] | LedgerError) -> None:
        refusal = keys if isinstance(keys, LedgerError) else None
        if not isinstance(keys, LedgerError):
            needs = tuple(Need(right, Kind.KEY, key) for key in keys)
            refusal = self._caller.refusal(needs, needs)
        if refusal is not None:
            refuse(self, request.request_id, refusal)
        else:
            self._door.service.request(self, request)

    def refusal_of(self, request: Request) -> LedgerError | None:
        """As its rights are by now."""
        try:
            needs = needs_of(request)
        except InvalidRequest as refusal:
            return refusal
        return self._caller.refusal(needs, needs)

    def _greeted(self, group: str, hello: Hello) -> None:
        """Another one behind the first asks whether anybody is there."""
        refusal = refusal_of_other(hello, STORE, self._door.ports)
        if refusal is not None:
            self._answer_hello(group, refusal)
            return
        self._is_greeted = True
        self._door.service.greet(self, hello.cluster_id, partial(self._answer_hello, group))

    def _answer_hello(self, group: str, response: HelloResponse) -> None:
        self._connection.send(group, response)
        if response.code != WELCOME:
            self._connection.close()

    def lost(self) -> None:
        self._door.service.lost(self)

    def writable(self) -> None:
        """Watches that have fallen behind are looked at by the next tick."""

    def violate(self, violation: ProtocolViolation) -> None:
        self._connection.violate(violation)

    # ---------------------------------------------------------------- Session

    def send(self, message: Response) -> None:
        if not isinstance(message, EventsResponse):
            self._asked_bytes -= self._asked.pop(message.request_id, 0)
        self._connection.send(GROUP, message)
        if self._connection.is_full and not self._waits:
            # The machine answers no more of its questions, and nothing else says that it may again.
            self._waits = True
            self._connection.when_room(self._has_room)

    def _has_room(self) -> None:
        self._waits = False
        self._door.service.go_on()

    @property
    def is_full(self) -> bool:
        return self._connection.is_full

    def abort(self) -> None:
        self._connection.abort()

    @property
    def unsent_bytes(self) -> int:
        return self._connection.unsent_bytes


class KeyValueDoor(Door):
    def __init__(
        self,
        listen: str,
        *,
        group: str | None = None,
        options: StoreOptions | None = None,
        engine: Callable[[], Engine] = MemoryEngine,
        tls: Tls | None = None,
    ) -> None:
        """`listen`: HOST:PORT; port 0: a free one. `tls`: None: it is plain. Raises ConfigError."""
        self.group = group
        self.machines = {MACHINE_NAME: KeyValueMachines(self._machine)}
        self._listen = parse_address(listen)
        self._options = options or StoreOptions()
        self._feed = Feed()
        self._engine = engine
        self._open_engine: Engine | None = None
        self._listener = Listener(
            "the key-value store",
            self._connect,
            decoder=request_decoder,
            last_words=words_to_old_client,
            option="the store's address",
            tls=tls,
            second="store_listen",
        )
        self.ports: Mapping[str, str] = {}
        """Where this process listens, by product."""
        self._timer: asyncio.TimerHandle | None = None
        self._service: KeyValueService | None = None

    def _machine(self) -> KeyValueMachine:
        if self._open_engine is not None:
            self._open_engine.close()  # of the machine before, which was built again
        self._open_engine = self._engine()
        engine = self._open_engine
        return KeyValueMachine(lambda: engine, self._feed)

    @property
    def service(self) -> KeyValueService:
        assert self._service is not None, "the door was not opened"
        return self._service

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._listener.address

    async def open(self, member: DoorMember) -> None:
        """Raises ConfigError where it cannot listen."""
        loop = asyncio.get_running_loop()
        self._service = KeyValueService(member, self._feed, self._options, boot_ms)
        self._feed.wake = partial(loop.call_soon_threadsafe, self._service.drain)
        self._listener.access = self.access
        self.access.moved.append(self._rights_moved)
        host, port = self._listen
        await self._listener.open(host, port)
        member.ports[STORE] = self.address
        self.ports = member.ports
        log.info("the key-value store listens on %s%s", self.address, self._listener.speaks)
        self._tick()

    def _rights_moved(self) -> None:
        self.service.watches.end_refused(lambda client, asked: cast(_Client, client).refusal_of(asked))

    def _connect(self, connection: Connection) -> None:
        connection.session = _Client(self, connection)

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_MS / 1000, self._tick)
        self.service.tick()

    def role_changed(self) -> None:
        if self._service is not None:
            self._service.role_changed()

    async def close(self) -> None:
        self._end()
        self._listener.close_connections()
        await asyncio.sleep(0)

    def abandon(self) -> None:
        self._end()
        self._listener.abort_connections()

    def ended(self) -> None:
        if self._open_engine is not None:
            self._open_engine.close()
            self._open_engine = None

    def _end(self) -> None:
        self._feed.wake = lambda: None
        if self._timer is not None:
            self._timer.cancel()
        self._listener.close()
        if self._rights_moved in self.access.moved:
            self.access.moved.remove(self._rights_moved)
