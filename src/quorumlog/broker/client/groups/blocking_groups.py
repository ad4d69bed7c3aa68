"""Producer, Consumer and BrokerAdmin: the same for programs without asyncio. Any thread may call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Generic, Protocol, Self, TypeVar

from quorumlog.broker.client.broker_results import QueueInfo, SendReceipt
from quorumlog.broker.client.broker_verbs import DEFAULT_TIMEOUT_MS
from quorumlog.broker.client.groups.async_broker_admin import ALL_PERMISSIONS, AsyncBrokerAdmin, QueueLag
from quorumlog.broker.client.groups.async_consumer import (
    EARLIEST,
    MOST_AT_ONCE,
    AsyncConsumer,
    Start,
)
from quorumlog.broker.client.groups.async_producer import AsyncProducer, Selector
from quorumlog.broker.group_commands import MOST_RETRIES, GroupRow, QueueRow, TopicRow
from quorumlog.broker.message import Message, StoredMessage
from quorumlog.broker.wire import RoleResponse
from quorumlog.errors import BadRequest

_T = TypeVar("_T")


class _Closes(Protocol):
    async def close(self) -> None: ...


_Made = TypeVar("_Made", bound=_Closes)


class _LoopThread:
    """An event loop on a thread of its own, and what is made and used there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="quorumlog-broker-client", daemon=True
        )
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        if not self.is_running:
            work.close()
            raise BadRequest("it is closed: make another one")
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()  # an interrupt of who waits
            raise

    def make(self, make: Callable[[], _Made]) -> _Made:
        async def made() -> _Made:
            return make()

        try:
            return self.run(made())
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        if self.is_running:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class _Blocking(Generic[_Made]):
    """What is made on a thread of its own, and ends with it."""

    def __init__(self, make: Callable[[], _Made]) -> None:
        self._thread = _LoopThread()
        self._made = self._thread.make(make)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """As of the asynchronous one, whose thread ends with it."""
        if not self._thread.is_running:
            return
        try:
            self._thread.run(self._made.close())
        finally:
            self._thread.end()


class Producer(_Blocking[AsyncProducer]):
    """See `AsyncProducer`."""

    def __init__(
        self,
        servers: str,
        *,
        idempotent: bool = False,
        producer_id: str = "",
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        super().__init__(
            lambda: AsyncProducer(
                servers, idempotent=idempotent, producer_id=producer_id, timeout_ms=timeout_ms
            )
        )

    def send(
        self,
        message: Message,
        *,
        queue_id: int | None = None,
        order_key: str | None = None,
        selector: Selector | None = None,
        delay_level: int = 0,
    ) -> SendReceipt:
        """See `AsyncProducer.send`."""
        return self.send_batch(
            [message],
            queue_id=queue_id,
            order_key=order_key,
            selector=selector,
            delay_level=delay_level,
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue_id: int | None = None,
        order_key: str | None = None,
        selector: Selector | None = None,
        delay_level: int = 0,
    ) -> SendReceipt:
        """See `AsyncProducer.send_batch`."""
        sending = self._made.send_batch(
            messages,
            queue_id=queue_id,
            order_key=order_key,
            selector=selector,
            delay_level=delay_level,
        )
        return self._thread.run(sending)

    def last_sequence(self) -> int:
        """See `AsyncProducer.last_sequence`."""
        return self._thread.run(self._made.last_sequence())

    def queue_count(self, topic: str) -> int:
        """See `AsyncProducer.queue_count`."""
        return self._thread.run(self._made.queue_count(topic))


class Consumer(_Blocking[AsyncConsumer]):
    """See `AsyncConsumer`. It joins its group when it is entered."""

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
    ) -> None:
        super().__init__(
            lambda: AsyncConsumer(
                servers,
                group,
                topics,
                begin=begin,
                name=name,
                most_retries=most_retries,
                orderly=orderly,
                timeout_ms=timeout_ms,
            )
        )

    def __enter__(self) -> Self:
        try:
            self._thread.run(self._made.__aenter__())
        except BaseException:
            self._thread.end()
            raise
        return self

    @property
    def name(self) -> str:
        return self._made.name

    def poll(self, *, most_messages: int = 100, wait_ms: int = 1_000) -> list[StoredMessage]:
        """See `AsyncConsumer.poll`."""
        return self._thread.run(self._made.poll(most_messages=most_messages, wait_ms=wait_ms))

    def commit(self) -> list[QueueRow]:
        """See `AsyncConsumer.commit`."""
        return self._thread.run(self._made.commit())

    def retry(self, message: StoredMessage, *, delay_level: int = 0, cause: str = "") -> SendReceipt:
        """See `AsyncConsumer.retry`."""
        return self._thread.run(self._made.retry(message, delay_level=delay_level, cause=cause))

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
                    if not call.cancelled():
                        await asyncio.wait([asyncio.wrap_future(call)])
                    raise

            running = self._made.run(
                handle,
                threads=threads,
                max_processing_time_ms=max_processing_time_ms,
                until=until,
            )
            self._thread.run(running)


class BrokerAdmin(_Blocking[AsyncBrokerAdmin]):
    """See `AsyncBrokerAdmin`."""

    def __init__(self, servers: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
        super().__init__(lambda: AsyncBrokerAdmin(servers, timeout_ms=timeout_ms))

    def route(self) -> RoleResponse:
        """See `AsyncBrokerAdmin.route`."""
        return self._thread.run(self._made.route())

    def create_topic(
        self, topic: str, queues: int = 4, *, perm: int = ALL_PERMISSIONS, retention_ms: int = 0
    ) -> None:
        """See `AsyncBrokerAdmin.create_topic`."""
        making = self._made.create_topic(topic, queues, perm=perm, retention_ms=retention_ms)
        self._thread.run(making)

    def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        perm: int | None = None,
        retention_ms: int | None = None,
    ) -> None:
        """See `AsyncBrokerAdmin.update_topic`."""
        changing = self._made.update_topic(topic, queues=queues, perm=perm, retention_ms=retention_ms)
        self._thread.run(changing)

    def delete_topic(self, topic: str) -> None:
        """See `AsyncBrokerAdmin.delete_topic`."""
        self._thread.run(self._made.delete_topic(topic))

    def topics(self, topic: str = "", *, system: bool = False) -> list[TopicRow]:
        """See `AsyncBrokerAdmin.topics`."""
        return self._thread.run(self._made.topics(topic, system=system))

    def queues(self, topic: str = "") -> list[QueueInfo]:
        """See `AsyncBrokerAdmin.queues`."""
        return self._thread.run(self._made.queues(topic))

    def groups(self, group: str = "") -> list[GroupRow]:
        """See `AsyncBrokerAdmin.groups`."""
        return self._thread.run(self._made.groups(group))

    def create_group(self, group: str) -> None:
        """See `AsyncBrokerAdmin.create_group`."""
        self._thread.run(self._made.create_group(group))

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """See `AsyncBrokerAdmin.commit`."""
        self._thread.run(self._made.commit(group, offsets))

    def delete_group(self, group: str) -> None:
        """See `AsyncBrokerAdmin.delete_group`."""
        self._thread.run(self._made.delete_group(group))

    def dead_letters(
        self, group: str, offset: int = 0, *, most_messages: int = 100
    ) -> list[StoredMessage]:
        """See `AsyncBrokerAdmin.dead_letters`."""
        return self._thread.run(self._made.dead_letters(group, offset, most_messages=most_messages))

    def resend(self, group: str, offsets: Sequence[int]) -> int:
        """See `AsyncBrokerAdmin.resend`."""
        return self._thread.run(self._made.resend(group, offsets))

    def lag(self, group: str) -> list[QueueLag]:
        """See `AsyncBrokerAdmin.lag`."""
        return self._thread.run(self._made.lag(group))

    def reset(
        self, group: str, to: str | float | datetime, topics: Sequence[str] = ()
    ) -> dict[tuple[str, int], int]:
        """See `AsyncBrokerAdmin.reset`."""
        return self._thread.run(self._made.reset(group, to, topics))
