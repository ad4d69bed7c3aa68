"""Commands of the state machine of topics and groups, and their encoding."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from quorumlog.broker.config import DELAY_LEVELS
from quorumlog.broker.message import SCHEDULE_TOPIC, check_topic
from quorumlog.errors import BadRequest, LedgerError, ProtocolViolation
from quorumlog.log_state.users import KEY_BYTES, UserOrder
from quorumlog.net.errors import error_with
from quorumlog.wire.nesting import REFUSAL, nested_deeper

# ----------------------------------------------------------------
# Names of topics and groups, permissions, and delay levels, as RocketMQ has them.

RETRY_PREFIX, DLQ_PREFIX = "%RETRY%", "%DLQ%"
UNDELIVERED_TOPIC = "%UNDELIVERED%"
"""Where a delayed message ends up whose topic was deleted meanwhile."""

GROUPS_TOPIC = "%GROUPS%"
"""Of a classic broker: commands of topics and groups in one queue, snapshots of their state in the
other."""
COMMANDS_QUEUE, SNAPSHOTS_QUEUE = 0, 1

SYSTEM_PREFIX = "%"
"""Of the broker's own topics and producer sessions."""

MOST_NEW_TOPIC_BYTES = 127
READ, WRITE = 4, 2
"""Bits of a permission."""
MOST_QUEUES = 10_000
MOST_NAME_BYTES = 120
"""Of a group, whose topics have a prefix before it."""

MOST_TOPICS, MOST_GROUPS = 100_000, 10_000
"""That a master lets in: every member holds them all. A topic that was deleted counts, since its name is
remembered; each group has two of its own."""
MOST_QUEUES_IN_ALL = 1_000_000
"""Of all topics: one that is named in forty bytes may have ten thousand."""

LEVELS = len(DELAY_LEVELS.split())
"""Of delays: 18."""
FIRST_RETRY_LEVEL = 3
MOST_RETRIES = 16
"""Then a message goes to the group's %DLQ% topic."""

REAL_TOPIC, REAL_QUEUE = "REAL_TOPIC", "REAL_QID"
RETRY_TOPIC, ORIGIN_MESSAGE_ID = "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"
"""Names of properties, as Java has them."""
DLQ_CAUSE, DLQ_ATTEMPT = "DLQ_CAUSE", "DLQ_ATTEMPT"
"""Our own, in a dead letter: the error of the last attempt, and the number of attempts."""


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def is_system_topic(topic: str) -> bool:
    """Made and ended by the broker alone."""
    own = (SCHEDULE_TOPIC, UNDELIVERED_TOPIC, GROUPS_TOPIC)
    return topic in own or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def check_topic_name(topic: str) -> None:
    """Of a topic that people make. Raises BadRequest."""
    check_topic(topic)
    if is_system_topic(topic) or "%" in topic or "|" in topic:
        raise BadRequest(
            f"the topic {topic!r} has a name that the broker keeps for itself: no % and no |"
        )


def check_new_topic_name(topic: str) -> None:
    """Of one that is about to be made: one that is there may be longer. Raises BadRequest."""
    check_topic(topic)
    if len(topic) > MOST_NEW_TOPIC_BYTES:
        raise BadRequest(
            f"the name of a new topic has up to {MOST_NEW_TOPIC_BYTES} bytes, not {len(topic)}: clients"
            " of RocketMQ take no longer one, and RocketMQ 4 cannot read its messages"
        )


def check_group_name(group: str) -> None:
    """Raises BadRequest."""
    good = all(c.isascii() and (c.isalnum() or c in "_-") for c in group)
    if not good or not 0 < len(group) <= MOST_NAME_BYTES:
        raise BadRequest(
            f"a consumer group has 1 to {MOST_NAME_BYTES} letters, digits, _ and -, not {group!r}"
        )


PERMISSIONS: Mapping[str, int] = MappingProxyType({"r": READ, "w": WRITE, "rw": READ | WRITE})
PERMISSION_NAMES: Mapping[int, str] = MappingProxyType({v: k for k, v in PERMISSIONS.items()} | {0: "-"})


# ----------------------------------------------------------------
# What is said to the state machine of topics and groups: a command is one array, the body of one entry.
#
#     [0, body]        done
#     [code, message]  refused, and nothing has changed: a code of `broker.errors`

Name = Annotated[str, Meta(min_length=1, max_length=255)]
Offset = Annotated[int, Meta(ge=0, le=2**62)]
QueueId = Annotated[int, Meta(ge=0, lt=MOST_QUEUES)]
Queues = Annotated[int, Meta(ge=1, le=MOST_QUEUES)]
Perm = Annotated[int, Meta(ge=0, le=7)]
Milliseconds = Annotated[int, Meta(ge=0, le=2**53)]
MOST_ROWS = 100_000
OffsetRow = tuple[Name, QueueId, Offset]
"""(topic, queue, offset of the next message that is wanted)."""
QueueRow = tuple[Name, QueueId]
Offsets = Annotated[tuple[OffsetRow, ...], Meta(max_length=MOST_ROWS)]


class MachineInput(msgspec.Struct, frozen=True, array_like=True):
    pass


class CreateTopic(MachineInput, frozen=True, tag=1):
    topic: Name
    queues: Queues
    perm: Perm = 6
    retention_ms: Milliseconds = 0
    """Older messages are not shown any more; 0: as long as the log has them."""
    begins: Annotated[tuple[Offset, ...], Meta(max_length=MOST_QUEUES)] = ()
    """Ends of the queues, which count if a topic of this name was deleted: the leader fills them in."""


class UpdateTopic(MachineInput, frozen=True, tag=2):
    """Fields that are None stay unchanged."""

    topic: Name
    queues: Queues | None = None
    """Not fewer than there are."""
    perm: Perm | None = None
    retention_ms: Milliseconds | None = None
    begins: Annotated[tuple[Offset, ...], Meta(max_length=MOST_QUEUES)] = ()
    """As in CreateTopic, of all its queues then."""


class DeleteTopic(MachineInput, frozen=True, tag=3):
    topic: Name


class TrimQueues(MachineInput, frozen=True, tag=4):
    """Messages below these offsets are older than the topic's retention."""

    queues: Offsets


class CreateGroup(MachineInput, frozen=True, tag=5):
    """With its topics for retries and dead letters."""

    group: Name
    begins: Annotated[tuple[Offset, ...], Meta(max_length=2)] = ()
    """Ends of those two topics' queues, as in CreateTopic."""


class DeleteGroup(MachineInput, frozen=True, tag=6):
    group: Name


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """The queues of one member of a group."""

    member: Name
    topics: Annotated[tuple[tuple[Name, str], ...], Meta(max_length=MOST_QUEUES)]
    """(topic, tags it wants: `a || b`, or `*`)."""
    queues: Annotated[tuple[QueueRow, ...], Meta(max_length=MOST_ROWS)]


class Assign(MachineInput, frozen=True, tag=7):
    """The assignment of queues to members from now on."""

    group: Name
    generation: Annotated[int, Meta(ge=1)]
    """The current one plus one; else it is refused."""
    members: Annotated[tuple[Assignment, ...], Meta(max_length=MOST_QUEUES)]


class CommitOffsets(MachineInput, frozen=True, tag=8):
    """Of members of this generation, each for queues of its own; `member` is empty where a group has no
    members. An offset never goes back by it."""

    group: Name
    generation: Annotated[int, Meta(ge=0)]
    members: Annotated[tuple[tuple[str, Offsets], ...], Meta(max_length=MOST_QUEUES)]


class ResetOffsets(MachineInput, frozen=True, tag=9):
    """Forwards or back. A generation begins, so that no commit from before moves them again."""

    group: Name
    offsets: Offsets


class SkipDelayed(MachineInput, frozen=True, tag=10):
    """Messages of a delay level that retention has taken away are not waited for."""

    level: Annotated[int, Meta(ge=1, le=18)]
    from_offset: Offset
    """Where the level begins now; else it is refused."""
    to_offset: Offset


class ReleaseDelayed(MachineInput, frozen=True, tag=11):
    """Of a classic broker: of these delay levels all below the offset is copied to where it belongs.
    None goes back by it."""

    levels: Annotated[tuple[tuple[Annotated[int, Meta(ge=1, le=18)], Offset], ...], Meta(max_length=18)]


class ChangeUsers(MachineInput, frozen=True, tag=12):
    """Of a classic broker: changes users, roles and grants."""

    order: UserOrder
    secret: Annotated[bytes, Meta(max_length=KEY_BYTES)]
    """Drawn for this; counts in the first one."""


Command = (
    CreateTopic
    | UpdateTopic
    | DeleteTopic
    | TrimQueues
    | CreateGroup
    | DeleteGroup
    | Assign
    | CommitOffsets
    | ResetOffsets
    | SkipDelayed
    | ReleaseDelayed
    | ChangeUsers
)
FROM_CLIENTS = (CreateTopic, UpdateTopic, DeleteTopic, CreateGroup, DeleteGroup, ResetOffsets)
"""The others are the leader's own."""


class FreshnessProbe(MachineInput, frozen=True, tag=31):
    """Nothing but that the state is as new as the question."""


class TopicsQuestion(MachineInput, frozen=True, tag=32):
    topic: str = ""
    """Empty: all."""


class GroupsQuestion(MachineInput, frozen=True, tag=33):
    group: str = ""
    """Empty: all."""


Question = FreshnessProbe | TopicsQuestion | GroupsQuestion


class TopicRow(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    queues: int
    perm: int
    retention_ms: int
    begins: tuple[int, ...]


class GroupRow(msgspec.Struct, frozen=True, array_like=True):
    group: str
    generation: int
    members: tuple[Assignment, ...]
    offsets: tuple[OffsetRow, ...]
    resets: tuple[tuple[Name, QueueId, int], ...] = ()
    """(topic, queue, generation that began when it was reset last)."""


_T = TypeVar("_T")
_encode = msgspec.msgpack.Encoder().encode
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
decode_question = msgspec.msgpack.Decoder(Question).decode
_head = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])


def decode_command(body: bytes | memoryview) -> Command:
    """Raises msgspec.DecodeError, also for too deep nesting: on all members alike."""
    if nested_deeper(body):
        raise msgspec.DecodeError(REFUSAL)
    return _commands.decode(body)


_decoded: tuple[bytes, Command | None] = (b"", None)


def command_of_client(body: bytes) -> Command:
    """The same. The check, the audit and the handler of a command each decode it."""
    global _decoded
    last, command = _decoded
    if last is not body or command is None:
        command = decode_command(body)
        _decoded = body, command
    return command


def encode(message: MachineInput) -> bytes:
    return _encode(message)


def done(body: object = None) -> bytes:
    return _encode((0, body))


def refused(error: LedgerError) -> bytes:
    return _encode((error.code, str(error)))


def read_answer(answer: bytes, kind: type[_T]) -> _T:
    """Raises the machine's refusal, ProtocolViolation."""
    try:
        code, body = _head.decode(answer)
        if code == 0:
            return msgspec.msgpack.decode(body, type=kind)
        message = msgspec.msgpack.decode(body, type=str)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"no answer of the topics and groups: {error}") from None
    raise error_with(code, message, LedgerError)


def refusal_in(outcome: bytes | LedgerError) -> LedgerError | None:
    if isinstance(outcome, LedgerError):
        return outcome
    try:
        read_answer(outcome, object)
    except LedgerError as refusal:
        return refusal
    return None
