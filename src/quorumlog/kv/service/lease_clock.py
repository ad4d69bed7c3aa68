"""Commands in batches, and leases whose time is up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt
from quorumlog.errors import LedgerError, OutcomeUnknown
from quorumlog.kv.errors import KeyValueError
from quorumlog.kv.requests.answers import RevokeAnswer, read_answer
from quorumlog.kv.requests.operations import Revoke, encode
from quorumlog.kv.store.keyspace import Lease
from quorumlog.kv.store.machine import MACHINE_NAME
from quorumlog.node import AppendOutcome, DoorMember

BATCH_COMMANDS = 1024
BATCH_BYTES = 2 << 20
TIMEOUT_MS = 5_000

Done = Callable[[bytes | LedgerError], None]
"""Gets what the machine answers, or the refusal of the log."""


class _Waiting(NamedTuple):
    body: bytes
    done: Done
    is_alone: bool


class CommandBatches:
    def __init__(self, member: DoorMember) -> None:
        self._member = member
        self._waiting: list[_Waiting] = []

    def add(self, body: bytes, done: Done, *, alone: bool = False) -> None:
        if not self._waiting:
            self._member.enter(self._append)
        self._waiting.append(_Waiting(body, done, alone))

    def discard(self) -> None:
        self._waiting.clear()

    def _append(self) -> None:
        waiting, self._waiting = self._waiting, []
        start = size_bytes = 0
        for place, each in enumerate(waiting):
            if place > start and (
                place - start >= BATCH_COMMANDS
                or size_bytes + len(each.body) > BATCH_BYTES
                or each.is_alone
                or waiting[place - 1].is_alone
            ):
                self._append_part(waiting[start:place])
                start, size_bytes = place, 0
            size_bytes += len(each.body)
        if waiting:
            self._append_part(waiting[start:])

    def _append_part(self, part: list[_Waiting]) -> None:
        def done(outcome: AppendOutcome) -> None:
            if not isinstance(outcome, AppendReceipt):
                for each in part:
                    each.done(outcome)
                return
            assert not outcome.failures, outcome.failures
            for each, result in zip(part, outcome.results, strict=True):
                assert result is not None
                each.done(result)

        batch = EntryBatch.from_bodies([each.body for each in part])
        self._member.append(batch, MACHINE_NAME, TIMEOUT_MS, done, self)


# ----------------------------------------------------------------
# LeaseClock: when the leader proposes that a lease ends. Nothing else ends one, so a lease never ends
# early by this clock, which goes on while the machine sleeps.
#
# Who becomes the leader gives every lease its full TTL. A keep-alive is no entry: it counts once a
# majority has confirmed the leader and the store has applied what was committed by then, from when it
# arrived.


Propose = Callable[[bytes, Done], None]


class LeaseClock:
    def __init__(self, propose: Propose) -> None:
        self._propose = propose
        self._leases: dict[int, Lease] = {}
        self._deadlines_ms: dict[int, float] = {}
        """Only while this member leads."""
        self._ending: dict[int, Lease] = {}
        """Whose end is proposed: nothing keeps them alive any more."""
        self._term: int | None = None

    @property
    def term(self) -> int | None:
        return self._term

    def lead(self, term: int | None, now_ms: float) -> None:
        """In which term this member leads, if it does; called as often as one likes."""
        if term == self._term:
            return
        self._term = term
        self._ending.clear()
        self._deadlines_ms.clear()
        if term is not None:
            for number, lease in self._leases.items():
                self._deadlines_ms[number] = now_ms + lease.ttl_ms

    def begins(self, leases: dict[int, Lease], now_ms: float) -> None:
        self._leases = dict(leases)
        term, self._term = self._term, None
        self.lead(term, now_ms)

    def granted(self, number: int, lease: Lease, now_ms: float) -> None:
        self._leases[number] = lease
        if self._term is not None:
            self._deadlines_ms[number] = now_ms + lease.ttl_ms

    def ended(self, number: int) -> None:
        self._leases.pop(number, None)
        self._deadlines_ms.pop(number, None)
        self._ending.pop(number, None)

    def keep_alive(self, number: int, term: int | None, arrived_ms: float) -> int:
        """The TTL, which runs from `arrived_ms`; 0: there is no such lease, or it is about to end.
        `term`: in which the leader was confirmed behind the arrival."""
        lease = self._leases.get(number)
        if lease is None or term is None or term != self._term or number in self._ending:
            return 0
        deadline_ms = arrived_ms + lease.ttl_ms
        self._deadlines_ms[number] = max(self._deadlines_ms.get(number, 0.0), deadline_ms)
        return lease.ttl_ms

    def left_ms(self, number: int, now_ms: float) -> int:
        return max(0, int(self._deadlines_ms.get(number, now_ms) - now_ms))

    def tick(self, now_ms: float) -> None:
        if self._term is None:
            return
        late = [number for number, at_ms in self._deadlines_ms.items() if at_ms <= now_ms]
        for number in late:
            del self._deadlines_ms[number]
            self._end(number, self._leases[number], self._term)

    def next_ms(self) -> float:
        return min(self._deadlines_ms.values(), default=float("inf"))

    def _end(self, number: int, lease: Lease, term: int) -> None:
        self._ending[number] = lease

        def proposed(outcome: bytes | LedgerError) -> None:
            if isinstance(outcome, bytes):
                with suppress(KeyValueError):  # somebody else has ended it
                    read_answer(outcome, RevokeAnswer)
                return
            if self._term != term or self._ending.get(number) is not lease:
                return
            if not isinstance(outcome, OutcomeUnknown):
                del self._ending[number]
            self._deadlines_ms[number] = 0.0  # once more

        self._propose(encode(Revoke(number, lease.granted_at)), proposed)
