"""Clients of a simulated cluster: they append unique entries, read, and record the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from quorumlog.batch import EntryBatch
from quorumlog.config import DEFAULT_GROUP
from quorumlog.entry import AppendReceipt
from quorumlog.errors import LedgerError, NotLeader
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.node.machine_driver import Answer
from quorumlog.node.pending_appends import AppendOutcome
from quorumlog.testing.operations import ClientAnswer, ClientAppend
from quorumlog.wire.client_messages import AppendRequest

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster


class SimClient:
    def __init__(self, cluster: SimCluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._random = cluster.random
        self._target = self._random.choice(cluster.members).member_id
        self._decoder = FrameDecoder()

    def append(
        self,
        bodies: tuple[bytes, ...],
        timeout_ms: int,
        *,
        expected_last: int | None = None,
        machine: str = "",
    ) -> ClientAppend:
        """Ask the apparent leader; the outcome appears in the result as time passes."""
        cluster = self._cluster
        number = len(cluster.operations.appends) + 1
        append = ClientAppend(
            number,
            bodies,
            self._target,
            cluster.now_ms,
            expected_last=expected_last,
            machine=machine,
            acknowledged_data_index=cluster.operations.acknowledged_index,
        )
        cluster.operations.appends.append(append)
        frame = b"".join(
            encode_frame(
                DEFAULT_GROUP,
                AppendRequest(
                    request_id=number,
                    timeout_ms=timeout_ms,
                    expected_last=expected_last,
                    machine=machine,
                ),
                EntryBatch.from_bodies(append.bodies),
            )
        )
        member = cluster.member(append.asked_member_id)
        process = member.process

        def arrive() -> None:
            # A connection leads to one process; its end takes along what was on its way.
            if member.process == process and member.is_up:
                _, request, batch, _ = self._decoder.receive_data(frame)[0]
                assert isinstance(request, AppendRequest), request
                assert batch is not None
                member.enter(
                    lambda: member.node.append(
                        batch,
                        request.timeout_ms,
                        lambda outcome: self._answered(append, outcome),
                        self,
                        request.expected_last,
                        machine=request.machine,
                    )
                )

        cluster.at(self._random.uniform(0.05, 2.0), arrive)
        cluster.at(1.5 * timeout_ms, lambda: self._give_up(append))
        return append

    def _answered(self, append: ClientAppend, outcome: AppendOutcome) -> None:
        cluster, operations = self._cluster, self._cluster.operations

        def hear() -> None:
            if append.outcome is None and append.returned_ms < 0:
                append.outcome = outcome
                append.returned_ms = cluster.now_ms
                what = f"append {append.number}: {type(outcome).__name__}"
                cluster.trace.note(cluster.now_ms, self.name, what, lambda: str(outcome))
                cluster.trace.count(f"append: {type(outcome).__name__}")
                if isinstance(outcome, AppendReceipt):
                    known_index = operations.acknowledged_index
                    operations.acknowledged_index = max(known_index, outcome.last_index)
                cluster.notify("appended", append)
                if isinstance(outcome, NotLeader) and outcome.leader_id:
                    self._target = cluster.place_leading_as(outcome.leader_id)
                elif isinstance(outcome, LedgerError):
                    self._target = self._random.choice(cluster.members).place

        cluster.at(self._random.uniform(0.05, 2.0), hear)

    def _give_up(self, append: ClientAppend) -> None:
        if append.outcome is None and append.returned_ms < 0:
            append.returned_ms = self._cluster.now_ms
            self._target = self._random.choice(self._cluster.members).place

    def ask(self, machine: str, question: bytes, on_answer: Callable[[Answer], None]) -> None:
        """Of the apparent leader; no answer if it ends meanwhile."""
        cluster, member = self._cluster, self._cluster.member(self._target)
        acknowledged_index = cluster.operations.acknowledged_index

        def settle(answer: Answer) -> None:
            what = type(answer).__name__ if isinstance(answer, LedgerError) else "answered"
            cluster.trace.count(f"question: {what}")
            if not isinstance(answer, LedgerError):
                client_answer = ClientAnswer(member.member_id, acknowledged_index, answer[1])
                cluster.notify("machine_answered", client_answer)
            elif isinstance(answer, NotLeader) and answer.leader_id:
                self._target = cluster.place_leading_as(answer.leader_id)
            on_answer(answer)

        member.enter(lambda: member.node.machines.ask(machine, question, 1000, settle, self))

    def turn_elsewhere(self) -> None:
        """The member that it asked does not answer: any of them may lead by now."""
        self._target = self._random.choice(self._cluster.members).place
