"""A broker's refusals in addition to a log's, with their codes on the wire (530-559)."""

from __future__ import annotations

from quorumlog.errors import LedgerError, OutcomeUnknown, Refused


class UnknownTopic(Refused):
    """The broker has no such topic, or the topic no such queue."""

    code = 530


class MessageIllegal(Refused):
    """Invalid message records: nothing of the request was written."""

    code = 531


class QueueOffsetOutOfRange(LedgerError):
    """A pull below the oldest message of a queue, or above its end; both are in the error."""

    code = 532

    def __init__(self, message: str = "", *, min_offset: int = -1, max_offset: int = -1) -> None:
        super().__init__(message)
        self.min_offset = min_offset
        self.max_offset = max_offset


class FlushDiskTimeout(OutcomeUnknown):
    """The messages are written, but were not synced in time: they may still be confirmed."""

    code = 533


class FlushSlaveTimeout(OutcomeUnknown):
    """The messages are written, but too few slaves acknowledged them in time."""

    code = 534


class InSyncReplicasNotEnough(Refused):
    """Fewer brokers are in sync than required: nothing was written."""

    code = 535
    is_elsewhere = True
    retriable = True


class StoreStopped(Refused):
    """The disk failed; the store refuses everything until it is restarted."""

    code = 536


class MessageDamaged(LedgerError):
    """The disk no longer holds a message as it was written."""

    code = 537


class NoSuchMessage(Refused):
    """No message begins at this offset of the commit log."""

    code = 538


class NotMaster(Refused):
    """This broker is a slave and accepts no messages; the message names the master."""

    code = 540
    is_elsewhere = True
    retriable = True


class StaleEpoch(Refused):
    """The broker has voted in a newer epoch, and refuses requests of an older one."""

    code = 541
    is_elsewhere = True


class NotReplicated(Refused):
    """The broker is neither master nor slave."""

    code = 542


class SwitchRefused(Refused):
    """The switch would or might lose acknowledged messages. Only changes that the error names were
    made."""

    code = 543


class CoordinatorUnreachable(LedgerError):
    """The coordinator did not answer: the request may have been carried out."""

    code = 550


class TopicExists(Refused):
    """A topic of this name exists with other settings."""

    code = 570


class UnknownConsumerGroup(Refused):
    """There is no consumer group of this name."""

    code = 571


class ConsumerGroupExists(Refused):
    """A consumer group of this name exists."""

    code = 572


class StaleGeneration(Refused):
    """The group's queues were reassigned: the offsets belong to an older generation, and none was
    committed."""

    code = 573


class UnknownGroupMember(Refused):
    """The group does not know this member, or has reassigned its queue: join again."""

    code = 574


class TopicNotPermitted(Refused):
    """The topic's permission does not allow to send to it, or to read from it."""

    code = 575


class NeedsReplicatedRole(Refused):
    """A classic broker has no producer sessions."""

    code = 576


class GroupInUse(Refused):
    """The group has members: stop them first."""

    code = 577


class TooManyNames(Refused):
    """The limit of topics (deleted ones included) or of groups is reached."""

    code = 578
