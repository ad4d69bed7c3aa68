"""Retries of failed messages: redelivered to the group later, or moved to its dead letters, from where
they can be sent to the group again. No I/O.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Self

from quorumlog.broker import wire
from quorumlog.broker.client.async_producer import AsyncProducer
from quorumlog.broker.client.broker_calls import (
    DEFAULT_TIMEOUT_MS,
    EARLIEST,
    LATEST,
    BrokerCalls,
    Encoded,
    SendReceipt,
    StartPoint,
    pulled_of,
)
from quorumlog.broker.errors import (
    QueueOffsetOutOfRange,
    StaleGeneration,
    UnknownConsumerGroup,
    UnknownGroupMember,
    UnknownTopic,
)
from quorumlog.broker.group_commands import (
    DLQ_ATTEMPT,
    DLQ_CAUSE,
    FIRST_RETRY_LEVEL,
    LEVELS,
    MOST_RETRIES,
    ORIGIN_MESSAGE_ID,
    REAL_QUEUE,
    REAL_TOPIC,
    RETRY_PREFIX,
    RETRY_TOPIC,
    QueueRow,
    dlq_topic,
    retry_topic,
)
from quorumlog.broker.message import (
    DELAY,
    SCHEDULE_TOPIC,
    StoredMessage,
    encode_again,
    encode_properties,
    properties_that_fit,
)
from quorumlog.errors import NO_RIGHT, BadRequest, ClusterChanged, LedgerError
from quorumlog.net.credentials import ClientUser
from quorumlog.net.tls import ClientTls

MOST_CAUSE_BYTES = 256


class SuspendQueue(Exception):
    """Raised by the handler of an orderly consumer: pauses this message's queue, then handles this
    message again; counts as no attempt."""

    def __init__(self, pause_ms: int = 1_000) -> None:
        super().__init__(f"the queue is suspended for {pause_ms} ms")
        self.pause_ms = pause_ms


class Again(NamedTuple):
    encoded: Encoded
    problem: str
    """In a sentence, why it goes to the dead letters before its time; empty: it does not."""


def again_of(
    message: StoredMessage, group: str, *, most_retries: int, delay_level: int = 0, cause: str = ""
) -> Again:
    """The message to send: redelivered after a delay that grows with each retry, or that of
    `delay_level` (1 to 18); to the group's dead letters after `most_retries`, or if its properties leave
    no room for those of a retry. Raises BadRequest."""
    if not 0 <= delay_level <= LEVELS:
        raise BadRequest(f"a delay level is 1 to {LEVELS}, or 0; not {delay_level}")
    properties = dict(message.properties)
    properties.setdefault(RETRY_TOPIC, message.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, message.message_id)
    attempt = message.reconsume_times + 1
    is_dead = message.reconsume_times >= most_retries
    level = delay_level or min(FIRST_RETRY_LEVEL + message.reconsume_times, LEVELS)
    problem = ""
    if is_dead:
        topic, queue_id = dlq_topic(group), 0
        added = {DLQ_CAUSE: cause_text(cause), DLQ_ATTEMPT: str(attempt)}
    else:
        topic, queue_id = SCHEDULE_TOPIC, level - 1
        added = {DELAY: str(level), REAL_TOPIC: retry_topic(group), REAL_QUEUE: "0"}
    try:
        data = encode_properties(properties | added)
    except BadRequest as error:
        problem = str(error)
        topic, queue_id = dlq_topic(group), 0
        data = properties_that_fit(message.properties)
    record = encode_again(message, topic, queue_id, data, attempt)
    return Again(Encoded(record, [len(record)], queue_id, topic, True), problem)


def cause_text(cause: str) -> str:
    """As much of it as a property takes."""
    printable = "".join(c if c.isprintable() else " " for c in cause)
    return printable.encode(errors="replace")[:MOST_CAUSE_BYTES].decode(errors="ignore")


def cause_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def revived(message: StoredMessage, group: str) -> Encoded:
    """A dead letter of the group as it is to be sent to the group again, as if for the first time."""
    gone = (DLQ_CAUSE, DLQ_ATTEMPT)
    properties = {name: value for name, value in message.properties.items() if name not in gone}
    topic = retry_topic(group)
    record = encode_again(message, topic, 0, encode_properties(properties), 0)
    return Encoded(record, [len(record)], 0, topic, True)


# ---------------------------------------------------------------- ConsumerQueue
# One queue that a consumer reads: what is fetched, handed out, done and committed. No I/O.

BUFFER_BYTES = 8 << 20
"""A queue is not read further ahead than that."""


@dataclass(slots=True, eq=False)
class ConsumerQueue:
    topic: str
    queue_id: int
    wanted: frozenset[str]
    """Tags; empty: all."""
    next_offset: int
    """To fetch from."""
    done_offset: int
    """All below is done: the offset of a commit."""
    committed_offset: int
    fetched: deque[StoredMessage] = field(default_factory=deque)
    fetched_bytes: int = 0
    """Including messages taken and not finished yet."""
    in_hand: dict[int, StoredMessage] = field(default_factory=dict)
    """Taken, and not finished yet, by offset in their order."""
    is_revoked: bool = False
    """Somebody else reads it by now."""
    is_asked_for: bool = False
    """Somebody else is to have it once nothing of it is in hand: nothing more is taken."""
    waits_for: ConsumerQueue | None = None
    """The same queue as it was read before: nothing is taken as long as something of that is in hand."""

    @property
    def key(self) -> QueueRow:
        return self.topic, self.queue_id

    @property
    def has_room(self) -> bool:
        return self.fetched_bytes < BUFFER_BYTES

    @property
    def can_take(self) -> bool:
        is_free = self.waits_for is None or not self.waits_for.in_hand
        return bool(self.fetched) and not self.is_asked_for and is_free

    def came(self, messages: list[StoredMessage], next_offset: int) -> None:
        for message in messages:
            if not self.wanted or message.tags in self.wanted:
                self.fetched.append(message)
                self.fetched_bytes += message.size_bytes
        self.next_offset = next_offset
        self._advance()

    def take(self) -> StoredMessage:
        """The oldest that was fetched; `finish` or `give_back` follows."""
        message = self.fetched.popleft()
        self.in_hand[message.queue_offset] = message
        return message

    def finish(self, message: StoredMessage) -> bool:
        """In any order. False: it was finished before, and nothing follows from it any more."""
        if self.in_hand.pop(message.queue_offset, None) is None:
            return False
        self.fetched_bytes -= message.size_bytes
        self._advance()
        return True

    def give_back(self, message: StoredMessage) -> None:
        """The one that was taken last: it is the next one again."""
        del self.in_hand[message.queue_offset]
        self.fetched.appendleft(message)

    def drop_fetched(self) -> None:
        """Forget fetched messages that no handler has."""
        if self.fetched:
            self.next_offset = self.fetched[0].queue_offset
            self.fetched_bytes -= sum(each.size_bytes for each in self.fetched)
            self.fetched.clear()

    def _advance(self) -> None:
        """Up to the lowest that is not finished all is done, or not wanted."""
        if self.in_hand:
            following = next(iter(self.in_hand))
        elif self.fetched:
            following = self.fetched[0].queue_offset
        else:
            following = self.next_offset
        self.done_offset = max(self.done_offset, following)


def take_next(
    queues: dict[QueueRow, ConsumerQueue], *, in_order: bool
) -> tuple[ConsumerQueue, StoredMessage] | None:
    """The oldest fetched message of some queue; the queues take turns. `in_order`: of none of which one
    is in hand."""
    for key in list(queues):
        queue = queues[key]
        if queue.can_take and not (in_order and queue.in_hand):
            queues[key] = queues.pop(key)
            return queue, queue.take()
    return None


def wanted_tags(expression: str) -> frozenset[str]:
    """`a || b`; `*` or nothing: all of them. Raises BadRequest if no tag is given."""
    if expression.strip() in ("", "*"):
        return frozenset()
    words = frozenset(word.strip() for word in expression.split("||") if word.strip())
    if not words:
        raise BadRequest(f"a subscription of {expression!r} names no tag: write a || b, or * for all")
    return words


def as_first_sent(message: StoredMessage) -> StoredMessage:
    """A message that comes again has its first topic, as in RocketMQ."""
    if not message.topic.startswith(RETRY_PREFIX):
        return message
    return message._replace(topic=message.properties.get(RETRY_TOPIC, message.topic))


# ---------------------------------------------------------------- AsyncConsumer
# A member of a consumer group. The broker hands the queues of its topics out; each message comes to the
# group at least once, and those of a queue in their order.
#
#     async with AsyncConsumer(servers, "billing", {"orders": "*"}) as consumer:
#         await consumer.run(handle)          # pushed; what `handle` raises on comes again, later
#         await consumer.run(handle, threads=8)   # several messages at once, in no order
#         messages = await consumer.poll()    # or pulled: `commit` says that they are done

log = logging.getLogger("quorumlog.broker")

HEARTBEAT_WAIT_MS = 3_000
PULL_WAIT_MS = 3_000
COMMIT_INTERVAL_S = 1.0
PAUSE_S = 0.1
MOST_AT_ONCE = 64
"""Queues of which `run` works on a message at once, where nobody says how many."""
ORDERLY_PAUSE_MS = 1_000
"""Between two attempts of an orderly consumer at one message."""
Handler = Callable[[StoredMessage], Awaitable[object] | object]


@dataclass(frozen=True, slots=True)
class _Working:
    """What one `run` works with."""

    handler: Handler
    in_order: bool
    until: Callable[[], bool]
    most_ms: int

    def begun(self, message: StoredMessage) -> Awaitable[object] | None:
        """None: it is worked off already. Raises what the handler does."""
        outcome = self.handler(as_first_sent(message))
        return outcome if inspect.isawaitable(outcome) else None


class AsyncConsumer:
    """A member of a consumer group.

    `begin`: where to start a queue without a committed offset: "earliest", "latest", or a time. `name`:
    of this member, unique in its group. `orderly`: no other member reads a queue while this one handles
    a message of it, even if the queue is reassigned meanwhile: the other waits until this member has
    finished it, or has been silent for too long."""

    def __init__(
        self,
        servers: str,
        group: str,
        topics: Mapping[str, str] | str,
        *,
        begin: StartPoint = EARLIEST,
        name: str = "",
        most_retries: int = MOST_RETRIES,
        orderly: bool = False,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        tls: ClientTls | None = None,
        user: ClientUser | None = None,
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
        self._is_orderly = orderly
        self._given_up: set[QueueRow] = set()
        """Since its generation began."""
        self._unfinished: dict[QueueRow, ConsumerQueue] = {}
        """Of an orderly member: what it works on still of queues that were taken away, or reset."""
        self._session_until_s = 0.0
        """Others may have its queues from then on."""
        self._heartbeat_wait_ms = HEARTBEAT_WAIT_MS
        self._joining = asyncio.Lock()
        self._link = BrokerCalls(servers, timeout_ms, must_follow=True, tls=tls, user=user)
        self._producer = AsyncProducer(servers, timeout_ms=timeout_ms, tls=tls, user=user)
        self._tasks: list[asyncio.Task[None]] = []
        self._fetching: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._changed = asyncio.Condition()
        self._handed_out: list[tuple[ConsumerQueue, StoredMessage]] = []
        self._held_at_poll: list[ConsumerQueue] = []
        """At the first `poll` since the last `commit`."""
        self._timeout_s = timeout_ms / 1000
        self._committing = asyncio.Lock()
        self._failure: LedgerError | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._join()
        except BaseException:
            await self.close()
            raise
        what, ends = (
            f"group {self.group}",
            (UnknownTopic, UnknownConsumerGroup, BadRequest, ClusterChanged),
        )
        repeated = [
            self._repeat(what, self._join, *ends),
            self._repeat(what, self._commit_now_and_then),
            *([self._repeat(what, self._give_up)] if self._is_orderly else []),
        ]
        self._tasks = [asyncio.create_task(each) for each in repeated]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Commits finished messages and leaves the group, whose other members get its queues at once.
        If the broker does not answer, this takes one time-out, and the queues are reassigned once this
        member has been silent for long enough."""
        tasks, self._tasks = self._tasks, []
        for task in (*tasks, *self._fetching.values()):
            task.cancel()
        try:
            await asyncio.gather(*tasks, *self._fetching.values(), return_exceptions=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    with suppress(LedgerError):
                        await self._commit_done()
                    with suppress(LedgerError):
                        await self._link.call(wire.LeaveRequest(group=self.group, member=self.name))
                    await self._producer.close()
        finally:  # a waiting caller may give up
            await self._producer._end()
            await self._link.close()

    # ---------------------------------------------------------------- the group

    def _check_joined(self) -> None:
        if not self._tasks:
            raise BadRequest(
                "a consumer is in its group inside of its `with` block only (`async with` of an"
                " AsyncConsumer): call poll, run and commit there"
            )

    async def _join(self, *, waits: bool = True) -> None:
        """Says that this member is there, and takes over what it is given; `waits` for news."""
        wait_ms = self._heartbeat_wait_ms if waits else 0
        generation, said_s = self.generation, time.monotonic()
        request = wire.GroupHeartbeatRequest(
            group=self.group,
            member=self.name,
            topics=sorted(self.topics.items()),
            generation=generation,
            wait_ms=wait_ms,
            is_orderly=self._is_orderly,
            asked_for=tuple(key for key, queue in self.queues.items() if queue.is_asked_for),
            gives_up=tuple(self._given_up),
        )
        answer = await self._link.ask(request, wire.AssignmentResponse, wait_ms=wait_ms)
        async with self._joining:
            if self.generation != generation:
                return  # another answer came meanwhile: the next one says what is new since
            is_member = answer.generation != -1  # else its queues may be with others
            if self._is_orderly and is_member and not answer.session_ms:
                raise BadRequest(
                    "the broker is of a release that knows no orderly consumers: upgrade it first"
                )
            if is_member and answer.session_ms:
                self._session_until_s = max(self._session_until_s, said_s + answer.session_ms / 1000)
                self._heartbeat_wait_ms = min(HEARTBEAT_WAIT_MS, answer.session_ms // 3)
            if answer.generation not in (-1, generation):
                await self._begin_generation(answer)
            for key in set(answer.asked_for) & self.queues.keys():
                self._ask_for(self.queues[key])
        await self._notify()

    async def _begin_generation(self, answer: wire.AssignmentResponse) -> None:
        """Another generation. Raises what the first look at a queue is refused with."""
        assigned = {(topic, queue_id): offset for topic, queue_id, offset in answer.queues}
        resets = set(answer.resets)
        for key in [key for key in self.queues if key not in assigned]:
            self._revoke(key)
        for key, committed in assigned.items():
            queue = self.queues.get(key)
            # After a reset, or where another member has read it meanwhile, the group stands elsewhere.
            if queue is None or key in resets or committed > queue.done_offset:
                self._revoke(key)
                await self._take_over(key, committed)
        self.generation = answer.generation
        self._given_up.clear()
        if any(queue.committed_offset < 0 for queue in self.queues.values()):
            with suppress(LedgerError):  # `_commit_now_and_then` tries again
                await self._commit_done()

    def _ask_for(self, queue: ConsumerQueue) -> None:
        """Nothing more is taken of it, and nothing is fetched."""
        queue.is_asked_for = True
        queue.drop_fetched()
        task = self._fetching.pop(queue.key, None)
        if task is not None:
            task.cancel()

    async def _give_up(self) -> None:
        """An orderly member: what others wait for, once nothing of it is in hand."""

        def ready() -> list[ConsumerQueue]:
            return [q for q in self.queues.values() if q.is_asked_for and not q.in_hand]

        async with self._changed:
            await self._changed.wait_for(lambda: bool(ready()))
        await self._commit_done()
        for queue in ready():
            self._revoke(queue.key)
            self._given_up.add(queue.key)
        await self._join(waits=False)

    def _revoke(self, key: tuple[str, int]) -> None:
        queue = self.queues.pop(key, None)
        if queue is not None:
            queue.is_revoked = True
            queue.drop_fetched()
            if self._is_orderly and queue.in_hand:
                self._unfinished[key] = queue
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
        queue.waits_for = self._unfinished.pop(key, None)
        self.queues[key] = queue
        self._fetching[key] = asyncio.create_task(
            self._repeat(f"queue {queue_id} of {topic}", partial(self._fetch, queue))
        )

    async def _first_offset(self, topic: str, queue_id: int) -> int:
        rows = await self._link.queues(topic)
        row = next((each for each in rows if each.queue_id == queue_id), None)
        if row is None:
            return 0
        begin = EARLIEST if topic == retry_topic(self.group) else self._begin
        return await self._link.offset_for(row, begin)

    async def _repeat(
        self, what: str, step: Callable[[], Awaitable[None]], *ends: type[LedgerError]
    ) -> None:
        """Forever. A lost right, and an error of `ends`, end this member."""
        while True:
            try:
                await step()
            except LedgerError as error:
                if isinstance(error, (*NO_RIGHT, *ends)):
                    self._failure = error
                    await self._notify()
                    return
                log.info("%s: %s", what, error)
                await asyncio.sleep(PAUSE_S)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _wait(self, most_s: float, until: Callable[[], bool] | None = None) -> None:
        """`until`: None: the next change."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s), self._changed:
                await (self._changed.wait_for(until) if until else self._changed.wait())

    # ---------------------------------------------------------------- reading

    async def _fetch(self, queue: ConsumerQueue) -> None:
        if not queue.has_room:
            async with self._changed:
                await self._changed.wait_for(lambda: queue.has_room)
        request = wire.PullRequest(
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=queue.next_offset,
            wait_ms=PULL_WAIT_MS,
        )
        try:
            pulled = pulled_of(await self._link.call(request, wait_ms=PULL_WAIT_MS))
        except QueueOffsetOutOfRange as error:
            is_below = queue.next_offset < error.min_offset
            log.warning("group %s continues elsewhere: %s", self.group, error)
            queue.came([], error.min_offset if is_below else error.max_offset)
            await asyncio.sleep(PAUSE_S)
            return
        queue.came(pulled.messages, pulled.next_offset)
        await self._notify()

    def _take(self, *, in_order: bool = False) -> tuple[ConsumerQueue, StoredMessage] | None:
        return take_next(self.queues, in_order=in_order) if self._may_take else None

    @property
    def _may_take(self) -> bool:
        """False: the queues of this orderly member may be with others by now."""
        return not self._is_orderly or time.monotonic() < self._session_until_s

    async def poll(self, *, most_messages: int = 100, wait_ms: int = 1_000) -> list[StoredMessage]:
        """At most `most_messages`, possibly of several queues; none if nothing came in `wait_ms`. They
        are done once `commit` is called; otherwise they are delivered again. Raises UnknownTopic,
        UnknownConsumerGroup, BadRequest if the broker refuses it as a member, Forbidden and
        NotAuthenticated once a right is lost; and BadRequest outside of `async with`."""
        found = await self._found(most_messages, wait_ms)
        return self._given(found)

    async def _found(
        self, most_messages: int, wait_ms: int
    ) -> list[tuple[ConsumerQueue, StoredMessage]]:
        self._check_joined()

        def is_over() -> bool:
            may_take = self._may_take and any(queue.can_take for queue in self.queues.values())
            return self._failure is not None or may_take

        await self._wait(wait_ms / 1000, is_over)
        if self._failure is not None:
            raise self._failure
        self._held_at_poll = self._held_at_poll or list(self.queues.values())
        found: list[tuple[ConsumerQueue, StoredMessage]] = []
        while len(found) < most_messages and (one := self._take()) is not None:
            found.append(one)
        return found

    def _given(self, found: list[tuple[ConsumerQueue, StoredMessage]]) -> list[StoredMessage]:
        """`commit` says that they are done."""
        self._handed_out += found
        return [as_first_sent(message) for _, message in found]

    async def commit(self) -> list[QueueRow]:
        """Commit the offsets of all `poll`ed messages; returns once that is replicated. Returns the
        queues (topic, number) that were lost meanwhile: reassigned, or reset; their uncommitted
        messages are delivered again to the present owner. Raises StaleGeneration if this member has
        lost all its queues, because it was silent for too long."""
        self._check_joined()
        handed_out, self._handed_out = self._handed_out, []
        held, self._held_at_poll = self._held_at_poll, []
        done: dict[QueueRow, int] = {}
        for queue, message in handed_out:
            queue.finish(message)
            done[queue.key] = max(done.get(queue.key, 0), message.queue_offset + 1)
        await self._commit_in_present_generation()
        await self._notify()
        # A queue that was lost a moment after it was committed is not: nothing of it comes again.
        read = [queue for queue, _ in handed_out]
        committed = {queue.key: queue.committed_offset for queue in (*read, *self.queues.values())}
        lost = [key for key, offset in done.items() if committed.get(key, -1) < offset]
        if lost and all(queue.is_revoked for queue in held):
            raise StaleGeneration(
                "all queues of this member were assigned to others, or reset: messages polled of them"
                " comes again"
            )
        return lost

    async def _commit_in_present_generation(self) -> None:
        """What is lost is not committed, and keeps nothing else from it. Raises LedgerError."""
        stop_s = time.monotonic() + self._timeout_s

        def is_known(generation: int) -> bool:
            return self._failure is not None or self.generation != generation

        while True:
            generation = self.generation
            try:
                await self._commit_done()
                return
            except (StaleGeneration, UnknownGroupMember):
                # The next heartbeat's answer brings another one, and says what is left.
                await self._wait(stop_s - time.monotonic(), partial(is_known, generation))
                if self._failure is not None or self.generation == generation:
                    raise

    async def run(
        self,
        handler: Handler,
        *,
        threads: int = 0,
        max_processing_time_ms: int = 0,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """Call `handler` with each message. Ends once `until` returns true and messages in progress are
        finished, or when cancelled.

        `threads`: this many messages at once, of any queues and in any order; the committed offset is
        that of the lowest unfinished message. 0: one message per queue at a time, in order.

        If `handler` raises, the message is delivered again after a delay, and goes to the group's %DLQ%
        topic with the cause after 16 attempts. So does a message that takes longer than
        `max_processing_time_ms` (0: no limit): its handler is cancelled and the outcome ignored. An
        orderly consumer retries the message itself after a second, with no other message of the queue
        in between; `SuspendQueue` sets another pause, and counts as no attempt. Raises the errors of
        `poll`."""
        self._check_joined()
        if threads < 0 or max_processing_time_ms < 0:
            raise BadRequest("threads and max_processing_time_ms are 0 or more")
        if self._is_orderly and (threads or max_processing_time_ms):
            raise BadRequest(
                "an orderly consumer works on one message of a queue at a time, as long as it takes:"
                " leave threads and max_processing_time_ms away"
            )
        working = _Working(handler, in_order=not threads, until=until, most_ms=max_processing_time_ms)
        workers: set[asyncio.Task[None]] = set()
        try:
            while not until():
                if self._failure is not None:
                    raise self._failure
                for task in [task for task in workers if task.done()]:
                    workers.discard(task)
                    task.result()
                most = threads or min(len(self.queues), MOST_AT_ONCE)
                while len(workers) < most and (found := self._take(in_order=working.in_order)):
                    workers.add(asyncio.create_task(self._work_off(*found, working)))
                await self._wait(PAUSE_S)
            await asyncio.gather(*workers)
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work_off(self, queue: ConsumerQueue, message: StoredMessage, working: _Working) -> None:
        """This message, and then others as long as there are some."""
        while True:
            had_room = queue.has_room
            if self._is_orderly:
                await self._work_in_order(queue, message, working)
            else:
                await self._work_once(queue, message, working)
            found = None if working.until() else self._take(in_order=working.in_order)
            if found is None or queue.has_room != had_room or queue.is_asked_for:
                await self._notify()
            if found is None:
                return
            queue, message = found

    async def _work_once(self, queue: ConsumerQueue, message: StoredMessage, working: _Working) -> None:
        try:
            work = working.begun(message)
            if work is not None and working.most_ms:
                await self._in_time(work, queue, message, working.most_ms)
            elif work is not None:
                await work
        except Exception as error:
            log.exception("message %s comes again", message.message_id)
            await self._comes_again(queue, message, cause_of(error))
        else:
            queue.finish(message)

    async def _in_time(
        self, work: Awaitable[object], queue: ConsumerQueue, message: StoredMessage, most_ms: int
    ) -> None:
        """Raises what the work does, unless that comes too late. It has ended when this returns."""
        task = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait([task], timeout=most_ms / 1000)
            if not done:
                cause = f"it was worked on for more than {most_ms} ms"
                await self._comes_again(queue, message, cause)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if done:
            task.result()
        elif not task.cancelled() and task.exception() is not None:
            log.info("message %s, too late: %r", message.message_id, task.exception())

    async def _comes_again(self, queue: ConsumerQueue, message: StoredMessage, cause: str) -> None:
        """The member that has the queue by now reads the message there."""
        if not queue.is_revoked:
            await self._retry_until_stored(message, cause)
        queue.finish(message)

    async def _work_in_order(
        self, queue: ConsumerQueue, message: StoredMessage, working: _Working
    ) -> None:
        attempt = message
        while True:
            try:
                work = working.begun(attempt)
                if work is not None:
                    await work
                break
            except SuspendQueue as suspended:
                pause_ms = suspended.pause_ms
            except Exception as error:
                log.exception("message %s comes again", message.message_id)
                if attempt.reconsume_times >= self._most_retries:
                    await self._retry_until_stored(attempt, cause_of(error))
                    break
                attempt = attempt._replace(reconsume_times=attempt.reconsume_times + 1)
                pause_ms = ORDERLY_PAUSE_MS
            if not await self._suspend(queue, pause_ms, working):
                queue.give_back(message)
                return
        queue.finish(message)

    async def _suspend(self, queue: ConsumerQueue, pause_ms: int, working: _Working) -> bool:
        """False: the next attempt is for somebody else, or for another `run`."""
        stop_s = time.monotonic() + pause_ms / 1000
        while not (queue.is_revoked or queue.is_asked_for or working.until()):
            now_s = time.monotonic()
            if now_s >= stop_s:
                return self._may_take
            await self._wait(min(stop_s - now_s, PAUSE_S))
        return False

    # ---------------------------------------------------------------- again, later

    async def _retry_until_stored(self, message: StoredMessage, cause: str) -> None:
        while True:
            try:
                await self.retry(message, cause=cause)
                return
            except NO_RIGHT:
                raise
            except LedgerError as error:
                log.warning("message %s: %s", message.message_id, error)
                await asyncio.sleep(PAUSE_S)

    async def retry(
        self, message: StoredMessage, *, delay_level: int = 0, cause: str = ""
    ) -> SendReceipt:
        """Deliver it to the group again after a delay that grows with each attempt, or that of
        `delay_level` (1 to 18); after 16 attempts it goes to the group's %DLQ% topic, with `cause`. A
        message whose properties leave no room for those of a retry (an old log may have some) goes
        there at once. Raises the errors of a producer's `send`."""
        again = again_of(
            message, self.group, most_retries=self._most_retries, delay_level=delay_level, cause=cause
        )
        if again.problem:
            log.warning(
                "message %s goes to %s: %s", message.message_id, again.encoded.topic, again.problem
            )
        receipt = await self._producer.send_encoded(again.encoded)
        self.retried += 1
        return receipt

    # ---------------------------------------------------------------- committing

    async def _commit_now_and_then(self) -> None:
        await asyncio.sleep(COMMIT_INTERVAL_S)
        with suppress(StaleGeneration, UnknownGroupMember):  # a heartbeat brings another assignment
            await self._commit_done()

    async def _commit_done(self) -> None:
        async with self._committing:
            done = {q: q.done_offset for q in self.queues.values() if q.done_offset > q.committed_offset}
            if not done:
                return
            request = wire.CommitRequest(
                group=self.group,
                member=self.name,
                generation=self.generation,
                offsets=[(*queue.key, offset) for queue, offset in done.items()],
            )
            await self._link.call(request)
            for queue, offset in done.items():
                queue.committed_offset = offset
