"""Clients of a broker for programs without asyncio. Any thread may call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from quorumlog.blocking import Blocking
from quorumlog.broker.client.async_broker_admin import AsyncBrokerAdmin
from quorumlog.broker.client.async_broker_client import AsyncBrokerClient
from quorumlog.broker.client.async_consumer import EARLIEST, MOST_AT_ONCE, AsyncConsumer, Start
from quorumlog.broker.client.async_producer import AsyncProducer
from quorumlog.broker.client.broker_calls import DEFAULT_TIMEOUT_MS
from quorumlog.broker.group_commands import MOST_RETRIES
from quorumlog.broker.message import StoredMessage
from quorumlog.errors import BadRequest
from quorumlog.net.loop_thread import ONE_SESSION, ClientShell
from quorumlog.net.tls import ClientTls

_BROKER = Blocking[AsyncBrokerClient]()
_PRODUCER = Blocking[AsyncProducer]()
_CONSUMER = Blocking[AsyncConsumer]()
_ADMIN = Blocking[AsyncBrokerAdmin]()

ONE_MEMBER = (
    "a consumer is a member of its group with the process that has forked: make another one in this one"
)


def _closed() -> BadRequest:
    return BadRequest("the client is closed: make another one")


class BrokerClient(ClientShell[AsyncBrokerClient]):
    """Raises what the broker refuses with, Unreachable, OutcomeUnknown.

    `server`: HOST:PORT; several with commas between are brokers that replicate each other, of which the
    master is asked, whoever that is by then. A send whose outcome is unknown is never repeated."""

    def __init__(
        self,
        server: str,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        tls: ClientTls | None = None,
        only_looks: bool = False,
    ) -> None:
        """Connects, so that a slip in the address is told at once. `only_looks`: at how a broker is, for
        a few seconds: also where it refuses connections."""
        super().__init__(
            lambda: AsyncBrokerClient(server, timeout_ms=timeout_ms, tls=tls, only_looks=only_looks),
            _closed,
            end=AsyncBrokerClient._end,
        )
        try:
            self._thread.run(self._it.__aenter__())
        except BaseException:
            self.close()
            raise

    @property
    def server(self) -> str:
        return self._it.server

    send = _BROKER.waits(AsyncBrokerClient.send)
    send_batch = _BROKER.waits(AsyncBrokerClient.send_batch)
    queue_count = _BROKER.waits(AsyncBrokerClient.queue_count)
    pull = _BROKER.waits(AsyncBrokerClient.pull)
    query = _BROKER.waits(AsyncBrokerClient.query)
    message = _BROKER.waits(AsyncBrokerClient.message)
    queues = _BROKER.waits(AsyncBrokerClient.queues)
    min_offset = _BROKER.waits(AsyncBrokerClient.min_offset)
    max_offset = _BROKER.waits(AsyncBrokerClient.max_offset)
    offset_at = _BROKER.waits(AsyncBrokerClient.offset_at)
    status = _BROKER.waits(AsyncBrokerClient.status)
    old_log = _BROKER.waits(AsyncBrokerClient.old_log)
    replica = _BROKER.waits(AsyncBrokerClient.replica)
    failover = _BROKER.waits(AsyncBrokerClient.failover)


class Producer(ClientShell[AsyncProducer]):
    """Raises what the broker refuses with, Unreachable, OutcomeUnknown.

    `idempotent`: every message is stored once, whatever fails. `producer_id`: the same across restarts
    of the program; whoever used it before is fenced (ProducerFenced)."""

    def __init__(
        self,
        servers: str,
        *,
        idempotent: bool = False,
        producer_id: str = "",
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        tls: ClientTls | None = None,
    ) -> None:
        """Raises ConfigError."""
        super().__init__(
            lambda: AsyncProducer(
                servers, idempotent=idempotent, producer_id=producer_id, timeout_ms=timeout_ms, tls=tls
            ),
            _closed,
            end=AsyncProducer._end,
            stays_with_parent=ONE_SESSION if producer_id else "",
        )

    @property
    def producer_id(self) -> str:
        return self._it.producer_id

    send = _PRODUCER.waits(AsyncProducer.send)
    send_batch = _PRODUCER.waits(AsyncProducer.send_batch)
    queue_count = _PRODUCER.waits(AsyncProducer.queue_count)
    last_sequence = _PRODUCER.waits(AsyncProducer.last_sequence)


class Consumer(ClientShell[AsyncConsumer]):
    """As `AsyncConsumer`; it joins its group when it is entered, and handlers are called on threads."""

    def __init__(
        self,
        servers: str,
        group: str,
        topics: Mapping[str, str] | str,
        *,
        begin: Start = EARLIEST,
        name: str = "",
        most_retries: int = MOST_RETRIES,
        orderly: bool = False,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        tls: ClientTls | None = None,
    ) -> None:
        """`topics`: tags by topic, as in `{"orders": "food || drink"}`; or one topic, all of it. Raises
        ConfigError, BadRequest."""
        super().__init__(
            lambda: AsyncConsumer(
                *(servers, group, topics),
                begin=begin,
                name=name,
                most_retries=most_retries,
                orderly=orderly,
                timeout_ms=timeout_ms,
                tls=tls,
            ),
            _closed,
            stays_with_parent=ONE_MEMBER,
        )

    def __enter__(self) -> Self:
        try:
            self._thread.run(self._it.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    @property
    def name(self) -> str:
        return self._it.name

    def poll(self, *, most_messages: int = 100, wait_ms: int = 1_000) -> list[StoredMessage]:
        """See `AsyncConsumer.poll`. What was found as an interrupt came is not committed, and comes
        again once this member has left."""
        return self._it._given(self._thread.run(self._it._found(most_messages, wait_ms)))

    commit = _CONSUMER.waits(AsyncConsumer.commit)
    retry = _CONSUMER.waits(AsyncConsumer.retry)

    def run(
        self,
        handler: Callable[[StoredMessage], object],
        *,
        threads: int = 0,
        max_processing_time_ms: int = 0,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """As `AsyncConsumer.run`; `handler` is called on other threads, several at a time where there
        are several queues, or as many as `threads` says. Nobody can end a call of it: one that takes
        longer than `max_processing_time_ms` keeps its thread until it returns."""
        with ThreadPoolExecutor(threads or MOST_AT_ONCE, "quorumlog-consumer") as executor:

            async def handle(message: StoredMessage) -> None:
                call = executor.submit(handler, message)
                try:
                    await asyncio.wrap_future(call)
                except asyncio.CancelledError:
                    # Whoever closes the client, which may be a handler, does not wait for handlers.
                    if not call.cancelled() and not self._thread.is_closed:
                        await asyncio.wait([asyncio.wrap_future(call)])
                    raise

            running = self._it.run(
                handle,
                threads=threads,
                max_processing_time_ms=max_processing_time_ms,
                until=until,
            )
            self._thread.run(running)


class BrokerAdmin(ClientShell[AsyncBrokerAdmin]):
    """Raises what the broker refuses with, Unreachable, RequestTimeout; and of what changes something
    OutcomeUnknown: look whether it is done. It is never sent again by itself."""

    def __init__(
        self, servers: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS, tls: ClientTls | None = None
    ) -> None:
        """Raises ConfigError."""
        super().__init__(lambda: AsyncBrokerAdmin(servers, timeout_ms=timeout_ms, tls=tls), _closed)

    route = _ADMIN.waits(AsyncBrokerAdmin.route)
    create_topic = _ADMIN.waits(AsyncBrokerAdmin.create_topic)
    update_topic = _ADMIN.waits(AsyncBrokerAdmin.update_topic)
    delete_topic = _ADMIN.waits(AsyncBrokerAdmin.delete_topic)
    topics = _ADMIN.waits(AsyncBrokerAdmin.topics)
    queues = _ADMIN.waits(AsyncBrokerAdmin.queues)
    groups = _ADMIN.waits(AsyncBrokerAdmin.groups)
    create_group = _ADMIN.waits(AsyncBrokerAdmin.create_group)
    commit = _ADMIN.waits(AsyncBrokerAdmin.commit)
    delete_group = _ADMIN.waits(AsyncBrokerAdmin.delete_group)
    dead_letters = _ADMIN.waits(AsyncBrokerAdmin.dead_letters)
    resend = _ADMIN.waits(AsyncBrokerAdmin.resend)
    lag = _ADMIN.waits(AsyncBrokerAdmin.lag)
    reset = _ADMIN.waits(AsyncBrokerAdmin.reset)


def connect(
    server: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS, tls: ClientTls | None = None
) -> BrokerClient:
    """A client of the broker at `host:port`. Raises Unreachable, ConfigError."""
    return BrokerClient(server, timeout_ms=timeout_ms, tls=tls)
