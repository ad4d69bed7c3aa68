"""Proposals: commands of topics and groups on their way into the log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.broker.errors import TooManyNames
from quorumlog.broker.groups.group_machine import MACHINE_NAME
from quorumlog.broker.groups.group_state import GroupState
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.wire.group_commands import (
    Command,
    CommitOffsets,
    CreateGroup,
    CreateTopic,
    UpdateTopic,
    encode,
    read_answer,
)
from quorumlog.broker.wire.group_names import (
    MOST_GROUPS,
    MOST_QUEUES_IN_ALL,
    MOST_TOPICS,
    dlq_topic,
    retry_topic,
)
from quorumlog.entry import AppendReceipt
from quorumlog.errors import LedgerError, ResultUnknown
from quorumlog.node import AppendOutcome

if TYPE_CHECKING:
    from quorumlog.broker.dledger.dledger_broker import DLedgerBroker

TIMEOUT_MS = 5_000
Done = Callable[[bytes | LedgerError], None]
"""Gets what the machine answers, or the refusal of the log."""


class Proposals:
    """On the loop."""

    most_topics, most_groups, most_queues = MOST_TOPICS, MOST_GROUPS, MOST_QUEUES_IN_ALL

    def __init__(self, broker: DLedgerBroker, state: Callable[[], GroupState]) -> None:
        """`state`: as it is applied here."""
        self._broker = broker
        self._state = state

    def propose(self, command: Command, done: Done) -> None:
        """In front of all that is proposed later. Raises TooManyNames."""
        self._check_room(command)

        def told(outcome: AppendOutcome) -> None:
            if isinstance(outcome, AppendReceipt):
                (result,) = outcome.results
                unknown = ResultUnknown("it is committed, and what came of it is not known")
                done(unknown if result is None else result)
            else:
                done(self._broker.refusal_of(outcome))

        def append() -> None:
            batch = EntryBatch.from_bodies([encode(self._with_ends(command))])
            self._broker.member.append(batch, MACHINE_NAME, TIMEOUT_MS, told, self)

        self._broker.member.enter(append)

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
        ends = self._broker.filler.next_offsets

        def of(topic: str, count: int) -> tuple[int, ...]:
            return tuple(ends.get(QueueKey(topic, queue_id), 0) for queue_id in range(count))

        if isinstance(command, CreateTopic | UpdateTopic):
            return msgspec.structs.replace(command, begins=of(command.topic, command.queues or 0))
        if isinstance(command, CreateGroup):
            begins = of(retry_topic(command.group), 1) + of(dlq_topic(command.group), 1)
            return msgspec.structs.replace(command, begins=begins)
        return command


def refusal_in(outcome: bytes | LedgerError) -> LedgerError | None:
    if isinstance(outcome, LedgerError):
        return outcome
    try:
        read_answer(outcome, object)
    except LedgerError as refusal:
        return refusal
    return None
