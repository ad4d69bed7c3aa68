"""Proposals: commands of topics and groups on their way into the log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from quorumlog.broker.errors import TooManyNames
from quorumlog.broker.groups.group_log import GroupLog, Told
from quorumlog.broker.groups.group_state import GroupState
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.wire.group_commands import (
    Command,
    CommitOffsets,
    CreateGroup,
    CreateTopic,
    UpdateTopic,
    refusal_in,
)
from quorumlog.broker.wire.group_names import (
    MOST_GROUPS,
    MOST_QUEUES_IN_ALL,
    MOST_TOPICS,
    dlq_topic,
    retry_topic,
)
from quorumlog.errors import LedgerError


class Proposals:
    """On the loop."""

    most_topics, most_groups, most_queues = MOST_TOPICS, MOST_GROUPS, MOST_QUEUES_IN_ALL

    def __init__(self, log: GroupLog, state: Callable[[], GroupState]) -> None:
        """`state`: as it is applied here."""
        self._log = log
        self._state = state

    def propose(self, command: Command, done: Told) -> None:
        """In front of all that is proposed later. Raises TooManyNames."""
        self._check_room(command)
        self._log.propose(lambda: self._with_ends(command), done)

    def _check_room(self, command: Command) -> None:
        """Here, and not where it is applied: members of two releases must not differ in it. What is on
        its way just now is not counted."""
        state = self._state()
        names, groups = len(state.topics) + len(state.ended), len(state.groups)
        is_topic = isinstance(command, CreateTopic) and command.topic not in state.topics
        is_group = isinstance(command, CreateGroup) and command.group not in state.groups
        if is_topic and names >= self.most_topics:
            raise TooManyNames(f"there are {names} topics, with those that were deleted: no more")
        if is_group and groups >= self.most_groups:
            raise TooManyNames(f"there are {groups} consumer groups: delete some first")
        if isinstance(command, CreateTopic | UpdateTopic):
            there = state.topics.get(command.topic)
            more = (command.queues or 0) - (0 if there is None else there.queues)
            queues = sum(topic.queues for topic in state.topics.values()) if more > 0 else 0
            if queues + more > self.most_queues:
                raise TooManyNames(
                    f"all topics have {queues} queues, and {more} more would be above"
                    f" {self.most_queues}: delete topics first, or make fewer queues"
                )

    def quietly(self, command: Command) -> None:
        """Whatever comes of it: there is a next time."""
        with suppress(TooManyNames):
            self.propose(command, lambda outcome: None)

    def commit(self, command: CommitOffsets, done: Callable[[LedgerError | None], None]) -> None:
        self.propose(command, lambda outcome: done(refusal_in(outcome)))

    def _with_ends(self, command: Command) -> Command:
        """A queue that is made anew begins behind all that was ever sent to one of its name."""

        def of(topic: str, count: int) -> tuple[int, ...]:
            return tuple(self._log.end_of(QueueKey(topic, queue_id)) for queue_id in range(count))

        if isinstance(command, CreateTopic | UpdateTopic):
            return msgspec.structs.replace(command, begins=of(command.topic, command.queues or 0))
        if isinstance(command, CreateGroup):
            begins = of(retry_topic(command.group), 1) + of(dlq_topic(command.group), 1)
            return msgspec.structs.replace(command, begins=begins)
        return command
