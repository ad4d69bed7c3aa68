"""Clients of a simulated cluster: they append what nobody else appends, read, and note what they saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from quorumlog.batch import EntryBatch
from quorumlog.config import DEFAULT_GROUP
from quorumlog.consensus.ready import Role
from quorumlog.entry import AppendReceipt
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import DirectoryDamaged, LedgerError, NotLeader, ProtocolViolation, StoreFailure
from quorumlog.log_state.control_entries import (
    ControlBody,
    Hold,
    Keep,
    ReaderPosition,
    ReaderPositions,
    TimeMark,
)
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.node.machine_driver import Answer
from quorumlog.node.pending_appends import AppendOutcome
from quorumlog.testing.machines import DIGEST_NAME
from quorumlog.testing.operations import ClientAnswer, ClientAppend, ClientEnd, ClientRead
from quorumlog.wire.client_messages import AppendRequest

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster
    from quorumlog.testing.member import SimMember

READ_LIMIT_BYTES = 4096


class SimClient:
    def __init__(self, cluster: SimCluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._random = cluster.random
        self._target = self._random.choice(cluster.members).member_id
        self._decoder = FrameDecoder()
        self._controls = cluster.stream(f"controls of {name}")
        self._conditions = cluster.stream(f"conditions of {name}")
        self._commands = cluster.stream(f"commands of {name}")

    def work(self) -> None:
        """One append and now and then a read, for ever."""
        profile = self._cluster.profile
        between_ms = 1000.0 * profile.clients / profile.appends_per_second
        self._cluster.at(self._random.expovariate(1 / between_ms), self.work)
        if not self._cluster.clients_work:
            return
        count = self._random.randint(1, profile.batch_entries)
        number = len(self._cluster.operations.appends) + 1
        bodies = tuple(self._body(number, at) for at in range(count))
        timeout_ms = self._random.choice((200, 1000, 5000))
        machine = DIGEST_NAME if profile.runs_machines and self._commands.random() < 0.6 else ""
        self.append(bodies, timeout_ms, expected_last=self._expected_last(), machine=machine)
        if self._random.random() < 0.3:
            self._read()
        if profile.writes_controls and self._controls.random() < 0.5:
            self._write_control()
        if profile.asks_for_end:
            self._ask_for_end()
        if profile.runs_machines and self._commands.random() < 0.3:
            self.ask(DIGEST_NAME, b"", lambda answer: None)

    # ---------------------------------------------------------------- append

    def append(
        self,
        bodies: tuple[bytes, ...],
        timeout_ms: int,
        *,
        expected_last: int | None = None,
        machine: str = "",
    ) -> ClientAppend:
        """Ask the member that seems to lead; what comes of it appears in the result as time passes."""
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
                _, request, batch = self._decoder.receive_data(frame)[0]
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

    def _expected_last(self) -> int | None:
        """Mostly the last that anybody was told of, as several writers of one log have it."""
        if not self._cluster.profile.appends_conditionally or self._conditions.random() < 0.3:
            return None
        last_index = self._cluster.operations.acknowledged_index
        return max(-1, last_index + self._conditions.choice((0, 0, 0, 0, 0, -1, 1)))

    def _body(self, number: int, at: int) -> bytes:
        limit_bytes = self._cluster.profile.body_bytes
        length = self._random.randint(0, limit_bytes) if self._random.random() < 0.3 else 0
        body = b"%d.%d." % (number, at) + bytes(length)
        limits = self._cluster.profile.append_limits
        if limits and len(body) > min(limits) - HEADER_BYTES:
            # As long as the strictest member takes it, or one byte longer.
            body = body[: min(limits) - HEADER_BYTES + length % 2]
        return body

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
                cluster.told("appended", append)
                if isinstance(outcome, NotLeader) and outcome.leader_id:
                    self._target = cluster.place_leading_as(outcome.leader_id)
                elif isinstance(outcome, LedgerError):
                    self._target = self._random.choice(cluster.members).place

        cluster.at(self._random.uniform(0.05, 2.0), hear)

    def _give_up(self, append: ClientAppend) -> None:
        if append.outcome is None and append.returned_ms < 0:
            append.returned_ms = self._cluster.now_ms
            self._target = self._random.choice(self._cluster.members).place

    # ---------------------------------------------------------------- control entries

    def _write_control(self) -> None:
        member, body = self._cluster.member(self._target), self._control_body()

        def write() -> None:
            try:
                member.node.propose_control(body)
            except LedgerError as error:
                self._cluster.trace.count(f"control entry: {type(error).__name__}")
            else:
                self._cluster.trace.count(f"control entry: {type(body).__name__}")

        member.enter(write)

    def _control_body(self) -> ControlBody:
        draw = self._controls
        index = draw.randint(0, max(0, self._cluster.operations.acknowledged_index))
        kind = draw.random()
        if kind < 0.3 and not self._cluster.profile.time_marks:
            return TimeMark(int(self._cluster.now_ms) + draw.randint(0, 1000))
        if kind < 0.5:
            return Keep(index, forced=draw.random() < 0.5)
        hold = draw.choice(tuple(Hold))
        said = ReaderPosition(draw.choice("abc"), index, hold, ends=draw.random() < 0.1)
        return ReaderPositions((said,))

    # ---------------------------------------------------------------- read

    def _read(self) -> None:
        member = self._random.choice(self._cluster.members)
        if member.is_up:
            member.enter(lambda: self._read_in_turn(member))

    def _read_in_turn(self, member: SimMember) -> None:
        node = member.node
        committed_index = node.committed_index
        behind = self._random.choice((1, 5, 1000))
        first_index = max(0, committed_index - self._random.randint(0, behind))

        def seen(result: EntryBatch | StoreFailure | LedgerError) -> None:
            if isinstance(result, EntryBatch):
                try:
                    result.check_bodies()
                except ProtocolViolation:
                    return  # as a client refuses it, and asks another member
                cluster = self._cluster
                cluster.operations.reads += 1
                read = ClientRead(member.member_id, first_index, result, committed_index, cluster.now_ms)
                cluster.told("read", read)
            elif isinstance(result, DirectoryDamaged):
                node.repairer.found(result)
            elif isinstance(result, StoreFailure) and not self._cluster.faults.disks.may_fail(member):
                raise result

        try:
            found = node.readable_range(first_index, -1, READ_LIMIT_BYTES)
        except LedgerError:
            return
        if isinstance(found, EntryBatch):
            seen(found)
        else:
            cold = found
            member.read_later(lambda: node.store.read_from(*cold)[1], seen)

    def ask(self, machine: str, question: bytes, heard: Callable[[Answer], None]) -> None:
        """Of the member that seems to lead; nobody hears anything if it ends meanwhile."""
        cluster, member = self._cluster, self._cluster.member(self._target)
        acknowledged_index = cluster.operations.acknowledged_index

        def answered(answer: Answer) -> None:
            what = type(answer).__name__ if isinstance(answer, LedgerError) else "answered"
            cluster.trace.count(f"question: {what}")
            if not isinstance(answer, LedgerError):
                told = ClientAnswer(member.member_id, acknowledged_index, answer[1])
                cluster.told("machine_answered", told)
            elif isinstance(answer, NotLeader) and answer.leader_id:
                self._target = cluster.place_leading_as(answer.leader_id)
            heard(answer)

        member.enter(lambda: member.node.machines.ask(machine, question, 1000, answered, self))

    def turn_elsewhere(self) -> None:
        """The member that it asked does not answer: any of them may lead by now."""
        self._target = self._random.choice(self._cluster.members).place

    def _ask_for_end(self) -> None:
        """Of every member that takes itself for the leader: one that was replaced must not answer."""
        for member in self._cluster.members:
            if member.is_up and member.node.raft.role is Role.LEADER:
                self._ask_leader_for_end(member)

    def _ask_leader_for_end(self, member: SimMember) -> None:
        operations = self._cluster.operations
        called_ms, acknowledged_index = self._cluster.now_ms, operations.acknowledged_index

        def confirmed(refusal: LedgerError | None) -> None:
            what = "told" if refusal is None else "refused"
            self._cluster.trace.count(f"end of the log: {what}")
            if refusal is None:
                committed_index = member.node.committed_index
                end = ClientEnd(member.member_id, called_ms, acknowledged_index, committed_index)
                self._cluster.told("end_told", end)

        member.enter(lambda: member.node.confirm_leadership(confirmed))
