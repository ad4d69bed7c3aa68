"""A member without files or sockets: a RaftNode, a disk that forgets, and the order of effects.

`FakeMember` carries out a Ready exactly as `ready.py` demands, but the caller decides when a sync ends
and when a message arrives. Entries are (term, value) pairs; a push carries the list of them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from quorumlog.config import ConsensusConfig
from quorumlog.consensus import RaftNode
from quorumlog.consensus.messages import PushEntryRequest, PushType
from quorumlog.consensus.ready import Envelope, PushOrder, Ready
from quorumlog.consensus.term_runs import TermRuns
from quorumlog.entry import NO_ENTRY, EntryId, EntryKind, Formation, HardState, Voter

Value = Any
NOOP = "noop"
ENTRY_BYTES = 100
"""What the harness pretends that an entry weighs."""


class FakeDisk:
    """What one data directory holds. Hard state, formation and cuts are synced as they are made;
    appended entries survive a power loss only up to `synced_count`."""

    def __init__(self, voter: Voter) -> None:
        self.voter = voter
        self.hard_state = HardState(0, None)
        self.formation = Formation()
        self.entries: list[tuple[int, Value]] = []
        self.synced_count = 0
        self.checkpoint_index = -1

    def lose_power(self, kept_unsynced: int = 0) -> None:
        self.entries = self.entries[: self.synced_count + kept_unsynced]
        self.synced_count = len(self.entries)

    def truncate_from(self, index: int) -> None:
        del self.entries[index:]
        self.synced_count = min(self.synced_count, index)

    def runs(self) -> tuple[tuple[int, int], ...]:
        runs: list[tuple[int, int]] = []
        for index, (term, _) in enumerate(self.entries):
            if not runs or runs[-1][1] != term:
                runs.append((index, term))
        return tuple(runs)

    def id_at(self, index: int) -> EntryId:
        return EntryId(index, self.entries[index][0]) if index >= 0 else NO_ENTRY


class FakeMember:
    """One process: dies with everything except its disk."""

    def __init__(
        self,
        disk: FakeDisk,
        member_ids: tuple[str, ...],
        *,
        config: ConsensusConfig,
        seed: int,
        now_ms: float,
        send: Callable[[Envelope], None],
        async_mode: bool = False,
        on_ready: Callable[[FakeMember, Ready], None] | None = None,
    ) -> None:
        self.disk = disk
        self.voter = disk.voter
        self.async_mode = async_mode
        self.node = RaftNode(
            config,
            disk.voter,
            member_ids,
            formation=disk.formation,
            hard_state=disk.hard_state,
            term_runs=disk.runs(),
            before_begin=NO_ENTRY,
            ledger_end_index=len(disk.entries) - 1,
            committed_index=disk.checkpoint_index,
            async_mode=async_mode,
            random=random.Random(seed),
            now_ms=now_ms,
        )
        disk.synced_count = len(disk.entries)
        self._send = send
        self._on_ready = on_ready
        self._promised: dict[EntryId, list[Value]] = {}
        self._unsynced: deque[tuple[int, int, tuple[Envelope, ...]]] = deque()
        self.syncing: tuple[int, int] | None = None
        """(number, entries written by then) of the flush that runs; a cut lowers the second."""
        self.granted_reads: dict[int, int] = {}
        self.lost_committed = False

    # ---------------------------------------------------------------- inputs

    def propose(self, *values: Value, kind: EntryKind = EntryKind.NORMAL) -> EntryId:
        first = self.node.propose(len(values), kind)
        self._promised[first] = list(values)
        return first

    # ---------------------------------------------------------------- effects

    def carry_out(self) -> list[Ready]:
        """Everything that is due now, in the order of ready.py; syncs are left to `begin_sync`."""
        done = []
        while (ready := self.node.ready()) is not None:
            done.append(ready)
            self._carry_out(ready)
            if self._on_ready is not None:
                self._on_ready(self, ready)
        return done

    def _carry_out(self, ready: Ready) -> None:
        disk = self.disk
        if ready.hard_state is not None:
            assert ready.hard_state.term >= disk.hard_state.term
            disk.hard_state = ready.hard_state
        if ready.formation is not None:
            disk.formation = ready.formation
        if ready.truncate_from is not None:
            self.lost_committed |= ready.loses_committed
            assert ready.truncate_from < len(disk.entries), (ready.truncate_from, len(disk.entries))
            disk.truncate_from(ready.truncate_from)
            disk.checkpoint_index = min(disk.checkpoint_index, ready.truncate_from - 1)
            if self.syncing is not None:
                self.syncing = (self.syncing[0], min(self.syncing[1], ready.truncate_from))
        for order in ready.append:
            assert order.first_index == len(disk.entries), (order, len(disk.entries))
            if order.kind is EntryKind.NOOP:
                new = [(order.term, NOOP)]
            elif order.entries is None:
                values = self._promised.pop(EntryId(order.first_index, order.term))
                new = [(order.term, value) for value in values[: order.count]]
            else:
                skip = order.first_index - order.push_first_index
                new = list(order.entries[skip : skip + order.count])
            assert len(new) == order.count, order
            disk.entries += new
        for envelope in ready.messages:
            self._send(envelope)
        for push in ready.pushes:
            self._push(push)
        self._unsynced.append((ready.number, len(disk.entries), ready.messages_after_durable))

    def _push(self, order: PushOrder) -> None:
        count = max(1, min(order.stop_index - order.first_index, order.limit_bytes // ENTRY_BYTES))
        entries = self.disk.entries[order.first_index : order.first_index + count]
        assert len(entries) == count, order
        assert self.disk.id_at(order.first_index - 1) == order.previous, order
        runs: list[tuple[int, int]] = []
        for index, (term, _) in enumerate(entries, order.first_index):
            if not runs or runs[-1][1] != term:
                runs.append((index, term))
        request = PushEntryRequest(
            sender=self.voter,
            term=order.term,
            push=PushType.APPEND,
            committed_index=order.committed_index,
            previous=order.previous,
            first_index=order.first_index,
            count=count,
            term_runs=tuple(runs),
            entries=tuple(entries),
        )
        self._send(Envelope(order.to, request))
        self.node.on_pushed(order.to.member_id, order.first_index + count - 1, count * ENTRY_BYTES)

    # ---------------------------------------------------------------- the flush

    @property
    def can_sync(self) -> bool:
        return self.syncing is None and bool(self._unsynced)

    def begin_sync(self) -> None:
        assert self.syncing is None
        self.syncing = (self._unsynced[-1][0], len(self.disk.entries))

    def finish_sync(self) -> None:
        """The flush has ended: what was written when it began survives now."""
        assert self.syncing is not None
        number, written = self.syncing
        self.syncing = None
        self.disk.synced_count = max(self.disk.synced_count, min(written, len(self.disk.entries)))
        self.node.on_durable(number)
        while self._unsynced and self._unsynced[0][0] <= number:
            for envelope in self._unsynced.popleft()[2]:
                self._send(envelope)

    def sync(self) -> None:
        if self.syncing is not None:
            self.finish_sync()
        if self.can_sync:
            self.begin_sync()
            self.finish_sync()

    # ---------------------------------------------------------------- looking

    def runs_of_core(self) -> TermRuns:
        return self.node._state.runs

    def checkpoint(self) -> None:
        """Remember what is committed and on disk, as the node does every few seconds."""
        self.disk.checkpoint_index = max(
            self.disk.checkpoint_index, min(self.node.committed_index, self.node.durable_index)
        )


def with_sender(envelope: Envelope, sender: Voter) -> Any:
    """What the receiving transport makes of a message: the sender is the connection's other end."""
    return msgspec.structs.replace(envelope.message, sender=sender)
