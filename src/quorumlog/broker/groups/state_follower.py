"""StateFollower: what the commands in a classic store make of topics and groups, on its master and its
slaves alike.

The topic %GROUPS% has two queues: commands, and snapshots of the state. Retention of the commit log
takes the oldest commands, but never the newest snapshot and what lies behind it.

    COMMANDS   8 bytes, drawn by who proposes it; one command
    SNAPSHOTS  [next command, position, part, parts, bytes]: commands below the next one are in it, and
               the others lie in the commit log from the position on; -1: from where the snapshot lies
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from quorumlog.broker.errors import QueueOffsetOutOfRange
from quorumlog.broker.groups.group_machine import GroupFeed, GroupMachine, loaded_state, saved_bytes
from quorumlog.broker.groups.group_state import GroupState
from quorumlog.broker.messages.message import StoredMessage
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.store_reader import StoreReader
from quorumlog.broker.wire.group_names import COMMANDS_QUEUE, GROUPS_TOPIC, SNAPSHOTS_QUEUE

log = logging.getLogger("quorumlog.broker")

COMMANDS = QueueKey(GROUPS_TOPIC, COMMANDS_QUEUE)
SNAPSHOTS = QueueKey(GROUPS_TOPIC, SNAPSHOTS_QUEUE)
TOKEN_BYTES = 8
MOST_MESSAGES, MOST_BYTES = 1_024, 1 << 20
_Part = tuple[int, int, int, int, bytes]
_part = msgspec.msgpack.Decoder(_Part)


class Snapshot(NamedTuple):
    next_command: int
    position: int
    """What is needed of the commit log begins there."""
    data: bytes


class News(NamedTuple):
    """Read from the store, to be taken in their order."""

    snapshot: Snapshot | None
    """To begin with anew; None: nothing is missing."""
    commands: list[StoredMessage]
    next_command: int
    needed_position: int
    """None of the commit log below is needed; -1: nothing of it is."""
    snapshots_end: int
    snapshot_bytes: int
    """Of the newest one."""
    is_anew: bool
    """What was carried out before is of no matter."""
    cuts: int
    """As often the log was cut before any of it was read."""


class Outcome(NamedTuple):
    token: bytes
    answer: bytes


class StateFollower:
    """`read` on one thread, which may wait for the disk; the rest on the loop."""

    def __init__(
        self, reader: StoreReader, feed: GroupFeed, cuts: Callable[[], int] = lambda: 0
    ) -> None:
        """`reader` hides no topic. `cuts`: how often the log was cut; with --unsafe commands that were
        carried out may be among what is gone, and others come under their numbers."""
        self._reader = reader
        self._count_cuts = cuts
        self._cuts = cuts()
        self._feed = feed
        self.machine = GroupMachine(feed)
        self.next_command: int | None = None
        """None: nothing was read yet."""
        self.needed_position = -1
        self.since_snapshot = 0
        """Commands that no snapshot has."""
        self.snapshot_bytes = 0
        """Of the newest one."""
        self.last_position = -1
        """Of the last command that was carried out; -1: none was, since a snapshot."""
        self._snapshots_end = 0

    def read(self) -> News:
        """What was shown since. Raises MessageDamaged, StoreFailure."""
        cuts = self._count_cuts()
        is_anew = self.next_command is None or cuts != self._cuts
        snapshot, at = None, None if is_anew else self.next_command
        needed, (_, snapshots_end) = self.needed_position, self._bounds(SNAPSHOTS)
        if is_anew:
            needed = -1
        size_bytes = self.snapshot_bytes
        if at is None or snapshots_end != self._snapshots_end:
            newest = self.newest_snapshot()
            if newest is not None:
                needed, size_bytes = newest.position, len(newest.data)
            if at is None:
                snapshot, at = newest, 0 if newest is None else newest.next_command
        try:
            pulled = self._reader.pull(COMMANDS, at, MOST_MESSAGES, MOST_BYTES)
        except QueueOffsetOutOfRange as error:
            if at > error.max_offset:  # a member that is behind: it is shown yet
                return News(snapshot, [], at, needed, snapshots_end, size_bytes, is_anew, cuts)
            snapshot = self.newest_snapshot()
            at = error.min_offset
            if snapshot is not None and error.min_offset <= snapshot.next_command:
                at = snapshot.next_command
            else:
                log.error("%s: commands up to %d are missing, and no snapshot has them", COMMANDS, at)
            pulled = self._reader.pull(COMMANDS, at, MOST_MESSAGES, MOST_BYTES)
        commands = pulled.records.messages()
        if needed < 0 and commands:
            needed = commands[0].physical_offset
        end = pulled.next_offset
        return News(snapshot, commands, end, needed, snapshots_end, size_bytes, is_anew, cuts)

    def newest_snapshot(self) -> Snapshot | None:
        """The newest that is there as a whole."""
        low, stop = self._bounds(SNAPSHOTS)
        while stop > low:
            last = self._part_at(stop - 1)
            first = stop - 1 - last[2]
            if last[2] == last[3] - 1 and first >= low:
                parts = [self._part_at(at) for at in range(first, stop)]
                if all(each[:2] == last[:2] and each[2] == at for at, each in enumerate(parts)):
                    own = self._message_at(first).physical_offset
                    position = own if last[1] < 0 else min(own, last[1])
                    return Snapshot(last[0], position, b"".join(each[4] for each in parts))
            stop -= 1
        return None

    def _bounds(self, key: QueueKey) -> tuple[int, int]:
        queue = self._reader.queue(key)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    def _message_at(self, offset: int) -> StoredMessage:
        (message,) = self._reader.pull(SNAPSHOTS, offset, 1).records.messages()
        return message

    def _part_at(self, offset: int) -> _Part:
        part: _Part = _part.decode(self._message_at(offset).body)
        return part

    # ---------------------------------------------------------------- on the loop

    def take(self, news: News) -> list[Outcome]:
        """What the commands answer, by who proposed them. Raises ProtocolViolation."""
        if news.is_anew:
            self.machine.state = self._feed.begun
        if news.snapshot is not None:
            self.machine.state = loaded_state(news.snapshot.data)
        if news.is_anew or news.snapshot is not None:
            self.since_snapshot, self.last_position = 0, -1
        self._cuts = news.cuts
        if news.snapshots_end != self._snapshots_end:
            self.since_snapshot = 0
        outcomes = []
        for message in news.commands:
            token, command = message.body[:TOKEN_BYTES], message.body[TOKEN_BYTES:]
            outcomes.append(Outcome(token, self.machine.carry_out(command)))
            self.last_position = message.physical_offset
            self.since_snapshot += 1
        self.next_command = news.next_command
        self.needed_position = news.needed_position
        self._snapshots_end, self.snapshot_bytes = news.snapshots_end, news.snapshot_bytes
        self._feed.tell(self.machine.state)
        return outcomes

    def state_to_keep(self, commands_end: int, part_bytes: int) -> list[bytes]:
        """As messages of SNAPSHOTS. `commands_end`: of the whole log."""
        assert self.next_command is not None
        state: GroupState = self.machine.state
        data = saved_bytes(state)
        # Whatever is on its way was written behind the last one that was carried out.
        position = -1
        if self.next_command != commands_end:
            position = self.last_position if self.last_position >= 0 else self.needed_position
        parts = max(-(-len(data) // part_bytes), 1)
        return [
            msgspec.msgpack.encode(
                (
                    self.next_command,
                    position,
                    part,
                    parts,
                    data[part * part_bytes : (part + 1) * part_bytes],
                )
            )
            for part in range(parts)
        ]

    @property
    def is_of_the_log(self) -> bool:
        """What was carried out is still in it."""
        return self._cuts == self._count_cuts()

    @property
    def holds_from(self) -> int:
        """What retention has to leave of the commit log begins there."""
        if self.next_command is None:
            return 0
        return self.needed_position if self.needed_position >= 0 else sys.maxsize
