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
from quorumlog.consensus import RaftNode, Role
from quorumlog.consensus.log import TermRuns
from quorumlog.consensus.membership import Membership
from quorumlog.consensus.messages import PushEntryRequest, PushType, VoteResponse, VoteResult
from quorumlog.consensus.ready import Envelope, PushOrder, Ready
from quorumlog.entry import NO_ENTRY, EntryId, EntryKind, Formation, HardState, Replica

Value = Any
NOOP = "noop"
ENTRY_BYTES = 100
"""What the harness pretends that an entry weighs."""


class FakeDisk:
    """What one data directory holds. Hard state, formation and cuts are synced as they are made;
    appended entries survive a power loss only up to `synced_count`."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.hard_state = HardState(0, None)
        self.formation = Formation()
        self.entries: list[tuple[int, Value]] = []
        self.synced_count = 0
        self.checkpoint_index = -1

    def lose_power(self, kept_unsynced: int = 0) -> None:
        self.entries = self.entries[: self.synced_count + kept_unsynced]
        self.synced_count = len(self.entries)
        if self.checkpoint_index >= len(self.entries):
            self.checkpoint_index = -1  # the log does not hold that entry: nothing is proven

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
        damaged: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.disk = disk
        self.replica = disk.replica
        self.async_mode = async_mode
        self.node = RaftNode(
            config,
            disk.replica,
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
            damaged=damaged,
        )
        disk.synced_count = len(disk.entries)
        held = [(k, value) for k, (_, value) in enumerate(disk.entries) if isinstance(value, Membership)]
        if held:
            self.node.members.on_read([(-1, Membership.of(disk.formation.founding)), *held])
        self.finishes_changes = True
        """A joint membership is ended as soon as the core says so."""
        self._send = send
        self._on_ready = on_ready
        self._promised: dict[EntryId, list[Value]] = {}
        self._unsynced: deque[tuple[int, int, tuple[Envelope, ...]]] = deque()
        self.syncing: tuple[int, int] | None = None
        """(number, entries written by then) of the flush that runs; a cut lowers the second."""
        self.holds_pushes = False
        """Pushes are read from files and wait for their turn, until the test calls `push`."""
        self.held_pushes: list[PushOrder] = []
        self.granted_reads: dict[int, int] = {}
        self.lost_committed = False

    # ---------------------------------------------------------------- inputs

    def propose(self, *values: Value, kind: EntryKind = EntryKind.NORMAL) -> EntryId:
        first = self.node.propose(len(values), kind, size_bytes=len(values) * ENTRY_BYTES)
        self._promised[first] = list(values)
        return first

    def propose_membership(self, membership: Membership) -> EntryId:
        entry = self.node.members.propose(membership, size_bytes=ENTRY_BYTES)
        self._promised[entry] = [membership]
        return entry

    # ---------------------------------------------------------------- effects

    def carry_out(self) -> list[Ready]:
        """Everything that is due now, in the order of ready.py; syncs are left to `begin_sync`."""
        done = []
        while (ready := self.node.ready()) is not None:
            done.append(ready)
            self._carry_out(ready)
            if self._on_ready is not None:
                self._on_ready(self, ready)
            due = self.node.members.due() if self.finishes_changes else None
            if due is not None:
                self.propose_membership(due)
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
            elif order.batch is None:
                values = self._promised.pop(EntryId(order.first_index, order.term))
                new = [(order.term, value) for value in values[: order.count]]
            else:
                skip = order.first_index - order.push_first_index
                new = list(order.batch[skip : skip + order.count])
            assert len(new) == order.count, order
            disk.entries += new
            for index, (_, value) in enumerate(new, order.first_index):
                if isinstance(value, Membership):
                    self.node.members.on_appended(index, value)
        for envelope in ready.messages:
            self._send(envelope)
        for push in ready.pushes:
            if self.holds_pushes:
                self.held_pushes.append(push)
            else:
                self.push(push)
        self._unsynced.append((ready.number, len(disk.entries), ready.messages_after_durable))

    def push(self, order: PushOrder) -> None:
        count = max(1, min(order.stop_index - order.first_index, order.limit_bytes // ENTRY_BYTES))
        entries = self.disk.entries[order.first_index : order.first_index + count]
        assert len(entries) == count, order
        assert self.disk.id_at(order.first_index - 1) == order.previous, order
        runs: list[tuple[int, int]] = []
        for index, (term, _) in enumerate(entries, order.first_index):
            if not runs or runs[-1][1] != term:
                runs.append((index, term))
        request = PushEntryRequest(
            sender=self.replica,
            term=order.term,
            push=PushType.APPEND,
            committed_index=order.committed_index,
            previous=order.previous,
            first_index=order.first_index,
            count=count,
            term_runs=tuple(runs),
            batch=tuple(entries),
        )
        self._send(Envelope(order.to, request))
        self.node.replication.on_pushed(order.to, order.first_index + count - 1, count * ENTRY_BYTES)

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
                if self.node.pushes.may_leave(envelope):
                    self._send(envelope)

    def report_written(self) -> None:
        """Async mode: what is written is reported at once, and a power loss may still take it."""
        while self._unsynced:
            number = self._unsynced[-1][0]
            answers = [envelope for waiting in self._unsynced for envelope in waiting[2]]
            self._unsynced.clear()
            self.node.on_durable(number)
            for envelope in answers:
                if self.node.pushes.may_leave(envelope):
                    self._send(envelope)
            self.carry_out()

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
            self.disk.checkpoint_index, min(self.node.committed_index, self.node.log.durable_index)
        )


def with_sender(envelope: Envelope, sender: Replica) -> Any:
    """What the receiving transport makes of a message: the sender is the connection's other end."""
    return msgspec.structs.replace(envelope.message, sender=sender)


class LoneMember(FakeMember):
    """n0 of a formed group whose other members are played by the test.

    `hear` delivers a message; what n0 says, and when, is in `sent` and `waiting_for_disk`.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        terms: tuple[int, ...] = (),
        term: int = 0,
        vote: str | None = None,
        committed: int = -1,
        async_mode: bool = False,
        damaged: tuple[tuple[int, int], ...] = (),
        **settings: Any,
    ) -> None:
        self.voters = tuple(Replica(f"n{i}", f"n{i}-d0") for i in range(size))
        disk = FakeDisk(self.voters[0])
        disk.formation = Formation(self.voters, self.voters)
        disk.entries = [(t, f"{k}@{t}") for k, t in enumerate(terms)]
        disk.checkpoint_index = committed
        voted_for = next((v for v in self.voters if v.member_id == vote), None)
        disk.hard_state = HardState(max((term, *terms)), voted_for)
        self.sent: list[Envelope] = []
        self.now_ms = 0.0
        self.readys: list[Ready] = []
        settings = {
            "min_vote_interval_ms": 100,
            "max_vote_interval_ms": 100,
            "commit_delay_ms": 0,
            **settings,
        }
        super().__init__(
            disk,
            tuple(voter.member_id for voter in self.voters),
            config=ConsensusConfig(**settings),
            seed=1,
            now_ms=0.0,
            send=self.sent.append,
            async_mode=async_mode,
            on_ready=lambda _, ready: self.readys.append(ready),
            damaged=damaged,
        )
        for voter in self.voters[1:]:
            self.node.on_connected(voter)
        self.carry_out()

    def peer(self, i: int) -> Replica:
        return self.voters[i]

    def take_place_of(self, i: int, directory_id: str) -> Replica:
        """Another directory is connected under the name of a voter, whose connection is lost."""
        replica = Replica(f"n{i}", directory_id)
        self.node.on_connection_lost(self.voters[i], is_gone=False)
        self.node.on_connected(replica)
        return replica

    def pass_ms(self, milliseconds: float) -> list[Any]:
        """Time passes; returns what n0 said."""
        self.now_ms += milliseconds
        return self._turn(lambda: self.node.advance(self.now_ms))

    def hear(self, i: int, message: Any, **more: Any) -> list[Any]:
        """n0 gets a message of n<i>; returns what it says at once."""
        message = msgspec.structs.replace(message, sender=self.voters[i])
        return self._turn(lambda: self.node.step(message, **more))

    def act(self, act: Callable[[], Any]) -> list[Any]:
        """Anything else that n0 is asked for; returns what it said."""
        return self._turn(act)

    def sync_now(self) -> list[Any]:
        """The disk catches up; returns what had waited for it."""
        return self._turn(self.sync)

    def _turn(self, act: Callable[[], Any]) -> list[Any]:
        start = len(self.sent)
        act()
        self.carry_out()
        return [envelope.message for envelope in self.sent[start:]]

    def to(self, i: int, kind: type) -> list[Any]:
        """Everything of this kind that n0 has said to n<i>."""
        return [e.message for e in self.sent if e.to == self.voters[i] and isinstance(e.message, kind)]

    def lead(self) -> LoneMember:
        """n0 wins the next term with everybody's help, and its no-op is on its disk."""
        self.pass_ms(100)
        self.pass_ms(100)
        for pre_vote in (True, False):
            for i in range(1, len(self.voters)):
                term = self.node.term
                vote_term = term + 1 if pre_vote else term
                if self.node.role is not Role.LEADER:
                    self.hear(
                        i,
                        VoteResponse(
                            term=term, vote_term=vote_term, pre_vote=pre_vote, result=VoteResult.ACCEPT
                        ),
                    )
                if self.node.term != term:
                    break
        assert self.node.role is Role.LEADER, self.node.status()
        self.sync_now()
        return self
