"""AsyncConsumer: a member of a consumer group. The broker hands the queues of its topics out; each
message comes to the group at least once, and those of a queue in their order.

    async with AsyncConsumer(servers, "billing", {"orders": "*"}) as consumer:
        await consumer.run(handle)          # pushed; what `handle` raises on comes again, later
        messages = await consumer.poll()    # or pulled: `commit` says that they are done
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Self

from quorumlog.broker.client.async_link import AsyncLinks
from quorumlog.broker.client.broker_results import SendReceipt
from quorumlog.broker.client.broker_verbs import (
    DEFAULT_TIMEOUT_MS,
    Encoded,
    answer_of,
    milliseconds,
    pulled_of,
    queues_of,
)
from quorumlog.broker.client.groups.async_producer import AsyncProducer
from quorumlog.broker.client.groups.consumer_queue import ConsumerQueue, as_first_sent, wanted_tags
from quorumlog.broker.errors import (
    QueueOffsetOutOfRange,
    StaleGeneration,
    UnknownConsumerGroup,
    UnknownGroupMember,
    UnknownTopic,
)
from quorumlog.broker.messages.message import DELAY, SCHEDULE_TOPIC, StoredMessage
from quorumlog.broker.messages.record import (
    encode_again,
    encode_properties,
    properties_that_fit,
)
from quorumlog.broker.wire.broker_messages import (
    OffsetAtRequest,
    OffsetResponse,
    PullRequest,
    QueuesRequest,
)
from quorumlog.broker.wire.group_messages import (
    AssignmentResponse,
    CommitRequest,
    HeartbeatRequest,
    LeaveRequest,
)
from quorumlog.broker.wire.group_names import (
    FIRST_RETRY_LEVEL,
    LEVELS,
    MOST_RETRIES,
    ORIGIN_MESSAGE_ID,
    REAL_QUEUE,
    REAL_TOPIC,
    RETRY_TOPIC,
    dlq_topic,
    retry_topic,
)
from quorumlog.errors import BadRequest, LedgerError

log = logging.getLogger("quorumlog.broker")

HEARTBEAT_WAIT_MS = 3_000
PULL_WAIT_MS = 3_000
COMMIT_INTERVAL_S = 1.0
PAUSE_S = 0.1
EARLIEST, LATEST = "earliest", "latest"
Start = str | float | datetime
Handler = Callable[[StoredMessage], Awaitable[object] | object]


class AsyncConsumer:
    """Of one event loop.

    `begin`: where a queue is read from of which the group has committed nothing: "earliest", "latest",
    or a time. `name`: of this member, unique in its group."""

    def __init__(
        self,
        servers: str,
        group: str,
        topics: Mapping[str, str] | str,
        *,
        begin: Start = EARLIEST,
        name: str = "",
        most_retries: int = MOST_RETRIES,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        """`topics`: tags by topic, as in `{"orders": "food || drink"}`; or one topic, all of it. Raises
        ConfigError, BadRequest."""
        if isinstance(begin, str) and begin not in (EARLIEST, LATEST):
            raise BadRequest(f"begin is {EARLIEST!r}, {LATEST!r} or a time, not {begin!r}")
        self.group = group
        self.topics = {topics: "*"} if isinstance(topics, str) else dict(topics)
        for tags in self.topics.values():
            wanted_tags(tags)
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self.generation = -1
        self.queues: dict[tuple[str, int], ConsumerQueue] = {}
        self.retried = 0
        self._begin = begin
        self._most_retries = most_retries
        self._link = AsyncLinks(servers, timeout_ms, must_follow=True)
        self._producer = AsyncProducer(servers, timeout_ms=timeout_ms)
        self._tasks: list[asyncio.Task[None]] = []
        self._fetching: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._changed = asyncio.Condition()
        self._handed_out: list[tuple[ConsumerQueue, StoredMessage]] = []
        self._committing = asyncio.Lock()
        self._failure: LedgerError | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._join()
        except BaseException:
            await self.close()
            raise
        self._tasks = [asyncio.create_task(self._heartbeats()), asyncio.create_task(self._commits())]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Commits what is done, and leaves the group: the others get its queues at once."""
        tasks, self._tasks = self._tasks, []
        for task in (*tasks, *self._fetching.values()):
            task.cancel()
        await asyncio.gather(*tasks, *self._fetching.values(), return_exceptions=True)
        with suppress(LedgerError):
            await self._commit_done()
        with suppress(LedgerError):
            answer_of(await self._link.call(LeaveRequest(group=self.group, member=self.name)))
        await self._producer.close()
        await self._link.close()

    # ---------------------------------------------------------------- the group

    def _check_joined(self) -> None:
        if not self._tasks:
            raise BadRequest(
                "a consumer is in its group inside of its `with` block only (`async with` of an"
                " AsyncConsumer): call poll, run and commit there"
            )

    async def _join(self, wait_ms: int = HEARTBEAT_WAIT_MS) -> None:
        """Says that this member is there, and takes over what it is given."""
        request = HeartbeatRequest(
            group=self.group,
            member=self.name,
            topics=sorted(self.topics.items()),
            generation=self.generation,
            wait_ms=wait_ms,
        )
        answer = answer_of(await self._link.call(request, wait_ms=wait_ms))
        assert isinstance(answer, AssignmentResponse), answer
        if answer.generation in (-1, self.generation):
            return
        given = {(topic, queue_id): offset for topic, queue_id, offset in answer.queues}
        resets = set(answer.resets)
        for key in [key for key in self.queues if key not in given]:
            self._revoke(key)
        for key, committed in given.items():
            queue = self.queues.get(key)
            # After a reset, or where another member has read it meanwhile, the group stands elsewhere.
            if queue is None or key in resets or committed > queue.done_offset:
                self._revoke(key)
                await self._take_over(key, committed)
        self.generation = answer.generation
        if any(queue.committed_offset < 0 for queue in self.queues.values()):
            with suppress(LedgerError):  # `_commits` tries again
                await self._commit_done()
        async with self._changed:
            self._changed.notify_all()

    def _revoke(self, key: tuple[str, int]) -> None:
        queue = self.queues.pop(key, None)
        if queue is not None:
            queue.is_revoked = True
            queue.fetched.clear()
        task = self._fetching.pop(key, None)
        if task is not None:
            task.cancel()

    async def _take_over(self, key: tuple[str, int], committed: int) -> None:
        topic, queue_id = key
        offset = committed if committed >= 0 else await self._first_offset(topic, queue_id)
        tags = wanted_tags(self.topics.get(topic, "*"))
        # A begin that moves is committed: who takes the queue over next must not begin later.
        is_fixed = committed >= 0 or self._begin == EARLIEST
        queue = ConsumerQueue(topic, queue_id, tags, offset, offset, offset if is_fixed else -1)
        self.queues[key] = queue
        self._fetching[key] = asyncio.create_task(self._fetch(queue))

    async def _first_offset(self, topic: str, queue_id: int) -> int:
        rows = queues_of(await self._link.call(QueuesRequest(topic=topic)))
        row = next((each for each in rows if each.queue_id == queue_id), None)
        if row is None or self._begin == EARLIEST or topic == retry_topic(self.group):
            return 0 if row is None else row.min_offset
        if self._begin == LATEST:
            return row.max_offset
        assert not isinstance(self._begin, str)
        time_ms = milliseconds(self._begin, 0)
        request = OffsetAtRequest(topic=topic, queue_id=queue_id, time_ms=time_ms)
        answer = answer_of(await self._link.call(request))
        assert isinstance(answer, OffsetResponse), answer
        return max(answer.offset, row.min_offset)

    async def _heartbeats(self) -> None:
        while True:
            try:
                await self._join()
            except (UnknownTopic, UnknownConsumerGroup, BadRequest) as error:
                await self._fail(error)
                return
            except LedgerError as error:
                log.info("group %s: %s", self.group, error)
                await asyncio.sleep(PAUSE_S)

    async def _fail(self, error: LedgerError) -> None:
        self._failure = error
        async with self._changed:
            self._changed.notify_all()

    # ---------------------------------------------------------------- reading

    async def _fetch(self, queue: ConsumerQueue) -> None:
        while not queue.is_revoked:
            if not queue.has_room:
                async with self._changed:
                    await self._changed.wait_for(lambda: queue.has_room or queue.is_revoked)
                continue
            request = PullRequest(
                topic=queue.topic,
                queue_id=queue.queue_id,
                offset=queue.next_offset,
                wait_ms=PULL_WAIT_MS,
            )
            try:
                pulled = pulled_of(await self._link.call(request, wait_ms=PULL_WAIT_MS))
            except QueueOffsetOutOfRange as error:
                is_below = queue.next_offset < error.min_offset
                log.warning("group %s goes on elsewhere: %s", self.group, error)
                queue.came([], error.min_offset if is_below else error.max_offset)
                await asyncio.sleep(PAUSE_S)
                continue
            except LedgerError as error:
                log.info("queue %d of %s: %s", queue.queue_id, queue.topic, error)
                await asyncio.sleep(PAUSE_S)
                continue
            queue.came(pulled.messages, pulled.next_offset)
            async with self._changed:
                self._changed.notify_all()

    def _next(self) -> tuple[ConsumerQueue, StoredMessage] | None:
        """The oldest fetched message of some queue; the queues take turns."""
        for key in list(self.queues):
            queue = self.queues[key]
            if queue.fetched:
                self.queues[key] = self.queues.pop(key)
                return queue, queue.take()
        return None

    async def poll(self, *, most_messages: int = 100, wait_ms: int = 1_000) -> list[StoredMessage]:
        """At most `most_messages`, of several queues perhaps; none if nothing came in `wait_ms`. They
        are done once `commit` is called, or come again if it is not. Raises UnknownTopic,
        UnknownConsumerGroup, BadRequest if the broker does not take it as a member,
        and outside of `async with`."""
        self._check_joined()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000), self._changed:
                await self._changed.wait_for(
                    lambda: self._failure is not None or any(q.fetched for q in self.queues.values())
                )
        if self._failure is not None:
            raise self._failure
        messages: list[StoredMessage] = []
        while len(messages) < most_messages and (found := self._next()) is not None:
            self._handed_out.append(found)
            messages.append(as_first_sent(found[1]))
        return messages

    async def commit(self) -> None:
        """All that `poll` has given is done; returns once that is replicated. Raises StaleGeneration: a
        queue was given to somebody else, who reads what was not committed again."""
        self._check_joined()
        handed_out, self._handed_out = self._handed_out, []
        for queue, message in handed_out:
            queue.finish(message)
        lost = any(queue.is_revoked for queue, _ in handed_out)
        await self._commit_done()
        async with self._changed:
            self._changed.notify_all()
        if lost:
            raise StaleGeneration(
                "a queue was given to another member, or the group was reset: what was read of it comes"
                " again"
            )

    async def run(self, handler: Handler, *, until: Callable[[], bool] = lambda: False) -> None:
        """Each message to `handler`, one of a queue at a time; what it raises on comes again after a
        delay, and after 16 times lies in the group's %DLQ% topic. Ends once `until` says so, or when
        cancelled. Raises what `poll` does."""
        self._check_joined()
        busy: dict[tuple[str, int], asyncio.Task[None]] = {}
        try:
            while not until():
                if self._failure is not None:
                    raise self._failure
                for key, task in list(busy.items()):
                    if task.done():
                        del busy[key]
                        task.result()
                for queue in list(self.queues.values()):
                    if queue.fetched and queue.key not in busy:
                        busy[queue.key] = asyncio.create_task(self._work_off(queue, handler, until))
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_S), self._changed:
                        await self._changed.wait()
        finally:
            for task in busy.values():
                task.cancel()
            await asyncio.gather(*busy.values(), return_exceptions=True)

    async def _work_off(self, queue: ConsumerQueue, handler: Handler, until: Callable[[], bool]) -> None:
        while queue.fetched and not until():
            message = queue.take()
            try:
                outcome = handler(as_first_sent(message))
                if inspect.isawaitable(outcome):
                    await outcome
            except Exception:
                log.exception("message %s comes again", message.message_id)
                await self._retry_until_stored(message)
            queue.finish(message)
        async with self._changed:
            self._changed.notify_all()

    # ---------------------------------------------------------------- again, later

    async def _retry_until_stored(self, message: StoredMessage) -> None:
        while True:
            try:
                await self.retry(message)
                return
            except LedgerError as error:
                log.warning("message %s: %s", message.message_id, error)
                await asyncio.sleep(PAUSE_S)

    async def retry(self, message: StoredMessage, *, delay_level: int = 0) -> SendReceipt:
        """The group gets it again after a delay that grows with each time, or that of `delay_level` (1
        to 18); after 16 times it goes to the group's %DLQ% topic. So does at once, without what a retry
        adds, a message whose properties leave no room for that: an old log may hold some. Raises what a
        producer's `send` does."""
        if not 0 <= delay_level <= LEVELS:
            raise BadRequest(f"a delay level is 1 to {LEVELS}, or 0; not {delay_level}")
        properties = dict(message.properties)
        first_topic = properties.get(RETRY_TOPIC) or message.topic
        properties.setdefault(RETRY_TOPIC, first_topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.message_id)
        times = message.reconsume_times
        level = delay_level or min(FIRST_RETRY_LEVEL + times, LEVELS)
        again = {DELAY: str(level), REAL_TOPIC: retry_topic(self.group), REAL_QUEUE: "0"}
        topic, queue_id = SCHEDULE_TOPIC, level - 1
        if times >= self._most_retries:
            again, topic, queue_id = {}, dlq_topic(self.group), 0
        try:
            data = encode_properties(properties | again)
        except BadRequest as error:
            log.warning("message %s goes to %s: %s", message.message_id, dlq_topic(self.group), error)
            data, topic, queue_id = properties_that_fit(message.properties), dlq_topic(self.group), 0
        record = encode_again(message, topic, queue_id, data, times + 1)
        encoded = Encoded(record, [len(record)], queue_id, topic, True)
        receipt = await self._producer.send_encoded(encoded)
        self.retried += 1
        return receipt

    # ---------------------------------------------------------------- committing

    async def _commits(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            try:
                await self._commit_done()
            except (StaleGeneration, UnknownGroupMember):
                continue  # the next heartbeat brings another assignment
            except LedgerError as error:
                log.info("group %s: %s", self.group, error)

    async def _commit_done(self) -> None:
        async with self._committing:
            done = {q: q.done_offset for q in self.queues.values() if q.done_offset > q.committed_offset}
            if not done:
                return
            request = CommitRequest(
                group=self.group,
                member=self.name,
                generation=self.generation,
                offsets=[(*queue.key, offset) for queue, offset in done.items()],
            )
            answer_of(await self._link.call(request))
            for queue, offset in done.items():
                queue.committed_offset = offset
