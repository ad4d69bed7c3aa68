"""The store beside a log: its port on a member, and members that an application embeds."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self, cast, overload

import uvloop

from quorumlog.config import GroupConfig, parse_address
from quorumlog.errors import (
    ConfigError,
    ConnectionFull,
    Forbidden,
    LeaderNotReady,
    LedgerError,
    ProtocolViolation,
    the_extra,
)
from quorumlog.kv.client.async_store import TIMEOUT_MS, AsyncKeyValueClient
from quorumlog.kv.client.blocking_store import KeyValueClient
from quorumlog.kv.client.values import Codec, CodecName, V, codec_of
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.needs import ended_lease, key_of, needs_of
from quorumlog.kv.old_spellings import takes_seconds
from quorumlog.kv.requests import (
    GROUP,
    AnswerResponse,
    CancelRequest,
    EventsResponse,
    LoginRequest,
    QuestionRequest,
    Request,
    Response,
    WatchRequest,
    code_of,
    done,
    operation_of,
    request_decoder,
    size_bytes_of,
    words_to_old_client,
)
from quorumlog.kv.service import (
    TICK_MS,
    KeyValueService,
    ServiceSession,
    StoreOptions,
    answer,
    refuse,
)
from quorumlog.kv.store.engine import Engine, MemoryEngine, RocksEngine
from quorumlog.kv.store.keyspace import Feed
from quorumlog.kv.store.machine import MACHINE_NAME, KeyValueMachine, KeyValueMachines
from quorumlog.log_state.users import Kind, Right
from quorumlog.measures import Requests
from quorumlog.net.access import Caller, Need
from quorumlog.net.connection import Connection, call_soon
from quorumlog.net.errors import ErrorResponse, error_response
from quorumlog.net.frame import Frame
from quorumlog.net.hello import STORE, WELCOME, ChallengeResponse, Hello, HelloResponse, refusal_of_other
from quorumlog.net.listener import Listener
from quorumlog.net.system import boot_ms
from quorumlog.net.tls import Tls
from quorumlog.node import NodeHandle
from quorumlog.server import Endpoint, LedgerServer

# ---------------------------------------------------------------- KeyValueEndpoint
# The store's port on a member, and the state machine behind it.

log = logging.getLogger("quorumlog.kv")

REQUEST_BYTES = 1024
"""Size of a request without its command or query, at most."""
MOST_ASKED_BYTES = 32 << 20
"""Of one client that sends without waiting for answers."""
RETRY_FULL_MS = 100


class _PendingRequest(NamedTuple):
    size_bytes: int
    generation: int
    """Of rights."""
    question: QuestionRequest | None
    """The query to execute for it."""
    operation: type
    began_s: float


class StoreConnection(Protocol):
    """The part of a client's `Connection` that its session needs."""

    user: str

    @property
    def peer_name(self) -> str: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def unsent_bytes(self) -> int: ...
    def send(self, group: str, message: Response | HelloResponse, /) -> None: ...
    def when_room(self, act: Callable[[], None], /) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def violate(self, violation: ProtocolViolation, /) -> None: ...


class _LocalSession(ServiceSession, Protocol):
    """Of a client in this process."""

    def frame(self, frame: Frame) -> None:
        """Takes a request. Raises ProtocolViolation."""

    def lost(self) -> None:
        """Its client is gone."""


class _Client:
    """One client: the session of its connection, and a `Session` of the service."""

    def __init__(
        self, endpoint: KeyValueEndpoint, connection: StoreConnection, *, is_greeted: bool = False
    ) -> None:
        """`is_greeted`: it is in this process, and says no Hello."""
        self._endpoint = endpoint
        self._connection = connection
        self._is_greeted = is_greeted
        self._pending: dict[int, _PendingRequest] = {}
        """Requests that are not answered, by their ids."""
        self._pending_bytes = 0
        self._waits = False
        self._access = endpoint.access
        self._caller = Caller(endpoint.access, connection)

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
            if number in self._pending:
                raise ProtocolViolation(f"two requests with the id {number} wait for answers")
            size_bytes = REQUEST_BYTES + size_bytes_of(request)
            if self._pending_bytes + size_bytes > MOST_ASKED_BYTES:
                full = f"{len(self._pending)} requests of this connection wait: ask less at once"
                refuse(self, number, ConnectionFull(full, retry_after_ms=RETRY_FULL_MS))
                return
            question = request if isinstance(request, QuestionRequest) else None
            self._pending[number] = _PendingRequest(
                size_bytes,
                self._access.generation,
                question,
                operation_of(request),
                time.monotonic(),
            )
            self._pending_bytes += size_bytes
        if isinstance(request, LoginRequest):
            self._log_in(request)
            return
        caller = self._caller
        if (
            caller.open_in == self._access.generation
            or (caller.is_user and self._passes(request))  # nothing of others is decoded
            or not caller.is_checked
        ):
            self._endpoint.service.request(self, request)
        else:
            self._checked(request)

    def _log_in(self, request: LoginRequest) -> None:
        try:
            self._access.log_in(self._connection, request.login_id, request.digest, request.verifier)
        except LedgerError as refusal:
            refuse(self, request.request_id, refusal)
        else:
            answer(self, request.request_id, done(0, True))

    def _passes(self, request: Request) -> bool:
        """As one before."""
        try:
            key = key_of(request)
        except InvalidRequest:
            return False
        return key is not None and self._caller.passes(key)

    def _checked(self, request: Request) -> None:
        """Its rights first."""
        number, service = request.request_id, self._endpoint.service
        refusal = self.refusal_of(request)
        lease = None if refusal is not None else ended_lease(request)
        if isinstance(request, CancelRequest):
            service.request(self, request)
        elif refusal is not None:
            refuse(self, number, refusal)
        elif lease is None:
            service.request(self, request)
        else:
            service.ask_lease_keys(self, lease, partial(self._lease_keys, request))

    def _lease_keys(self, request: Request, keys: list[bytes] | LedgerError) -> None:
        refusal = keys if isinstance(keys, LedgerError) else self._refusal_of(Right.WRITE, keys)
        if refusal is not None:
            refuse(self, request.request_id, refusal)
        else:
            self._endpoint.service.request(self, request)

    def refusal_to_read(self, keys: list[bytes]) -> LedgerError | None:
        return self._refusal_of(Right.READ, keys)

    def _refusal_of(self, right: Right, keys: list[bytes]) -> LedgerError | None:
        """Of keys that it has not named, and is not told."""
        needs = tuple(Need(right, Kind.KEY, key) for key in keys)
        refusal = self._caller.refusal(needs, needs)
        if isinstance(refusal, Forbidden):
            return Forbidden(f"user {self._connection.user} may not {right} all keys of this lease")
        return refusal

    def refusal_of(self, request: Request) -> LedgerError | None:
        """As its rights are by now."""
        stranger = self._caller.stranger()
        if stranger is not None:
            return stranger  # before anything of it is decoded
        try:
            key, needs = key_of(request), needs_of(request)
        except InvalidRequest as refusal:
            return refusal
        return self._caller.refusal(key or needs, needs)

    def _greeted(self, group: str, hello: Hello) -> None:
        """Another one after the first asks whether anybody is there."""
        refusal = refusal_of_other(hello, STORE, self._endpoint.ports)
        if refusal is not None:
            self._answer_hello(group, refusal)
            return
        self._is_greeted = True
        self._endpoint.service.greet(self, hello.cluster_id, partial(self._answer_hello, group))

    def _answer_hello(self, group: str, response: HelloResponse) -> None:
        self._connection.send(group, response)
        if response.code != WELCOME:
            self._connection.close()

    def lost(self) -> None:
        self._endpoint.service.lost(self)

    def writable(self) -> None:
        """Watches that have fallen behind are looked at by the next tick."""

    def violate(self, violation: ProtocolViolation) -> None:
        self._connection.violate(violation)

    # ---------------------------------------------------------------- Session

    def send(self, message: Response) -> None:
        if isinstance(message, EventsResponse):
            self._connection.send(GROUP, message)
        else:
            self._answer(message)
        if self._connection.is_full and not self._waits:
            # The machine answers no more of its questions, and nothing else says that it may again.
            self._waits = True
            self._connection.when_room(self._has_room)

    def _answer(self, message: AnswerResponse | ErrorResponse) -> None:
        pending = self._pending.pop(message.request_id, None)
        if pending is not None:
            self._pending_bytes -= pending.size_bytes
            if pending.question is not None and pending.generation != self._access.generation:
                refusal = self.refusal_of(pending.question)
                if refusal is not None:
                    message = error_response(message.request_id, refusal)
            code = message.code if isinstance(message, ErrorResponse) else code_of(message.answer)
            self._endpoint.requests.answered(pending.operation, code, time.monotonic() - pending.began_s)
        self._connection.send(GROUP, message)

    def _has_room(self) -> None:
        self._waits = False
        self._endpoint.service.go_on()

    @property
    def is_full(self) -> bool:
        return self._connection.is_full

    def abort(self) -> None:
        self._connection.abort()

    @property
    def unsent_bytes(self) -> int:
        return self._connection.unsent_bytes


class KeyValueEndpoint(Endpoint):
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
        self.requests = Requests()
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
    def is_open(self) -> bool:
        return self._service is not None

    @property
    def service(self) -> KeyValueService:
        assert self._service is not None, "the endpoint was not opened"
        return self._service

    @property
    def leads(self) -> bool:
        """True if its member leads: requests for the leader are answered here."""
        return self._service is not None and self._service.leads

    def session_of(self, connection: StoreConnection) -> _LocalSession:
        """Of a client in this process, with the rights of `connection.user`. Raises LeaderNotReady."""
        if self._service is None:
            raise LeaderNotReady("the store is not open yet")
        return _Client(self, connection, is_greeted=True)

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._listener.address

    async def open(self, member: NodeHandle) -> None:
        """Raises ConfigError where it cannot listen."""
        loop = asyncio.get_running_loop()
        self._service = KeyValueService(member, self._feed, self._options, boot_ms)
        self._feed.wake = partial(call_soon, loop, threading.get_ident(), self._service.drain)
        self._listener.access = self.access
        self.access.moved.append(self._rights_moved)
        host, port = self._listen
        await self._listener.open(host, port)
        member.ports[STORE] = self.address
        self.ports = member.ports
        log.info(
            "the key-value store listens on %s%s",
            self.address,
            self._listener.speaks,
            extra={"event": "listens"},
        )
        self._tick()

    def configure(self, options: StoreOptions) -> list[str]:
        """Apply options. Returns `option old -> new` for each changed one."""
        old, self._options = asdict(self._options), options
        if self._service is not None:
            self._service.configure(options)
        return [
            f"{name} {old[name]} -> {new}" for name, new in asdict(options).items() if new != old[name]
        ]

    def _rights_moved(self) -> None:
        self.service.watches.end_refused(
            lambda client, request: cast(_Client, client).refusal_of(request)
        )

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


# ---------------------------------------------------------------- KeyValueStore
# A member of the store in an application's own process.

START_TIMEOUT_MS = 60.0
STOP_TIMEOUT_MS = 60.0


class KeyValueStore:
    """One member, with the log below it, on a thread of its own:

        with KeyValueStore(config, listen="10.0.0.1:20921", servers=all_stores) as store:
            kv = store.client()

    `servers`: the stores of all members, for its clients; this one's own if not given. `engine`:
    "memory" or "rocksdb", whose files lie in the member's directory.
    """

    def __init__(
        self,
        config: GroupConfig,
        *,
        listen: str,
        servers: str | None = None,
        engine: str = "memory",
        options: StoreOptions | None = None,
    ) -> None:
        """Raises ConfigError."""
        self._endpoint = endpoint_of(config, listen, engine, options)
        self._servers = servers or listen
        self._server = LedgerServer([config], endpoints=[self._endpoint])
        self._loop: asyncio.AbstractEventLoop
        """That of the present start, or the last."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Returns once it listens; raises ConfigError, StoreFailure or OSError. May be repeated once it
        has failed."""
        if self._thread is not None:
            raise ConfigError("this store runs already: start() once, or use it in `with`")
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="quorumlog-kv", daemon=True)
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(self._server.start(), self._loop)
        try:
            starting.result(START_TIMEOUT_MS)
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Hands leadership over first; may be repeated. Raises TimeoutError after a minute."""
        # While the interpreter ends its thread no longer runs: the member ends as by a kill.
        if self._thread is not None and not sys.is_finalizing():
            stopping = asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop)
            stopping.result(STOP_TIMEOUT_MS)
            self._end()

    def _end(self) -> None:
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @overload
    def client(
        self, *, codec: Literal["bytes"] = "bytes", timeout_ms: float = TIMEOUT_MS
    ) -> KeyValueClient[bytes]: ...

    @overload
    def client(
        self, *, codec: Literal["text"], timeout_ms: float = TIMEOUT_MS
    ) -> KeyValueClient[str]: ...

    @overload
    def client(
        self, *, codec: Literal["json", "msgspec"], timeout_ms: float = TIMEOUT_MS
    ) -> KeyValueClient[Any]: ...

    @overload
    def client(self, *, codec: Codec[V], timeout_ms: float = TIMEOUT_MS) -> KeyValueClient[V]: ...

    @takes_seconds
    def client(
        self, *, codec: CodecName | Codec[Any] = "bytes", timeout_ms: float = TIMEOUT_MS
    ) -> KeyValueClient[Any]:
        """A blocking client of all members' stores; see `quorumlog.kv.connect`. Raises ConfigError."""
        return KeyValueClient(self._servers, codec=codec_of(codec), timeout_ms=timeout_ms)

    @overload
    def async_client(
        self, *, codec: Literal["bytes"] = "bytes", timeout_ms: float = TIMEOUT_MS
    ) -> AsyncKeyValueClient[bytes]: ...

    @overload
    def async_client(
        self, *, codec: Literal["text"], timeout_ms: float = TIMEOUT_MS
    ) -> AsyncKeyValueClient[str]: ...

    @overload
    def async_client(
        self, *, codec: Literal["json", "msgspec"], timeout_ms: float = TIMEOUT_MS
    ) -> AsyncKeyValueClient[Any]: ...

    @overload
    def async_client(
        self, *, codec: Codec[V], timeout_ms: float = TIMEOUT_MS
    ) -> AsyncKeyValueClient[V]: ...

    @takes_seconds
    def async_client(
        self, *, codec: CodecName | Codec[Any] = "bytes", timeout_ms: float = TIMEOUT_MS
    ) -> AsyncKeyValueClient[Any]:
        """The same for asyncio."""
        return AsyncKeyValueClient(self._servers, codec=codec_of(codec), timeout_ms=timeout_ms)


ENGINES = ("memory", "rocksdb")
FOLDER = "kv-rocksdb"


def endpoint_of(
    config: GroupConfig,
    listen: str,
    engine: str,
    options: StoreOptions | None = None,
    tls: Tls | None = None,
) -> KeyValueEndpoint:
    """Raises ConfigError."""
    if engine == "memory":
        return KeyValueEndpoint(listen, group=config.group, options=options, tls=tls)
    if engine != "rocksdb":
        raise ConfigError(f"there is no engine {engine!r}; there are {', '.join(ENGINES)}")
    if config.store == "memory":
        raise ConfigError("the engine rocksdb needs a data directory: the log is kept in memory")
    try:
        import rocksdict  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"the engine rocksdb needs rocksdict ({error}), {the_extra('rocksdb')}"
        ) from None
    path = Path(config.data_dir) / FOLDER
    return KeyValueEndpoint(
        listen, group=config.group, options=options, engine=lambda: RocksEngine(path), tls=tls
    )
