"""A consumer group beside the producers: its members come and go, and what they saw is held against what
was acknowledged."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field

from quorumlog.broker.client.async_broker_admin import AsyncBrokerAdmin
from quorumlog.broker.client.async_consumer import AsyncConsumer
from quorumlog.broker.message import StoredMessage
from quorumlog.errors import LedgerError

GROUP = "nemesis"
LOOK_S = 0.3
RETRY_S = 0.2
Queue = tuple[str, int]


@dataclass(slots=True)
class Seen:
    bodies: set[bytes] = field(default_factory=set)
    highest: dict[int, int] = field(default_factory=dict)
    """Offset of the last message of a queue that somebody saw for the first time."""
    committed: dict[Queue, int] = field(default_factory=dict)
    generations: set[int] = field(default_factory=set)
    found: list[str] = field(default_factory=list)

    def take(self, message: StoredMessage) -> None:
        if message.body in self.bodies:
            return
        self.bodies.add(message.body)
        before = self.highest.get(message.queue_id, -1)
        if message.queue_offset <= before:
            self.found.append(f"{message.body!r} was first seen behind offset {before} of its queue")
        self.highest[message.queue_id] = message.queue_offset

    def look(self, committed: dict[Queue, int], generation: int) -> None:
        self.generations.add(generation)
        for queue, before in self.committed.items():
            if committed.get(queue, -1) < before:
                self.found.append(f"{queue} is committed to {committed.get(queue)}, before to {before}")
        self.committed = committed


class Group:
    """`async with Group(servers, topic, members) as group`: `change` replaces one member."""

    def __init__(self, servers: str, topic: str, members: int) -> None:
        self.seen = Seen()
        self._servers = servers
        self._topic = topic
        self._count = members
        self._names = itertools.count()
        self._members: list[asyncio.Task[None]] = []
        self._looks: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Group:
        for _ in range(self._count):
            self._join()
        if self._count:
            self._looks = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._members, *([self._looks] if self._looks is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _join(self) -> None:
        self._members.append(asyncio.create_task(self._consume(f"m{next(self._names)}")))

    def change(self) -> None:
        """The oldest member leaves, and another one comes."""
        if self._members:
            self._members.pop(0).cancel()
            self._join()

    async def _consume(self, name: str) -> None:
        while True:
            try:
                consumer = AsyncConsumer(self._servers, GROUP, self._topic, name=name)
                async with consumer:
                    await consumer.run(self.seen.take)
            except LedgerError:
                await asyncio.sleep(RETRY_S)

    async def _look(self) -> None:
        async with AsyncBrokerAdmin(self._servers) as admin:
            while True:
                await asyncio.sleep(LOOK_S)
                try:
                    (row,) = await admin.groups(GROUP)
                except LedgerError:
                    continue  # there is none yet, or no master
                at = {(topic, queue_id): offset for topic, queue_id, offset in row.offsets}
                self.seen.look(at, row.generation)

    async def await_all(self, acknowledged: set[bytes], within_s: float) -> None:
        """What the group has not seen by then is a violation."""
        if not self._count:
            return
        try:
            async with asyncio.timeout(within_s):
                while not acknowledged <= self.seen.bodies:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            missing = acknowledged - self.seen.bodies
            self.seen.found.append(f"the group has not seen {len(missing)}, such as {min(missing)!r}")
