"""LogClient: it appends what nobody else appends, reads, and writes control entries, for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumlog.batch import EntryBatch
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import DirectoryDamaged, LedgerError, ProtocolViolation, StoreFailure
from quorumlog.log_state.control_entries import (
    ControlBody,
    Hold,
    Keep,
    ReaderPosition,
    ReaderPositions,
    TimeMark,
)
from quorumlog.testing.clients import SimClient
from quorumlog.testing.machines import DIGEST_NAME
from sim.log.operations import ClientEnd, ClientRead

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster
    from quorumlog.testing.member import SimMember

READ_LIMIT_BYTES = 4096


class LogClient(SimClient):
    def __init__(self, cluster: SimCluster, name: str) -> None:
        super().__init__(cluster, name)
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
        position = ReaderPosition(draw.choice("abc"), index, hold, ends=draw.random() < 0.1)
        return ReaderPositions((position,))

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
                cluster.notify("read", read)
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

    def _ask_for_end(self) -> None:
        """Of every member that takes itself for the leader: one that was replaced must not answer."""
        for member in self._cluster.leading():
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
                self._cluster.notify("end_told", end)

        member.enter(lambda: member.node.confirm_leadership(confirmed))
