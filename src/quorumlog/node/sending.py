"""Sending to other members: pushes with their bytes, starts of the log, snapshots."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.config import MIB
from quorumlog.consensus.messages import (
    InstallRequest,
    InstallResponse,
    InstallResult,
    PushEntryRequest,
    PushType,
    SnapshotRequest,
    SnapshotResponse,
)
from quorumlog.consensus.ready import Envelope, PushOrder, Role
from quorumlog.entry import EntryId, Replica, SnapshotId
from quorumlog.entry_header import CHAIN_OFFSET
from quorumlog.errors import (
    DirectoryDamaged,
    IndexOutOfRange,
    LedgerError,
    ProtocolViolation,
    RangeDamaged,
    StoreFailure,
)
from quorumlog.figures import now
from quorumlog.log_state.log_state import EMPTY
from quorumlog.node.ports import Member
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import LOG_ORIGIN, LogRange, LogStart
from quorumlog.store.state_files import START_NAME, encode_start

# ---------------------------------------------------------------- RecentBatches
# The newest batches of the log in memory, so that hot pushes and reads touch no file.
#
# Holds what was appended last, bounded in bytes of memory; always a contiguous range that ends at the
# log end.

BATCH_BYTES = 1024
"""Memory of a batch without its entries: the objects around its buffer."""


class RecentRange(NamedTuple):
    batch: EntryBatch
    previous_chain: int
    """chain_crc of the entry before the first."""


class RecentBatches:
    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes`: of memory; the newest batch is held however large it is."""
        self._limit_bytes = limit_bytes
        self._firsts: list[int] = []
        """First index of each batch, ascending; parallel to `_ranges`."""
        self._ranges: list[RecentRange] = []
        self._bytes = 0
        self._taken: tuple[tuple[int, int, int], RecentRange] | None = None
        """What was taken last, with the arguments, until anything changes: followers and readers at the
        end of the log share one copy."""

    def add(self, batch: EntryBatch, previous_chain: int) -> None:
        first_index = batch.first_index
        assert not self._ranges or first_index == self.stop_index, (first_index, self.stop_index)
        self._taken = None
        self._firsts.append(first_index)
        self._ranges.append(RecentRange(batch, previous_chain))
        self._bytes += _held_bytes(batch)
        if self._bytes > self._limit_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        drop = 0
        while self._bytes > self._limit_bytes // 2 and drop < len(self._ranges) - 1:
            self._bytes -= _held_bytes(self._ranges[drop].batch)
            drop += 1
        del self._firsts[:drop], self._ranges[:drop]

    @property
    def stop_index(self) -> int:
        """One above the newest entry held; meaningless while empty."""
        return self._firsts[-1] + self._ranges[-1].batch.count

    def truncate_from(self, index: int) -> None:
        """Forget all entries from `index` on; of the batch that holds it the first part stays, so that
        the next batch continues it."""
        self._taken = None
        keep = bisect_left(self._firsts, index)
        self._bytes -= sum(_held_bytes(r.batch) for r in self._ranges[keep:])
        del self._firsts[keep:], self._ranges[keep:]
        if keep and index < self.stop_index:
            batch, previous_chain = self._ranges[-1]
            front = batch.slice(0, index - self._firsts[-1])
            self._bytes -= _held_bytes(batch) - _held_bytes(front)
            self._ranges[-1] = RecentRange(front, previous_chain)

    def take(self, first_index: int, stop_index: int, limit_bytes: int) -> RecentRange | None:
        """Entries from `first_index` on, below `stop_index`, within `limit_bytes` (at least one), in one
        buffer; None if `first_index` is not held. One batch is shared, several are copied: callers must
        not write to the result."""
        arguments = first_index, stop_index, limit_bytes
        if self._taken is not None and self._taken[0] == arguments:
            return self._taken[1]
        at = bisect_right(self._firsts, first_index) - 1
        if at < 0 or first_index >= self._firsts[at] + self._ranges[at].batch.count:
            return None
        parts: list[EntryBatch] = []
        previous_chain = self._previous_chain(at, first_index - self._firsts[at])
        left = limit_bytes
        while at < len(self._ranges) and first_index < stop_index:
            batch = self._ranges[at].batch
            skip = first_index - self._firsts[at]
            stop = min(batch.count, stop_index - self._firsts[at])
            part = batch if skip == 0 and stop == batch.count else batch.slice(skip, stop)
            if part.total_bytes > left and (parts or part.count > 1):
                fitting = int(np.searchsorted(part.starts + part.sizes, left, side="right"))
                fitting = max(fitting, 0 if parts else 1)
                if fitting:
                    parts.append(part.slice(0, fitting))
                break
            parts.append(part)
            left -= part.total_bytes
            first_index += part.count
            at += 1
        batch = parts[0] if len(parts) == 1 else EntryBatch.concatenate(parts)
        taken = RecentRange(batch, previous_chain)
        self._taken = arguments, taken
        return taken

    def _previous_chain(self, at: int, skip: int) -> int:
        if skip == 0:
            return self._ranges[at].previous_chain
        batch = self._ranges[at].batch
        start = int(batch.starts[skip - 1]) + CHAIN_OFFSET
        return int.from_bytes(batch.buffer[start : start + 4], "big")


def _held_bytes(batch: EntryBatch) -> int:
    return batch.total_bytes + BATCH_BYTES


# ---------------------------------------------------------------- CatchUpPace
# How much a follower far behind is sent while the leader takes appends.
#
# At full speed it cost 256 writers half of their throughput. So while appends come in, such a follower
# gets two bytes for each byte appended, which makes up for a lag in the time in which it arose, and a
# configured rate beside that; while none do, all that it can take.

BYTES_PER_APPENDED_BYTE = 2
SAVED_PIECES = 8
"""Saved up at least, plus the earnings of the largest turn of appends: it must outlast a burst."""
MOST_SAVED_BYTES = 64 * MIB
BUSY_MS = 50.0
"""The leader takes appends, if the last one is not older."""


class CatchUpPace:
    def __init__(self, member: Member, now_ms: float) -> None:
        self.configure(member.config.catch_up_bytes_per_second)
        self._saved_bytes = SAVED_PIECES * member.config.consensus.push_limit_bytes
        self.begin(now_ms, member.store.end.position)
        self._busy_until_ms = now_ms
        self._earned_bytes = 0.0
        """What a follower might have been sent while this member led, had it always been busy."""
        self._spent_bytes: dict[Replica, float] = {}
        """As far as what each was sent reaches on that scale; what it left unused counts up to
        `_saved_bytes`."""

    def configure(self, least_bytes_per_second: int) -> None:
        self._least_bytes_per_ms = least_bytes_per_second / 1000

    def begin(self, now_ms: float, end_position: int) -> None:
        """This member leads from now on: earlier entries, appended by others, are not its load."""
        self._now_ms = now_ms
        self._end_position = end_position

    def observe(self, now_ms: float, end_position: int) -> None:
        """Called in each turn of a leader. `end_position`: the log's end, which shows the bytes
        appended."""
        appended_bytes = end_position - self._end_position
        elapsed_ms = now_ms - self._now_ms
        self._now_ms = now_ms
        self._end_position = end_position
        self._earned_bytes += self._least_bytes_per_ms * elapsed_ms
        if appended_bytes > 0:
            earned_bytes = BYTES_PER_APPENDED_BYTE * appended_bytes
            self._earned_bytes += earned_bytes
            self._saved_bytes = max(self._saved_bytes, min(earned_bytes, MOST_SAVED_BYTES))
            self._busy_until_ms = now_ms + BUSY_MS

    def is_open(self, replica: Replica) -> bool:
        return self.next_ms(replica) <= self._now_ms

    def next_ms(self, replica: Replica) -> float:
        """When the next piece may be read for this follower, if nothing is appended until then."""
        ahead_bytes = self._spent_bytes.get(replica, 0.0) - self._earned_bytes
        if ahead_bytes <= 0 or self._now_ms >= self._busy_until_ms:
            return self._now_ms
        return min(self._now_ms + ahead_bytes / self._least_bytes_per_ms, self._busy_until_ms)

    def spend(self, replica: Replica, size_bytes: int) -> None:
        """A piece of this size is read for it now."""
        spent_bytes = self._earned_bytes - self._saved_bytes
        if self._now_ms < self._busy_until_ms:
            spent_bytes = max(spent_bytes, self._spent_bytes.get(replica, 0.0))
        self._spent_bytes[replica] = spent_bytes + size_bytes


# ---------------------------------------------------------------- Feedings
# How far followers are that are fed from the files of this leader, and how fast that goes.

LOOK_MS = 2_000.0
"""The rate is that of the last span of this length that is over."""
FORGOTTEN_MS = 30_000.0
"""A member that got nothing for so long is no longer being fed."""


class Feeding(NamedTuple):
    behind_bytes: int
    """Of the log, that it has still to be sent."""
    bytes_per_second: int
    """-1: it has only just begun."""


class _Span(NamedTuple):
    position: int
    """Where the log continues for it."""
    sent_ms: float
    begun_ms: float
    begun_position: int
    bytes_per_second: int


class Feedings:
    def __init__(self) -> None:
        self.spans: dict[Replica, _Span] = {}

    def on_sent(self, replica: Replica, stop_position: int, now_ms: float) -> None:
        """Entries up to there, out of files."""
        span = self.spans.get(replica)
        if span is None or stop_position < span.position or now_ms - span.sent_ms > FORGOTTEN_MS:
            self.spans[replica] = _Span(stop_position, now_ms, now_ms, stop_position, -1)
            return
        begun_ms, begun_position, rate = span.begun_ms, span.begun_position, span.bytes_per_second
        elapsed_ms = now_ms - begun_ms
        if elapsed_ms >= LOOK_MS:
            rate = round((stop_position - begun_position) * 1000 / elapsed_ms)
            begun_ms, begun_position = now_ms, stop_position
        self.spans[replica] = _Span(stop_position, now_ms, begun_ms, begun_position, rate)

    def on_caught_up(self, replica: Replica) -> None:
        """It receives newly appended entries, out of memory."""
        if self.spans:
            self.spans.pop(replica, None)

    def of(self, replica: Replica, end_position: int, now_ms: float) -> Feeding | None:
        """None: it is not being fed."""
        span = self.spans.get(replica)
        if span is None or span.position >= end_position or now_ms - span.sent_ms > FORGOTTEN_MS:
            return None
        rate = span.bytes_per_second
        if now_ms - span.sent_ms > 2 * LOOK_MS:
            rate = 0
        return Feeding(end_position - span.position, rate)


# ---------------------------------------------------------------- PushSender
# Finds the bytes that a dispatcher ordered and sends them to its follower.
#
# What was appended lately is pushed from memory, the rest is read from the segment files beside the
# loop, and at a pace (CatchUpPace).

NEVER = float("inf")


class PushSender:
    def __init__(self, member: Member, recent: RecentBatches, pace: CatchUpPace) -> None:
        self._replica, self._raft, self._host = member.replica, member.raft, member.host
        self._store = member.store
        self._recent = recent
        self._pace = pace
        self._paced_term = -1
        """The term in which this member led when it last looked at the pace."""
        self._on_damage = member.found
        self._feedings = Feedings()
        self._now_ms = 0.0
        self.waiting: list[PushOrder] = []
        """For entries in files, until their followers' turn comes; at most one for each follower."""

    def push(self, order: PushOrder) -> None:
        """Every order is reported exactly once, also one that time has overtaken."""
        recent = self._recent.take(order.first_index, order.stop_index, order.limit_bytes)
        if recent is not None:
            if self._feedings.spans:
                self._feedings.on_caught_up(order.to)
            self._send(order, recent.batch, recent.previous_chain, cold=False)
        elif self._pace.is_open(order.to):
            self._read(order)
        else:
            self.waiting.append(order)

    def observe(self, now_ms: float) -> None:
        """Counts bytes appended since the last call."""
        self._now_ms = now_ms
        if self._raft.role is Role.LEADER:
            if self._raft.term != self._paced_term:
                self._paced_term = self._raft.term
                self._pace.begin(now_ms, self._store.end.position)
            self._pace.observe(now_ms, self._store.end.position)

    def tick(self, now_ms: float) -> bool:
        """In each turn in which orders wait, when everything that it brought is appended."""
        self.observe(now_ms)
        waiting, self.waiting = self.waiting, []
        for order in waiting:
            if self._is_of_this_term(order):
                self.push(order)
            else:
                self._raft.replication.on_push_failed(order.to)
        return True

    def feeding(self, to: Replica) -> Feeding | None:
        """Of a follower that this leader sends entries out of files."""
        if self._raft.role is not Role.LEADER:
            return None
        return self._feedings.of(to, self._store.end.position, self._now_ms)

    def next_wakeup_ms(self) -> float:
        return min([self._pace.next_ms(order.to) for order in self.waiting])

    def _is_of_this_term(self, order: PushOrder) -> bool:
        """What it names is still this log: a leader cuts nothing."""
        return self._raft.role is Role.LEADER and self._raft.term == order.term

    def _read(self, order: PushOrder) -> None:
        self._host.read_later(
            lambda: read_sound(self._store, order.first_index, order.stop_index, order.limit_bytes),
            lambda result: self._range_read(order, result),
        )

    def _range_read(
        self, order: PushOrder, result: tuple[LogRange, EntryBatch] | StoreFailure | LedgerError
    ) -> None:
        if isinstance(result, DirectoryDamaged):
            self._on_damage(result)
        elif isinstance(result, StoreFailure):
            raise result
        if isinstance(result, IndexOutOfRange | RangeDamaged | DirectoryDamaged) or (
            not self._is_of_this_term(order)
        ):
            self._raft.replication.on_push_failed(order.to)
        elif isinstance(result, LedgerError):
            raise result
        else:
            log_range, batch = result
            self._pace.spend(order.to, batch.total_bytes)
            stop_position = log_range.position + log_range.size_bytes
            self._feedings.on_sent(order.to, stop_position, self._now_ms)
            self._send(order, batch, log_range.previous.chain, cold=True)

    def _send(self, order: PushOrder, batch: EntryBatch, previous_chain: int, *, cold: bool) -> None:
        message = PushEntryRequest(
            sender=self._replica,
            term=order.term,
            push=PushType.APPEND,
            committed_index=order.committed_index,
            previous=order.previous,
            first_index=order.first_index,
            count=batch.count,
            term_runs=batch.term_runs(),
            previous_chain=previous_chain,
            cold=cold,
            batch=batch,
        )
        if self._host.send(Envelope(order.to, message)):
            self._raft.replication.on_pushed(order.to, message.last_index, batch.total_bytes)
        else:
            self._raft.replication.on_push_failed(order.to)


def read_sound(
    store: LedgerStore, first_index: int, stop_index: int, limit_bytes: int
) -> tuple[LogRange, EntryBatch]:
    """Any thread. Bodies are checked: the receiver does so as well, but could not know whose disk it is.
    Raises as `LedgerStore.read_from`."""
    log_range, batch = store.read_from(first_index, stop_index, limit_bytes, once=True)
    try:
        batch.check_bodies()
    except ProtocolViolation as violation:
        raise DirectoryDamaged(
            f"{violation}, in data segment {log_range.segment_position:020d} of this member; run:"
            " quorumlog verify on its data directory",
            path=f"{log_range.segment_position:020d}",
            position=log_range.position,
            index=log_range.first_index,
            stop_index=log_range.stop_index,
        ) from violation
    return log_range, batch


# ---------------------------------------------------------------- SnapshotSender
# Pieces of the snapshots of this member's state machines, for members that ask for it.
#
# One piece at a time to each, read beside the loop, at the pace of pushes from files (CatchUpPace), on
# the data connection. Who asks says what it wants and from where on; nothing is remembered of it here
# but the newest request.

MOST_ASKING = 64
"""Members; of more the oldest request is forgotten, and comes again."""
LEAST_SNAPSHOT_PIECE_BYTES = 256
MOST_SNAPSHOT_PIECE_BYTES = 1 << 20
"""As large as a push, within these."""
QUESTION_FORGOTTEN_MS = 30_000


class SnapshotSender:
    def __init__(
        self, member: Member, pace: CatchUpPace, find: Callable[[SnapshotRequest], SnapshotId | None]
    ) -> None:
        """`find`: `StateMachineCaller.snapshot_for`."""
        self._replica, self._raft, self._host = member.replica, member.raft, member.host
        self._files = member.directory.snapshots
        self._piece_bytes = min(
            max(member.config.consensus.push_limit_bytes, LEAST_SNAPSHOT_PIECE_BYTES),
            MOST_SNAPSHOT_PIECE_BYTES,
        )
        self._pace = pace
        self._find = find
        self._requests: dict[Replica, SnapshotRequest] = {}
        self._reading: set[Replica] = set()
        self._sent: dict[Replica, tuple[SnapshotId, int, float]] = {}
        """(what, how much of it, when): for people."""
        self._feedings = Feedings()
        self._now_ms = 0.0

    def on_request(self, request: SnapshotRequest) -> None:
        self._requests.pop(request.sender, None)
        self._requests[request.sender] = request
        if len(self._requests) > MOST_ASKING:
            del self._requests[next(iter(self._requests))]

    def connection_lost(self, replica: Replica) -> None:
        self._requests.pop(replica, None)

    def tick(self, now_ms: float) -> None:
        self._now_ms = now_ms
        if not self._requests:
            return
        for replica in [each for each in self._requests if each not in self._reading]:
            if self._pace.is_open(replica):
                self._answer(self._requests.pop(replica), now_ms)

    def next_wakeup_ms(self) -> float:
        if not self._requests:
            return NEVER
        waiting = [self._pace.next_ms(each) for each in self._requests if each not in self._reading]
        return min(waiting, default=NEVER)

    def _answer(self, request: SnapshotRequest, now_ms: float) -> None:
        to, found = request.sender, self._find(request)
        if found is None or found != request.wanted:
            self._send(request, found, b"")
            return
        if to in self._raft.replication.installing:
            self._raft.on_install_answered(to, InstallResult.MORE)  # it makes progress
        self._sent[to] = found, request.offset, now_ms + QUESTION_FORGOTTEN_MS
        self._sent = {each: sent for each, sent in self._sent.items() if sent[2] > now_ms}
        self._reading.add(to)
        self._pace.spend(to, self._piece_bytes)
        read = partial(self._files.read_piece, found, request.offset, self._piece_bytes)

        def done(data: object) -> None:
            self._reading.discard(to)
            if isinstance(data, bytes):
                self._feedings.on_sent(to, request.offset + len(data), self._now_ms)
                self._send(request, found, data)
                if request.offset + len(data) == found.total_bytes:
                    self._sent.pop(to, None)  # it asks again if that does not arrive
            elif data is None:
                self._send(request, None, b"")
            else:
                assert isinstance(data, Exception), data
                raise data

        self._host.read_later(read, done)

    def _send(self, request: SnapshotRequest, found: SnapshotId | None, data: bytes) -> None:
        response = SnapshotResponse(
            sender=self._replica,
            term=self._raft.term,
            name=request.name,
            found=found,
            offset=request.offset,
            data=data,
        )
        self._host.send(Envelope(request.sender, response))

    def feeding(self, to: Replica) -> Feeding | None:
        """Of a member that gets a snapshot from here."""
        sent = self._sent.get(to)
        return None if sent is None else self._feedings.of(to, sent[0].total_bytes, self._now_ms)

    def problems(self, now_ms: float) -> list[str]:
        """The members that receive a snapshot, and their progress."""
        return [
            f"{replica.member_id} is given the snapshot of"
            f" {sent.name}{now(f'of entry {sent.index}, {offset} of {sent.total_bytes} bytes')}"
            for replica, (sent, offset, until_ms) in self._sent.items()
            if until_ms > now_ms
        ]


# ---------------------------------------------------------------- InstallSender
# The start of this log, for members whose logs end before it begins.
#
# Each piece names the snapshots of this member's machines, which the receiver asks for by itself
# (`SnapshotSender`): it takes over the start once it has them. The same are named while they are here:
# one that takes longer to arrive than the next takes to be made would never be whole.
#
# It goes in pieces on the data connection, one at a time to each member and at the pace of pushes from
# files (CatchUpPace). The receiver names where to go on, whatever connection brought what it has; once
# it has all it begins anew on the log that it got, and is compared again when it is back.

LEAST_PIECE_BYTES = 256
MOST_PIECE_BYTES = 64 << 10
"""As large as a push, within these."""
MOST_BACK_OFF = 16.0


@dataclass(slots=True)
class _Installation:
    begin: EntryId
    content: bytes
    offset: int = 0
    send_at_ms: float = 0.0
    """When the next piece goes, or the same again."""
    wait_ms: float = 0.0
    snapshots: tuple[SnapshotId, ...] = ()
    """Named last."""


class InstallSender:
    def __init__(
        self,
        member: Member,
        pace: CatchUpPace,
        snapshots: Callable[[int, tuple[SnapshotId, ...]], tuple[SnapshotId, ...]],
    ) -> None:
        """`snapshots`: see `StateMachineCaller.good_snapshots`."""
        config = member.config.consensus
        self._replica, self._raft, self._host = member.replica, member.raft, member.host
        self._store = member.store
        self._resend_ms = float(config.push_resend_ms)
        self._piece_bytes = min(max(config.push_limit_bytes, LEAST_PIECE_BYTES), MOST_PIECE_BYTES)
        self._pace = pace
        self._snapshots = snapshots
        self._installations: dict[Replica, _Installation] = {}
        self.installed: set[Replica] = set()
        """Everybody that was to get the start of this log, until somebody takes them out."""

    def tick(self, now_ms: float) -> None:
        installing = self._raft.replication.installing
        if not installing and not self._installations:
            return
        self.installed.update(installing)
        begin = self._store.begin.entry_id
        if begin != self._raft.begin:
            return  # the new start is on its way to the disk
        known = self._installations
        self._installations = {}
        for replica in installing:
            installation = known.get(replica)
            if installation is None or installation.begin != begin:
                named = () if installation is None else installation.snapshots
                start = self._store.start or LogStart(LOG_ORIGIN, EMPTY.encode())
                installation = _Installation(begin, encode_start(start), snapshots=named)
            self._installations[replica] = installation
            if now_ms >= installation.send_at_ms and self._pace.is_open(replica):
                self._send(replica, installation, now_ms)

    def _send(self, replica: Replica, installation: _Installation, now_ms: float) -> None:
        named = self._snapshots(installation.begin.index, installation.snapshots)
        installation.snapshots = named
        offset, total_bytes = installation.offset, len(installation.content)
        data = installation.content[offset : offset + self._piece_bytes]
        message = InstallRequest(
            sender=self._replica,
            term=self._raft.term,
            begin=installation.begin,
            committed_index=self._raft.committed_index,
            file=START_NAME,
            offset=offset,
            total_bytes=total_bytes,
            data=data,
            last=offset + len(data) == total_bytes,
            snapshots=named,
        )
        self._pace.spend(replica, len(data))
        self._host.send(Envelope(replica, message))
        most_ms = MOST_BACK_OFF * self._resend_ms
        installation.wait_ms = min(2 * installation.wait_ms or self._resend_ms, most_ms)
        installation.send_at_ms = now_ms + installation.wait_ms

    def on_response(self, response: InstallResponse, now_ms: float) -> None:
        installation = self._installations.get(response.sender)
        if (
            installation is None
            or response.term != self._raft.term
            or response.begin != installation.begin
        ):
            return
        if response.result is not InstallResult.MORE:
            del self._installations[response.sender]
        elif response.file != START_NAME or not 0 <= response.offset <= len(installation.content):
            return
        elif response.offset < len(installation.content):
            installation.offset = response.offset
            installation.send_at_ms, installation.wait_ms = now_ms, 0.0
        self._raft.on_install_answered(response.sender, response.result)

    def next_wakeup_ms(self) -> float:
        if not self._installations:
            return NEVER
        return min(
            max(each.send_at_ms, self._pace.next_ms(replica))
            for replica, each in self._installations.items()
        )

    def problems(self) -> list[str]:
        """Members that are being installed, with progress."""
        return [
            f"{replica.member_id} lacks entries that are no longer here: it is given the start of the"
            f" log{now(f'after entry {each.begin.index}, {each.offset} of {len(each.content)} bytes')}"
            for replica, each in self._installations.items()
        ]
