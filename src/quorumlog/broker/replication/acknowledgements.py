"""The in-sync set of a master and its acknowledgements."""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from quorumlog.broker.epochs import CopyList, held_offset
from quorumlog.broker.message import PutStatus
from quorumlog.broker.store.flush import FlushDone

# ----------------------------------------------------------------
# Who counts where somebody outside says it (`failover`), and what is known of a slave.
#
# An acknowledgement then needs every member of an in-sync set. Somebody who wants a slave out of it
# first stores the smaller set, then calls `Replica.wait_for`; somebody who wants one in first calls
# that, and stores the larger set once the slave `holds_confirmed`.


class Member(NamedTuple):
    """A wiped store returns under its id as another member: its acknowledgements do not count for the
    directory in the set, which may return, too."""

    id: str
    directory_id: str


InSyncSet = frozenset[Member]
"""The master included."""


@dataclass(frozen=True, slots=True)
class SlaveState:
    """A slave as its master knows it."""

    id: str
    directory_id: str
    is_connected: bool
    written_offset: int
    flushed_offset: int
    lag_bytes: int
    lag_ms: int
    """Since when it lacks something."""
    is_caught_up: bool
    """Connected, and lacks less than `ha_max_gap_not_in_sync` bytes and `ha_max_lag_not_in_sync` ms."""
    holds_confirmed: bool
    """It has acknowledged everything below `confirm_offset`. True of a slave that is waited for stays
    true."""
    release: str = ""
    """Empty: it did not say it."""

    @property
    def member(self) -> Member:
        return Member(self.id, self.directory_id)


# ---------------------------------------------------------------- Acknowledgements
# What slaves have acknowledged, and what follows: up to where the log is confirmed, and whether there
# are enough of them to take a message at all.
#
# Three rules, of which one holds while a run lasts:
#
# - by a register: every member of `in_sync_set` must have it; somebody outside decides who is one
# - by hand: the rule of epochs: enough of each list in force, with the begin of the run
# - without epochs (RocketMQ's dialect): any `in_sync_replicas` that have ever come
#
# A slave is a directory (`directory_id`): one that was wiped has acknowledged nothing.


@dataclass(slots=True)
class SlaveProgress:
    """One slave's."""

    id: str
    directory_id: str
    is_connected: bool = True
    written_offset: int = 0
    flushed_offset: int = 0
    acknowledged_offset: int = 0
    """The one of the two that counts as acknowledged."""
    release: str = ""
    """Empty: it did not say it."""
    heard_ms: float = -math.inf
    """By the master's clock: it followed still."""


@dataclass(slots=True)
class Acknowledgements:
    """`confirmed_offset` never falls."""

    own_directory_id: str
    in_sync_replicas: int
    """The master included. By hand the lists say it."""
    confirmed_offset: int
    in_sync_set: InSyncSet | None = None
    lists: tuple[CopyList, ...] = ()
    """In force; the newest last."""
    begun_at: int = 0
    """Where the run begins."""
    is_run_confirmed: bool = False
    """By hand: enough of each list have its begin, so that only the newest is asked since."""
    marks: dict[str, SlaveProgress] = field(default_factory=dict)
    own_offset: int = 0
    """Up to where the master itself has it as safely as it promises."""

    def connected(self, slave_id: str, directory_id: str) -> SlaveProgress:
        """A slave has come. Of one that is there already the new connection counts."""
        mark = self.marks.get(slave_id)
        if mark is None or mark.directory_id != directory_id:
            mark = self.marks[slave_id] = SlaveProgress(slave_id, directory_id)
        mark.is_connected = True
        return mark

    def report(self, mark: SlaveProgress, written: int, flushed: int, acknowledged: int) -> None:
        mark.written_offset = max(mark.written_offset, written)
        mark.flushed_offset = max(mark.flushed_offset, flushed)
        mark.acknowledged_offset = max(mark.acknowledged_offset, acknowledged)
        self.advance()

    def advance(self) -> None:
        held = self._held()
        if self.lists and not self.is_run_confirmed:
            if held < self.begun_at:
                return
            self.is_run_confirmed = True
            self.lists = (replace(self.lists[-1], needs_all=False),)
            held = self._held()
        self.confirmed_offset = max(self.confirmed_offset, held)

    def _held(self) -> int:
        """Up to where as many have it as the rule asks for; -1: too few have ever come."""
        offsets = {mark.directory_id: mark.acknowledged_offset for mark in self.marks.values()}
        if self.in_sync_set is None and not self.lists:
            found = [self.own_offset, *sorted(offsets.values(), reverse=True)]
            needed = max(self.in_sync_replicas, 1)
            return min(found[:needed]) if len(found) >= needed else -1
        offsets[self.own_directory_id] = self.own_offset
        if self.in_sync_set is None:
            return held_offset(self.lists, offsets, self.own_offset)
        if len(self._in_sync_ids()) < self.in_sync_replicas:
            return -1
        return min(offsets.get(member.directory_id, 0) for member in self.in_sync_set)

    def _in_sync_ids(self) -> frozenset[str]:
        """While a wiped store takes the place of what it was, both are members under one id."""
        return frozenset(member.id for member in self.in_sync_set or ())

    def sure_since_ms(self, now_ms: float) -> float:
        """With switching by an operator: since when no other broker can have led and had messages
        acknowledged, without --unsafe: too few of a list were not heard. -inf: never in this run."""
        heard_ms = {mark.directory_id: mark.heard_ms for mark in self.marks.values()}
        since_ms = now_ms
        for each in self.lists:
            others = each.directories - {self.own_directory_id}
            times = sorted((heard_ms.get(one, -math.inf) for one in others), reverse=True)
            wanted = len(each.members) - max(each.needed, each.promises)
            if wanted > 0:
                since_ms = min(since_ms, times[wanted - 1])
        return since_ms

    @property
    def waits_for_others(self) -> bool:
        if self.in_sync_set is not None:
            return True
        return any(each.copies > 1 for each in self.lists) or self.in_sync_replicas > 1

    def missing(self, there: set[str]) -> str:
        """Why a message is refused before it is written; empty: it is taken. `there`: directories that
        are in sync, the own one among them."""
        needed = self.in_sync_replicas
        if self.in_sync_set is not None:
            ids = self._in_sync_ids()
            if len(ids) >= needed:
                return ""
            words = (
                f"{len(ids)} replicas are in sync ({', '.join(sorted(ids))}), the master included, of"
            )
            return f"{words} {needed} (in_sync_replicas)"
        if not self.lists and len(there) < needed:
            return f"{len(there)} replicas are in sync, the master included, of {needed}"
        for each in self.lists:
            count, needed = len(each.directories & there), max(each.needed, each.copies)
            if count < needed:
                words = f"{count} replicas are in sync, the master included, of {needed}"
                return words + self._why(each, there)
        return ""

    def _why(self, copy_list: CopyList, there: set[str]) -> str:
        away = [peer.id for peer in copy_list.members if peer.directory_id not in there]
        others = {mark.id for mark in self.marks.values() if mark.directory_id in there}
        words = f" (of {', '.join(copy_list.ids)})"
        if away:
            words += f"; {' and '.join(sorted(away))} is not in sync"
        for each in sorted(others & set(away)):
            words += f": it is connected with another directory (quorumlog broker add --broker {each})"
        return words

    # ---------------------------------------------------------------- who counts

    def counts(self, slave: Member) -> bool:
        if self.in_sync_set is not None:
            return slave in self.in_sync_set
        return not self.lists or slave.directory_id in self.lists[-1].directories

    def holds(self, mark: SlaveProgress) -> bool:
        """True if it holds every acknowledged message, as far as known: a power loss may have lowered
        `confirmed_offset`, and earlier acknowledged messages are below the begin of the run."""
        return mark.acknowledged_offset >= max(self.confirmed_offset, self.begun_at)


class GroupTransferService:
    """Whoever put something waits here until enough slaves have it, or too long. Any thread. A request
    that waits delays no other: each is answered by its own offset."""

    def __init__(self, slave_timeout_ms: float, clock: Callable[[], float]) -> None:
        self._timeout_ms = slave_timeout_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, float, FlushDone]] = []
        """A heap of (end, number of the request, deadline, what is told the outcome)."""
        self._numbers = count()
        self._replicated_offset = 0
        self._is_open = True

    def submit(self, next_offset: int, done: FlushDone) -> None:
        deadline_ms = self._clock() + self._timeout_ms
        with self._lock:
            is_open, is_there = self._is_open, next_offset <= self._replicated_offset
            if is_open and not is_there:
                heapq.heappush(self._waiting, (next_offset, next(self._numbers), deadline_ms, done))
                return
        done(PutStatus.PUT_OK if is_open else PutStatus.FLUSH_SLAVE_TIMEOUT)

    def notify_transfer_some(self, replicated_offset: int) -> None:
        """Enough slaves have everything below."""
        there = []
        with self._lock:
            if not self._is_open:
                return
            self._replicated_offset = max(self._replicated_offset, replicated_offset)
            while self._waiting and self._waiting[0][0] <= self._replicated_offset:
                there.append(heapq.heappop(self._waiting)[-1])
        for done in there:
            done(PutStatus.PUT_OK)

    def expire(self, now_ms: float) -> None:
        with self._lock:
            late = [each for each in self._waiting if each[2] <= now_ms]
            if late:
                self._waiting = [each for each in self._waiting if each[2] > now_ms]
                heapq.heapify(self._waiting)
        for *_, done in late:
            done(PutStatus.FLUSH_SLAVE_TIMEOUT)

    def open(self, replicated_offset: int) -> None:
        """A master leads from here on."""
        with self._lock:
            self._is_open = True
            self._replicated_offset = replicated_offset

    def close(self) -> None:
        """Nothing is acknowledged from here on: pending messages get an unknown outcome."""
        with self._lock:
            self._is_open = False
            waiting, self._waiting = self._waiting, []
        for *_, done in waiting:
            done(PutStatus.FLUSH_SLAVE_TIMEOUT)
