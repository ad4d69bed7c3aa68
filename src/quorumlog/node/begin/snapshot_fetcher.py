"""SnapshotFetcher: snapshots that this member lacks come from others, one after the other.

    an installation     the leader names them; all are here before the old log makes way
    a machine           nothing here tells what it was at the begin of the log: whoever has a snapshot

This member asks for each piece, once it has written the one before, and names where it is. So a
connection that breaks costs one piece, and either end has one piece in memory. What has come is compared
whole, from the disk, before it counts (`ReceivedSnapshot`); it is adopted only where the log holds the
entry that it names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from quorumlog.consensus.messages import SnapshotRequest, SnapshotResponse
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import EntryKind, Replica, SnapshotId
from quorumlog.log_state.control_entries import LEVELS
from quorumlog.node.ports import Host
from quorumlog.store.disk import is_lack_of_space, reason_of
from quorumlog.store.snapshots import (
    ReceivedSnapshot,
    SnapshotDamaged,
    SnapshotFiles,
    SnapshotsUnavailable,
)

NEVER = math.inf
MOST_BACK_OFF = 16
MACHINES_LEVEL = LEVELS[EntryKind.MACHINE]
"""An earlier release would take a question about machines for nonsense, and close the connection."""
REFUSED_RETRY_MS = 1_000
"""Where nobody has one, or the disk has refused it, it is tried again."""


class Leading(Protocol):
    """What it asks of `RaftNode`."""

    @property
    def leader(self) -> Replica | None: ...
    @property
    def term(self) -> int: ...


class _Want(NamedTuple):
    name: str
    least_index: int
    exact: SnapshotId | None
    source: Replica | None
    """None: the leader first, then whoever is connected."""
    arrived: Callable[[], None]


class SnapshotFetcher:
    def __init__(
        self,
        replica: Replica,
        raft: Leading,
        files: SnapshotFiles,
        host: Host,
        resend_ms: float,
        tick_soon: Callable[[], None],
    ) -> None:
        """`tick_soon`: `tick` has something to do in the turn that is under way."""
        self._tick_soon = tick_soon
        self._replica = replica
        self._raft = raft
        self._files = files
        self._host = host
        self._resend_ms = resend_ms
        self._connected: list[Replica] = []
        self._wants: dict[str, _Want] = {}
        """By machine; an installation's take the place of a machine's own."""
        self._here: set[SnapshotId] = set()
        """Compared whole by this process."""
        self._want: _Want | None = None
        """Under way."""
        self._source: Replica | None = None
        self._id: SnapshotId | None = None
        """What the source has."""
        self._part: ReceivedSnapshot | None = None
        self._is_busy = False
        """With the disk."""
        self._ask_at_ms = 0.0
        self._wait_ms = 0.0
        self._rotation = 0
        self._now_ms = 0.0
        self._problem = ""
        self.lacks_space = False
        """The disk had no room for the piece that came last."""

    # ---------------------------------------------------------------- what is wanted

    def want(self, name: str, least_index: int, arrived: Callable[[], None]) -> None:
        """Of anybody."""
        known = self._wants.get(name)
        if known is None or (known.exact is None and known.least_index < least_index):
            self._wants[name] = _Want(name, least_index, None, None, arrived)

    def forget(self, name: str) -> None:
        """The machine runs, or looks anew."""
        known = self._wants.get(name)
        if known is not None and known.exact is None:
            del self._wants[name]

    def want_all(
        self, source: Replica, wanted: tuple[SnapshotId, ...], arrived: Callable[[], None]
    ) -> bool:
        """These very ones, for an installation. False: all are here."""
        missing = [each for each in wanted if each not in self._here]
        for each in missing:
            known = self._wants.get(each.name)
            if known is None or known.exact != each or known.source != source:
                self._wants[each.name] = _Want(each.name, each.index, each, source, arrived)
        return bool(missing)

    def forget_installation(self) -> None:
        self._wants = {name: want for name, want in self._wants.items() if want.exact is None}

    def connected(self, replica: Replica) -> None:
        self.connection_lost(replica)
        self._connected.append(replica)
        if replica == self._source:
            self._ask_at_ms, self._wait_ms = 0.0, 0.0

    def connection_lost(self, replica: Replica) -> None:
        self._connected = [each for each in self._connected if each != replica]

    # ---------------------------------------------------------------- the loop

    def tick(self, now_ms: float) -> None:
        self._now_ms = now_ms
        if self._is_busy or not (self._wants or self._part):
            return
        if self._want is None or self._wants.get(self._want.name) is not self._want:
            self._begin(next(iter(self._wants.values()), None))
        if self._want is None:
            return
        if self._part is None and self._id is not None:
            self._work(partial(ReceivedSnapshot, self._files, self._id))
        elif self._part is not None and self._part.is_whole:
            self._work(self._part.verify)
        elif now_ms >= self._ask_at_ms:
            self._ask(self._want)

    def next_wakeup_ms(self) -> float:
        return self._ask_at_ms if self._wants and not self._is_busy else NEVER

    def _begin(self, want: _Want | None) -> None:
        """What has come of the one before stays on the disk: it may be wanted again."""
        if self._part is not None:
            self._part.close()
        self._want, self._part, self._problem = want, None, ""
        self._id = None if want is None else want.exact
        self._ask_at_ms = self._wait_ms = 0.0
        self._choose_source()

    def _choose_source(self) -> None:
        want, leader = self._want, self._raft.leader
        if want is None or want.source is not None:
            self._source = None if want is None else want.source
            return
        too_old = self._host.members_below(MACHINES_LEVEL)
        asked = [each for each in self._connected if each.member_id not in too_old]
        others = [each for each in asked if each != leader]
        if leader in asked and leader is not None:
            others.insert(0, leader)
        self._source = others[self._rotation % len(others)] if others else None

    def _ask(self, want: _Want) -> None:
        if self._source is None or (want.source is None and self._source not in self._connected):
            self._id = want.exact
            self._choose_source()
        self._wait_ms = min(2 * self._wait_ms or self._resend_ms, MOST_BACK_OFF * self._resend_ms)
        self._ask_at_ms = self._now_ms + self._wait_ms
        if self._source is not None:
            request = SnapshotRequest(
                sender=self._replica,
                term=self._raft.term,
                name=want.name,
                least_index=want.least_index,
                wanted=self._id,
                offset=0 if self._part is None else self._part.size_bytes,
            )
            self._host.send(Envelope(self._source, request))

    def on_response(self, response: SnapshotResponse) -> None:
        want = self._want
        if want is None or response.sender != self._source or response.name != want.name:
            return
        if self._is_busy:
            return  # of a repetition; what is at work on the disk has the file open
        if response.found is None or response.found.index < want.least_index:
            self._go_elsewhere()
        elif self._id is None:
            self._id = response.found
            self._wait_ms = self._ask_at_ms = 0.0
        elif response.found != self._id:
            return  # of an earlier request
        elif self._part is not None and response.offset == self._part.size_bytes:
            if not response.data:
                return
            self._wait_ms = self._ask_at_ms = 0.0
            self._work(partial(self._part.write, response.offset, response.data))

    def _go_elsewhere(self) -> None:
        """The source has none, or not that one any more."""
        assert self._want is not None
        if self._part is not None:
            self._part.close()
        self._part, self._id = None, self._want.exact
        self._rotation += 1
        self._choose_source()
        self._wait_ms, self._ask_at_ms = 0.0, self._now_ms + REFUSED_RETRY_MS

    # ---------------------------------------------------------------- the disk

    def _work(self, step: Callable[[], ReceivedSnapshot | bool | None]) -> None:
        want, part = self._want, self._part
        self._is_busy = True

        def work() -> object:
            try:
                return step()
            except SnapshotsUnavailable as problem:
                if part is not None:
                    part.close()  # which says nothing of what has come, or lay there before
                return problem
            except (OSError, SnapshotDamaged) as problem:
                if part is not None and isinstance(problem, OSError) and is_lack_of_space(problem):
                    part.close()  # it goes on from what has come, once there is room
                elif part is not None:
                    part.drop()
                return problem

        def worked(result: object) -> None:
            self._is_busy = False
            if not isinstance(result, ReceivedSnapshot):  # to open a file needs no room yet
                self.lacks_space = isinstance(result, OSError) and is_lack_of_space(result)
            self._tick_soon()
            if isinstance(result, ReceivedSnapshot):
                self._part = result
            elif isinstance(result, SnapshotsUnavailable | SnapshotDamaged | OSError):
                self._refused(result)
            elif result is True:
                self._is_here(want)
            elif isinstance(result, Exception):
                raise result

        self._host.apply_later(work, worked)

    def _refused(self, problem: Exception) -> None:
        self._problem = f"a snapshot of another member could not be taken: {reason_of(problem)}"
        self._part = None
        self._wait_ms, self._ask_at_ms = 0.0, self._now_ms + REFUSED_RETRY_MS
        if self._want is not None:
            self._id = self._want.exact

    def _is_here(self, want: _Want | None) -> None:
        assert want is not None and self._part is not None
        self._here = {each for each in self._here if each.name != want.name} | {self._part.id}
        self._part = None
        if self._wants.get(want.name) is want:
            del self._wants[want.name]
        self._want, self._problem, self._rotation = None, "", 0
        want.arrived()

    # ---------------------------------------------------------------- what operators ask

    def problems(self) -> list[str]:
        return [self._problem] if self._problem else []
