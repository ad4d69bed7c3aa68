"""GroupMachine: topics and groups as a state machine of the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.broker.groups import group_state
from quorumlog.broker.groups.group_state import (
    Group,
    GroupState,
    Topic,
    begun_state,
    group_of,
    topic_of,
)
from quorumlog.broker.old_log import OldState
from quorumlog.broker.wire.group_commands import (
    Command,
    GroupRow,
    GroupsQuestion,
    Stand,
    TopicRow,
    TopicsQuestion,
    decode_command,
    decode_question,
    done,
    refused,
)
from quorumlog.errors import BadRequest, LedgerError, ProtocolViolation
from quorumlog.state_machine import (
    ApplyFailure,
    Result,
    SnapshotReader,
    SnapshotWriter,
    StateMachine,
)

MACHINE_NAME = "broker-groups"
FORMAT = 1
_encode = msgspec.msgpack.Encoder().encode
_saved = msgspec.msgpack.Decoder(
    tuple[int, list[tuple[str, Topic]], list[GroupRow], dict[int, int], list[str]]
)


class GroupFeed:
    """The state of a member, as far as it has applied: written by the thread that applies, read by the
    loop. `wake` is called from the former."""

    def __init__(self, old: OldState | None = None) -> None:
        """`old`: what the log begins with."""
        self.begun = begun_state(old)
        self.state = self.begun
        self.wake: Callable[[], None] = _nobody

    def tell(self, state: GroupState) -> None:
        if state is not self.state:
            self.state = state
            self.wake()


class GroupMachine(StateMachine):
    def __init__(self, feed: GroupFeed | None = None) -> None:
        self._feed = feed or GroupFeed()
        self.state = self._feed.begun
        self._feed.tell(self.state)

    def apply(self, batch: EntryBatch, first_index: int) -> Sequence[Result]:
        results: list[Result] = []
        for index, body in zip(batch.headers()["index"].tolist(), batch.bodies(), strict=True):
            try:
                results.append(self.carry_out(body))
            except Exception as error:
                raise ApplyFailure(index) from error
        self._feed.tell(self.state)
        return results

    def carry_out(self, body: memoryview | bytes) -> bytes:
        """One command. Returns what it answers."""
        try:
            command: Command = decode_command(body)
        except msgspec.DecodeError as error:
            return refused(BadRequest(f"no command of topics and groups: {error}"))
        try:
            self.state, answer = group_state.carry_out(self.state, command)
        except LedgerError as refusal:
            return refused(refusal)
        return done(answer)

    # ---------------------------------------------------------------- questions

    def query(self, question: bytes) -> bytes:
        try:
            return done(self._answer(question))
        except LedgerError as refusal:
            return refused(refusal)

    def _answer(self, question: bytes) -> object:
        try:
            asked = decode_question(question)
        except msgspec.DecodeError as error:
            raise BadRequest(f"no question to topics and groups: {error}") from None
        if isinstance(asked, TopicsQuestion):
            return topic_rows(self.state, asked.topic)
        if isinstance(asked, GroupsQuestion):
            return group_rows(self.state, asked.group)
        assert isinstance(asked, Stand), asked
        return None

    # ---------------------------------------------------------------- snapshots

    def save(self, writer: SnapshotWriter) -> None:
        writer.write(saved_bytes(self.state))

    def load(self, reader: SnapshotReader) -> None:
        self.state = loaded_state(reader.read())
        self._feed.tell(self.state)


def topic_rows(state: GroupState, name: str = "") -> list[TopicRow]:
    """Raises UnknownTopic."""
    if name:
        topic_of(state, name)
    return [
        TopicRow(each, topic.queues, topic.perm, topic.retention_ms, topic.begins)
        for each, topic in sorted(state.topics.items())
        if name in ("", each)
    ]


def group_rows(state: GroupState, name: str = "") -> list[GroupRow]:
    """Raises UnknownConsumerGroup."""
    if name:
        group_of(state, name)
    return [
        GroupRow(
            each,
            group.generation,
            group.members,
            tuple((*queue, at) for queue, at in sorted(group.offsets.items())),
            tuple((*queue, at) for queue, at in sorted(group.resets.items())),
        )
        for each, group in sorted(state.groups.items())
        if name in ("", each)
    ]


def saved_bytes(state: GroupState) -> bytes:
    """The same bytes for equal states, however they came to be."""
    return _encode(
        (
            FORMAT,
            sorted(state.topics.items()),
            group_rows(state),
            dict(sorted(state.delayed.items())),
            sorted(state.ended),
        )
    )


def loaded_state(data: bytes) -> GroupState:
    """Raises ProtocolViolation for what is no saved state of this format."""
    try:
        form, topics, groups, delayed, ended = _saved.decode(data)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"these are no saved topics and groups: {error}") from None
    if form != FORMAT:
        raise ProtocolViolation(f"saved topics and groups of format {form}, not {FORMAT}")
    loaded = {
        row.group: Group(
            row.generation,
            row.members,
            {(t, q): at for t, q, at in row.offsets},
            {(t, q): at for t, q, at in row.resets},
        )
        for row in groups
    }
    return GroupState(dict(topics), loaded, delayed, frozenset(ended))


def _nobody() -> None:
    """Nobody listens."""
