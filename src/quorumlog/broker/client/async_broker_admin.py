"""AsyncBrokerAdmin: topics and consumer groups: made, changed, looked at, reset."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, Self, TypeVar

from quorumlog.broker import group_commands as commands
from quorumlog.broker import wire
from quorumlog.broker.client.async_consumer import revived
from quorumlog.broker.client.broker_calls import (
    DEFAULT_TIMEOUT_MS,
    EARLIEST,
    LATEST,
    BrokerCalls,
    QueueInfo,
    pulled_of,
    receipt_of,
)
from quorumlog.broker.errors import ConsumerGroupExists, UnknownTopic
from quorumlog.broker.group_commands import (
    check_group_name,
    dlq_topic,
    encode,
    is_system_topic,
    read_answer,
)
from quorumlog.broker.message import StoredMessage
from quorumlog.errors import BadRequest, LedgerError
from quorumlog.log_state.users import UserOrder, checked_order
from quorumlog.net.credentials import ClientUser
from quorumlog.net.tls import ClientTls
from quorumlog.wire.client_messages import (
    ChangeUsersRequest,
    ChangeUsersResponse,
    UsersRequest,
    UsersResponse,
)

_T = TypeVar("_T")
ALL_PERMISSIONS = 6


class QueueLag(NamedTuple):
    """Lag of a group in one queue."""

    topic: str
    queue_id: int
    member: str
    """Member that reads it; empty: none."""
    committed_offset: int
    """-1: none committed."""
    min_offset: int
    end_offset: int
    messages: int
    """Number of messages at or above the committed offset."""
    seconds: float
    """Since the oldest of them was stored; 0: there is none."""


class AsyncBrokerAdmin:
    """Raises the broker's refusals, Unreachable, RequestTimeout; a change may raise
    OutcomeUnknown: check whether it was made. A change is never repeated automatically."""

    def __init__(
        self,
        servers: str,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        tls: ClientTls | None = None,
        user: ClientUser | None = None,
    ) -> None:
        """Raises ConfigError."""
        self._link = BrokerCalls(servers, timeout_ms, must_follow=True, tls=tls, user=user)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End its connections; waiting calls raise Unreachable or OutcomeUnknown."""
        await self._link.close()

    async def route(self) -> wire.RoleResponse:
        """The master, and the addresses of the other brokers."""
        return await self._link.ask(wire.RoleRequest(), wire.RoleResponse)

    async def _command(self, command: commands.Command) -> None:
        answer = await self._link.ask(wire.GroupCommandRequest(body=encode(command)), wire.GroupAnswer)
        read_answer(answer.body, object)

    async def _question(self, question: commands.Question, kind: type[_T]) -> _T:
        answer = await self._link.ask(wire.GroupQuestionRequest(body=encode(question)), wire.GroupAnswer)
        return read_answer(answer.body, kind)

    # ---------------------------------------------------------------- users

    async def change_users(self, order: UserOrder) -> int:
        """Of classic brokers; those on a replicated log have its users. Returns the number of the
        change among the broker's commands. Raises BadRequest for an invalid change, Forbidden,
        SwitchRefused where a slave is of an earlier release."""
        request = ChangeUsersRequest(order=checked_order(order))
        return (await self._link.ask(request, ChangeUsersResponse)).index

    async def users(self) -> UsersResponse:
        """The users, and the grants of each role."""
        return await self._link.ask(UsersRequest(), UsersResponse)

    # ---------------------------------------------------------------- topics

    async def create_topic(
        self, topic: str, queues: int = 4, *, perm: int = ALL_PERMISSIONS, retention_ms: int = 0
    ) -> None:
        """`perm`: 4 read, 2 send, 6 both. `retention_ms`: how long messages are shown, 0: as long as
        the log has them. Raises TopicExists if the topic exists with other settings, TooManyNames,
        BadRequest for an invalid name."""
        await self._command(commands.CreateTopic(topic, queues, perm, retention_ms))

    async def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        perm: int | None = None,
        retention_ms: int | None = None,
    ) -> None:
        """None: unchanged; queues cannot be reduced. Raises UnknownTopic, BadRequest."""
        await self._command(commands.UpdateTopic(topic, queues, perm, retention_ms))

    async def delete_topic(self, topic: str) -> None:
        """Its messages are no longer shown, even if a topic of the name is created again. No effect if
        there is none. Raises BadRequest for a topic of the broker's own."""
        try:
            await self._command(commands.DeleteTopic(topic))
        except UnknownTopic:
            if any(row.topic == topic for row in await self.topics()):
                raise

    async def topics(self, topic: str = "", *, system: bool = False) -> list[commands.TopicRow]:
        """All topics, or this one, by name, with their settings; `system`: including the broker's own.
        Raises UnknownTopic."""
        rows = await self._question(commands.TopicsQuestion(topic), list[commands.TopicRow])
        return [row for row in rows if system or topic or not is_system_topic(row.topic)]

    async def queues(self, topic: str = "") -> list[QueueInfo]:
        """Of all topics, or of this one: oldest offset and next offset of each queue."""
        return await self._link.queues(topic)

    # ---------------------------------------------------------------- groups

    async def groups(self, group: str = "") -> list[commands.GroupRow]:
        """All groups, or this one: members, their queues, committed offsets. Raises
        UnknownConsumerGroup."""
        return await self._question(commands.GroupsQuestion(group), list[commands.GroupRow])

    async def create_group(self, group: str) -> None:
        """No effect if it exists. Raises TooManyNames."""
        with suppress(ConsumerGroupExists):
            await self._command(commands.CreateGroup(group))

    async def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """(topic, queue) -> offset of the next message, for a group without members, whose messages
        another program reads. Offsets never decrease. Raises UnknownConsumerGroup, UnknownGroupMember.
        """
        rows = [(topic, queue_id, at) for (topic, queue_id), at in offsets.items()]
        await self._link.call(wire.CommitRequest(group=group, offsets=rows))

    async def delete_group(self, group: str) -> None:
        """With its offsets, and its topics for retries. Raises GroupInUse while members read in it,
        UnknownConsumerGroup."""
        await self._command(commands.DeleteGroup(group))

    async def dead_letters(
        self, group: str, offset: int = 0, *, most_messages: int = 100
    ) -> list[StoredMessage]:
        """Messages of the group that exceeded their retries, from this offset of its %DLQ% topic on:
        their properties DLQ_CAUSE and DLQ_ATTEMPT have the cause and the number of attempts. Raises
        UnknownConsumerGroup."""
        await self.groups(group)
        (info,) = await self.queues(dlq_topic(group))
        found: list[StoredMessage] = []
        offset = max(offset, info.min_offset)
        while len(found) < most_messages and offset < info.max_offset:
            request = wire.PullRequest(
                topic=info.topic,
                queue_id=info.queue_id,
                offset=offset,
                most_messages=most_messages - len(found),
            )
            pulled = pulled_of(await self._link.call(request))
            found += pulled.messages
            offset = pulled.next_offset
        return found

    async def resend(self, group: str, offsets: Sequence[int]) -> int:
        """Send dead letters, by offset, to their group again, as if for the first time; other groups do
        not see them. They stay in the %DLQ% topic: the caller keeps track. Returns their number. Raises
        BadRequest, UnknownConsumerGroup, OutcomeUnknown."""
        letters: list[StoredMessage] = []
        for offset in offsets:
            found = await self.dead_letters(group, offset, most_messages=1)
            if not found or found[0].queue_offset != offset:
                raise BadRequest(f"group {group} has no dead letter {offset}: dlq list shows them")
            letters += found
        for letter in letters:
            encoded = revived(letter, group)
            receipt_of(await self._link.call(wire.SendRequest(), encoded), encoded)
        return len(letters)

    async def lag(self, group: str) -> list[QueueLag]:
        """Of every queue that the group reads, or has committed an offset of. Raises
        UnknownConsumerGroup."""
        check_group_name(group)
        (row,) = await self.groups(group)
        committed = {(topic, queue_id): at for topic, queue_id, at in row.offsets}
        reads = {queue: each.member for each in row.members for queue in each.queues}
        ends = {(each.topic, each.queue_id): each for each in await self.queues()}
        lags = []
        for queue in sorted({*committed, *reads}):
            info = ends.get(queue) or QueueInfo(*queue, 0, 0)
            at = committed.get(queue, -1)
            begin = max(at, info.min_offset)
            behind = max(info.max_offset - begin, 0)
            seconds = await self._age_s(queue, begin) if behind else 0.0
            member = reads.get(queue, "")
            lags.append(QueueLag(*queue, member, at, info.min_offset, info.max_offset, behind, seconds))
        return lags

    async def _age_s(self, queue: tuple[str, int], offset: int) -> float:
        request = wire.PullRequest(topic=queue[0], queue_id=queue[1], offset=offset, most_messages=1)
        try:
            pulled = pulled_of(await self._link.call(request))
        except LedgerError:
            return 0.0
        if not len(pulled.records):
            return 0.0
        stored_ms = int(pulled.records.columns.store_times_ms[0])
        return max(0.0, time.time() - stored_ms / 1000)

    async def reset(
        self, group: str, to: str | float | datetime, topics: Sequence[str] = ()
    ) -> dict[tuple[str, int], int]:
        """Set the group's offsets to "earliest", "latest" or a time (a datetime, or milliseconds since
        1970), for these topics or all that it reads. Returns the offsets by (topic, queue). Commits of
        messages in progress are ignored. Raises UnknownConsumerGroup, UnknownTopic, and BadRequest if
        there is nothing to reset."""
        if isinstance(to, str) and to not in (EARLIEST, LATEST):
            raise BadRequest(f"reset to earliest, latest or a time, not {to!r}")
        check_group_name(group)
        (row,) = await self.groups(group)
        known = {topic for topic, _, _ in row.offsets}
        known |= {topic for each in row.members for topic, _ in each.topics}
        wanted = set(topics) or {topic for topic in known if not is_system_topic(topic)}
        if not wanted:
            raise BadRequest(f"group {group} has read nothing yet: name its topics")
        offsets: dict[tuple[str, int], int] = {}
        for topic in sorted(wanted):
            rows = await self.queues(topic)
            if not rows:
                raise UnknownTopic(f"there is no topic {topic}")
            for each in rows:
                offsets[topic, each.queue_id] = await self._link.offset_for(each, to)
        await self._command(
            commands.ResetOffsets(group, tuple((*queue, at) for queue, at in offsets.items()))
        )
        return offsets
