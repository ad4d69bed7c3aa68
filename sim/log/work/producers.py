"""Producers of a simulated cluster: they repeat what is unknown, as the client's session does.

Now and then one is killed and connects again, while copies of what it has sent are still on their way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt
from quorumlog.errors import (
    AlreadyCommitted,
    LedgerError,
    NotLeader,
    ProducerExpired,
    ProducerFenced,
    SequenceGap,
)
from quorumlog.log_state.control_entries import TOKEN_BYTES, ProducerEpoch
from quorumlog.log_state.producers import MOST_BATCHES
from quorumlog.node.pending_appends import AppendOutcome, SessionPlace
from quorumlog.node.producer_sessions import ProducerConnected
from quorumlog.testing.machines import DIGEST_NAME, result_of
from quorumlog.testing.operations import PRODUCED, AcknowledgedSequence, ProducedBatch
from quorumlog.testing.promises import Violation

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster
    from quorumlog.testing.member import SimMember

T = TypeVar("T")
BETWEEN_MS = 150.0
TIMEOUT_MS = 1000


class SimProducer:
    def __init__(self, cluster: SimCluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._draw = cluster.stream(f"producer {name}")
        self._target = self._draw.choice(cluster.members).member_id
        self._life = 0
        """Its process, as it were; what an earlier one has sent may still arrive."""
        self._epoch: ProducerEpoch | None = None
        self._next_sequence = 0
        self._window: list[ProducedBatch] = []
        """From the oldest without a receipt on."""

    @property
    def is_settled(self) -> bool:
        """Nothing that it has sent is unknown."""
        return not self._life or (self._epoch is not None and not self._window)

    def work(self) -> None:
        self._begin()
        self._go_on()

    def _go_on(self) -> None:
        self._cluster.at(self._draw.expovariate(1 / BETWEEN_MS), self._go_on)
        if self._cluster.is_faulty and self._draw.random() < 0.03:
            self._cluster.trace.count("producer: killed")
            self._begin()
        elif self._cluster.clients_work and self._epoch and len(self._window) < MOST_BATCHES:
            self._produce(self._epoch)

    def _begin(self) -> None:
        self._life += 1
        self._epoch, self._window = None, []
        self._connect(self._draw.randbytes(TOKEN_BYTES), None)

    # ---------------------------------------------------------------- connect

    def _connect(self, token: bytes, ends: ProducerEpoch | None) -> None:
        life, done = self._life, list[object]()
        known = max((r.sequence for r in self._acknowledged()), default=-1)

        def hear(outcome: ProducerConnected | LedgerError) -> None:
            if not done and life == self._life:
                done.append(outcome)
                self._connected(token, ends, outcome, known)

        def ask() -> None:
            if done or life != self._life:
                return
            self._send(
                lambda member, on_outcome: member.node.sessions.connect(
                    self.name, token, ends, member.node.deadline_ms(TIMEOUT_MS), on_outcome, self
                ),
                hear,
            )
            self._cluster.at(self._draw.uniform(200, 2000), ask)

        ask()

    def _acknowledged(self) -> list[AcknowledgedSequence]:
        return [
            reported
            for reported in self._cluster.operations.reported_sequences
            if reported.producer == self.name
        ]

    def _connected(
        self,
        token: bytes,
        ends: ProducerEpoch | None,
        outcome: ProducerConnected | LedgerError,
        known: int,
    ) -> None:
        if isinstance(outcome, ProducerExpired):
            self._must_not("its session is gone", outcome)
        if isinstance(outcome, LedgerError):
            self._elsewhere(outcome)
            again = None if isinstance(outcome, ProducerExpired) else ends
            life = self._life
            self._cluster.at(
                self._draw.uniform(5, 100),
                lambda: self._connect(token, again) if life == self._life else None,
            )
            return
        if outcome.last_sequence < known:
            self._must_not(f"sequence {known} was in the log before", outcome)
        self._report(outcome.last_sequence)
        if not outcome.opened:
            self._connect(token, outcome.epoch)
            return
        self._cluster.trace.count("producer: connected")
        self._epoch, self._next_sequence = outcome.epoch, outcome.last_sequence + 1

    def _report(self, sequence: int) -> None:
        self._cluster.operations.reported_sequences.append(AcknowledgedSequence(self.name, sequence))

    # ---------------------------------------------------------------- append

    def _produce(self, epoch: ProducerEpoch) -> None:
        first, count = self._next_sequence, self._draw.randint(1, self._cluster.profile.batch_entries)
        self._next_sequence += count
        bodies = tuple(
            b"%s:%s:%d:%d" % (PRODUCED, self.name.encode(), self._life, first + at)
            for at in range(count)
        )
        machine = DIGEST_NAME if self._cluster.profile.runs_machines and first % 2 else ""
        batch = ProducedBatch(self.name, self._life, first, bodies, machine)
        self._cluster.operations.produced.append(batch)
        self._window.append(batch)
        self._append(batch, epoch)

    def _append(self, batch: ProducedBatch, epoch: ProducerEpoch) -> None:
        """Again and again until it is answered with a receipt, also by a process that was replaced."""
        if batch.receipts or (batch.life != self._life and self._draw.random() < 0.5):
            return
        self._cluster.at(self._draw.uniform(300, 3000), lambda: self._append(batch, epoch))
        self._append_once(batch, epoch)

    def _append_once(self, batch: ProducedBatch, epoch: ProducerEpoch) -> None:
        if batch.receipts:
            return
        place = SessionPlace(self.name, epoch, batch.first_sequence)
        is_next = bool(self._window) and batch is self._window[0]

        def ask(member: SimMember, on_outcome: Callable[[AppendOutcome], None]) -> None:
            entries = EntryBatch.from_bodies(batch.bodies)
            member.node.append(entries, TIMEOUT_MS, on_outcome, self, None, place, batch.machine)

        self._send(ask, lambda outcome: self._answered(batch, epoch, outcome, is_next))

    def _answered(
        self, batch: ProducedBatch, epoch: ProducerEpoch, outcome: AppendOutcome, is_next: bool
    ) -> None:
        """`is_next`: all before it had receipts when it was sent."""
        self._cluster.trace.count(f"producer: {type(outcome).__name__}")
        if isinstance(outcome, AppendReceipt):
            if batch.receipts:
                self._cluster.trace.count("producer: the same receipt again")
            if outcome.ranges:
                self._cluster.trace.count("producer: a receipt of two parts")
            batch.receipts.append(outcome)
            if batch.machine:
                self._check_results(batch, outcome)
            self._report(batch.first_sequence + len(batch.bodies) - 1)
            while self._window and self._window[0].receipts:
                self._window.pop(0)
            return
        self._elsewhere(outcome)
        if batch.life != self._life or batch.receipts:
            return
        if isinstance(outcome, ProducerFenced | ProducerExpired):
            self._must_not("nobody else has connected", outcome)
            self._begin()
        elif isinstance(outcome, SequenceGap) and is_next:
            self._must_not("what is in front of it was acknowledged", outcome)
            self._begin()
        elif isinstance(outcome, AlreadyCommitted):
            self._must_not(f"it is among the last {MOST_BATCHES} without a receipt", outcome)
            self._begin()
        elif self._draw.random() < 0.7:
            self._cluster.at(self._draw.uniform(5, 50), lambda: self._append_once(batch, epoch))

    def _check_results(self, batch: ProducedBatch, receipt: AppendReceipt) -> None:
        """However often it was asked for: what the first one gave."""
        self._cluster.trace.count("producer: results")
        indices = [index for part in receipt.parts for index in part.indices]
        expected = map(result_of, indices, batch.bodies)
        left_out = self._cluster.operations.stepped_over
        if any(
            result != wanted and (result is not None or index not in left_out)
            for index, result, wanted in zip(indices, receipt.results, expected, strict=True)
        ):
            raise Violation(f"{batch} has the results of others: {receipt}")

    def _must_not(self, why: str, outcome: object) -> None:
        if not self._cluster.profile.is_async:  # which may lose what was acknowledged
            raise Violation(f"producer {self.name} was told {outcome!r}, but {why}")

    # ---------------------------------------------------------------- on the way

    def _elsewhere(self, error: LedgerError) -> None:
        if isinstance(error, NotLeader) and error.leader_id:
            self._target = self._cluster.place_leading_as(error.leader_id)
        else:
            self._target = self._draw.choice(self._cluster.members).place

    def _send(
        self, ask: Callable[[SimMember, Callable[[T], None]], None], hear: Callable[[T], None]
    ) -> None:
        """`ask(member, on_outcome)` once or twice, perhaps late; `hear` gets the outcome, or nothing."""
        member = self._cluster.member(self._target)
        process = member.process

        def on_outcome(outcome: T) -> None:
            if self._draw.random() > 0.05:
                self._cluster.at(self._draw.uniform(0.05, 2.0), lambda: hear(outcome))

        def arrive() -> None:
            if member.process == process and member.is_up:
                self._cluster.operations.of_producers += 1
                member.enter(lambda: ask(member, on_outcome))

        self._cluster.at(self._draw.uniform(0.05, 2.0), arrive)
        if self._draw.random() < 0.1:
            self._cluster.at(self._draw.uniform(50, 4000), arrive)
