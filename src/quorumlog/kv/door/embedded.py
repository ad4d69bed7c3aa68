"""KeyValueStore: a member of the store in an application's own process."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import uvloop

from quorumlog.config import GroupConfig
from quorumlog.errors import ConfigError, the_extra
from quorumlog.kv.client.async_store import TIMEOUT_MS, AsyncKeyValueClient
from quorumlog.kv.client.blocking_store import KeyValueClient
from quorumlog.kv.client.codecs import Codec, CodecName, V, codec_of
from quorumlog.kv.door.kv_door import KeyValueDoor
from quorumlog.kv.old_spellings import takes_seconds
from quorumlog.kv.service.service import StoreOptions
from quorumlog.net.tls import Tls
from quorumlog.server import LedgerServer

if TYPE_CHECKING:
    from quorumlog.kv.gateway.gateway import EtcdGateway

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
        self._door = door_of(config, listen, engine, options)
        self._servers = servers or listen
        self._server = LedgerServer([config], doors=[self._door])
        self._loop = uvloop.new_event_loop()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Returns once it listens; raises ConfigError, StoreFailure or OSError."""
        assert self._thread is None, "it runs already"
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
        if self._thread is not None:
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


def door_of(
    config: GroupConfig,
    listen: str,
    engine: str,
    options: StoreOptions | None = None,
    tls: Tls | None = None,
) -> KeyValueDoor:
    """Raises ConfigError."""
    if engine == "memory":
        return KeyValueDoor(listen, group=config.group, options=options, tls=tls)
    if engine != "rocksdb":
        raise ConfigError(f"there is no engine {engine!r}; there are {', '.join(ENGINES)}")
    if config.store == "memory":
        raise ConfigError("the engine rocksdb needs a data directory: the log is kept in memory")
    try:
        from quorumlog.kv.store.rocks_engine import RocksEngine
    except ImportError as error:
        raise ConfigError(
            f"the engine rocksdb needs rocksdict ({error}), {the_extra('rocksdb')}"
        ) from None
    path = Path(config.data_dir) / FOLDER
    return KeyValueDoor(
        listen, group=config.group, options=options, engine=lambda: RocksEngine(path), tls=tls
    )


def gateway_of(config: GroupConfig, listen: str, servers: str, tls: Tls | None = None) -> EtcdGateway:
    """Raises ConfigError."""
    try:
        from quorumlog.kv.gateway.gateway import EtcdGateway
    except ImportError as error:
        raise ConfigError(f"the gateway needs h11 ({error}), {the_extra('etcd-gateway')}") from None
    return EtcdGateway(listen, servers, config.member_id, config.group, tls)
