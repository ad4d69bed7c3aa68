"""DLedgerBroker: a member's broker: role, log, queues and groups, without sockets or threads.

    broker = DLedgerBroker(disk, root, config, topics=..., brokers=..., groups=...)
    broker.machines             go to the member
    broker.open(member, ...)    once it runs; then `tick` every TICK_MS and `role_changed`

A member's role alone decides its broker's role:

    leader              master, once every entry of earlier leaders is committed and dispatched here
    follower, candidate slave

A member that leads asks its machines one linearizable question: a majority confirms that it leads, an
entry of its term is committed, and so is all before it; the answer comes when that is applied. Until
then no message is accepted, so the machine of the messages covers the whole log. A master that loses its
majority commits and acknowledges nothing; this needs no clock.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self, cast

import msgspec
import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.broker import wire
from quorumlog.broker.broker_port import (
    BrokerPort,
    BrokerSession,
    PutQueue,
    Puts,
    QueueTable,
    ReadPool,
    RoleWatchers,
    WaitingPulls,
)
from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.dledger.message_machine import (
    BODY_OFFSET,
    Filled,
    LogResets,
    MessageMachine,
    MessageMachines,
    MessageStamper,
    QueueEndsAnswer,
    entries_of,
)
from quorumlog.broker.dledger.sessions import SendSessions, SessionReleases
from quorumlog.broker.errors import NotReplicated
from quorumlog.broker.group_commands import READ, WRITE, Command, FreshnessProbe, encode, refusal_in
from quorumlog.broker.groups.group_service import GroupService
from quorumlog.broker.groups.group_state import GROUPS, CheckedPuts
from quorumlog.broker.groups.rebalancer import DoneCallback, ResultCallback
from quorumlog.broker.message import (
    BLANK_BYTES,
    RETRY_PROPERTIES_BYTES,
    PutMessageResult,
    PutStatus,
    host_bytes,
)
from quorumlog.broker.offline.old_log import OldLog, OldState, OldTopic, piece_of, taken_over
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.commit_log import PutBatch
from quorumlog.broker.store.dispatch import MESSAGES
from quorumlog.broker.store.log_files import BrokerRole, LogRecords, PutRequest
from quorumlog.broker.store.message_store import wall_clock_ms
from quorumlog.broker.store.store_reader import StoreReader
from quorumlog.config import StoreConfig, TlsOptions, parse_address
from quorumlog.entry import AppendReceipt
from quorumlog.errors import (
    BadRequest,
    BodyTooLarge,
    CommandError,
    ConfigError,
    LeaderNotReady,
    LedgerError,
    NotLeader,
    ResultUnknown,
    StoreFailure,
)
from quorumlog.measures import Requests
from quorumlog.net.frame import Frame
from quorumlog.net.hello import BROKER
from quorumlog.net.limits import process_limits
from quorumlog.net.system import boot_ms
from quorumlog.net.tls import Tls
from quorumlog.node import AppendOutcome, MachineFactory, NodeHandle
from quorumlog.node.machine_driver import Answer
from quorumlog.server import Endpoint, LocalCluster
from quorumlog.server.free_ports import free_ports
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.version import DESCRIPTION
from quorumlog.wire.client_messages import ChangeUsersRequest, UsersRequest

log = logging.getLogger("quorumlog.broker")

ASK_TIMEOUT_MS = 10_000
TIMEOUT_MS = 5_000
RETRY_MS = 20
BATCH_BYTES = 16 << 20
"""Of one put at most; it need not fit into a file of the log."""


class RoleState(NamedTuple):
    role: BrokerRole
    """SYNC_MASTER, acknowledging messages that a majority holds; or SLAVE."""
    broker_id: int
    """0: the master; a slave's is the number in its member's id, and one."""
    term: int
    master_id: str
    """Member that leads, as far as is known; it may not be master yet. Empty: none is known."""

    @property
    def is_master(self) -> bool:
        return self.role is BrokerRole.SYNC_MASTER


def slave_id_of(member_id: str) -> int:
    """Raises ConfigError: a broker's id is made of the number in its member's."""
    digits = member_id[len(member_id.rstrip("0123456789")) :]
    if not digits:
        raise ConfigError(
            f"the member id {member_id!r} must end with a number, which gives the broker id: name"
            " members like n0, n1, n2"
        )
    return int(digits) + 1


@dataclass(eq=False)
class RolePassThrough:
    """On the loop."""

    _member: NodeHandle
    _member_id: str
    _filler: MessageStamper
    _machines: Collection[str]
    """Names of all that have to be up to date before the member is master."""
    _became: Callable[[RoleState], None]
    _asked_term: int | None = None
    _answers: dict[str, bytes] = field(default_factory=dict)
    why_not: str = ""
    """In a sentence, why a member that leads is not master yet."""

    def __post_init__(self) -> None:
        self.state = self._slave(0)

    def _slave(self, term: int, leader: str = "") -> RoleState:
        return RoleState(BrokerRole.SLAVE, slave_id_of(self._member_id), term, leader)

    def look(self) -> None:
        """In a turn of the member: whenever its role has changed, and every now and then."""
        if not self._member.is_up:
            self._become(self._slave(self.state.term))
            return
        raft, term = self._member.node().raft, self._member.leads_in
        leader = "" if raft.leader is None else raft.leader.member_id
        if self._filler.term is not None and self._filler.term != term:
            self._filler.end()
        if term is None:
            self._asked_term = None
            self.why_not = ""
            self._become(self._slave(raft.term, leader))
        elif self._filler.term == term:
            self._become(RoleState(BrokerRole.SYNC_MASTER, 0, term, self._member_id))
        else:
            self._become(self._slave(term, leader))
            if self._asked_term != term:
                self._ask(term)

    def _ask(self, term: int) -> None:
        self._asked_term = term
        self._answers.clear()
        for machine in self._machines:
            on_answer = partial(self._on_answer, term, machine)
            self._member.ask(machine, b"", ASK_TIMEOUT_MS, on_answer, self)

    def _on_answer(self, term: int, machine: str, answer: Answer) -> None:
        if self._asked_term != term or self._member.leads_in != term:
            return
        if isinstance(answer, LedgerError) and not isinstance(answer, CommandError):
            self.why_not = f"{machine}: {answer}"
            self._asked_term = None  # asked again at the next look
            return
        # A machine that refuses the question has applied what came before it all the same.
        self._answers[machine] = b"" if isinstance(answer, LedgerError) else answer[0]
        if len(self._answers) < len(self._machines):
            return
        ends = msgspec.msgpack.decode(self._answers[MESSAGES], type=QueueEndsAnswer)
        self.why_not = ""
        self._filler.begin(
            term,
            {QueueKey(topic, queue_id): end for topic, queue_id, end in ends.queues},
            ends.last_time_ms,
            ends.end_position,
        )
        self.look()

    def _become(self, state: RoleState) -> None:
        if state != self.state:
            self.state = state
            self._became(state)


@dataclass(frozen=True, slots=True)
class DLedgerCommitLog:
    """A `MessageLog`. A message is acknowledged once a majority has it on disk, so any next leader has
    it; `WAIT=false` does not change that. On the loop, but for reads."""

    _member: NodeHandle
    _filler: MessageStamper
    _machines: MessageMachines
    _refusal: Callable[[LedgerError], LedgerError]
    """An error of the log as a client of the broker is to have it."""
    _old_log: OldLog | None

    @property
    def min_offset(self) -> int:
        if self._old_log is not None:
            return self._old_log.first_position
        return self._member.node().store.begin.position

    @property
    def max_offset(self) -> int:
        return self._member.node().store.end.position

    @property
    def confirm_offset(self) -> int:
        """After the last committed message that is dispatched."""
        machine = self._machines.newest
        return 0 if machine is None else machine.end_position

    def put(self, requests: Sequence[PutRequest]) -> None:
        limit = self._append_limit_bytes()
        accepted = []
        for request in requests:
            size = len(request.records.buffer) + BODY_OFFSET
            if size > limit:
                size = int(request.records.sizes.max(initial=0)) + BODY_OFFSET
            if size > limit:
                request.done(
                    BodyTooLarge(
                        f"a record of {size - BODY_OFFSET} bytes is over the limit of"
                        f" {limit - BODY_OFFSET} (max_entry_bytes and segment_bytes, less the header)"
                    )
                )
            else:
                accepted.append(request)
        # With room for a retry in each message: one that a consumer could not send back would keep its
        # queue waiting, since a retry says in properties where the message belongs.
        turn = PutBatch(
            accepted,
            BATCH_BYTES + BLANK_BYTES,
            self._filler.takes,
            kept_property_bytes=RETRY_PROPERTIES_BYTES,
        )
        if turn.requests:
            self._member.enter_now(lambda: self._append(turn))

    def _append_limit_bytes(self) -> int:
        if not self._member.is_up:
            return BATCH_BYTES
        return self._member.node().config.storage.append_limit_bytes

    def _append(self, turn: PutBatch) -> None:
        batch = entries_of(turn.records)
        filled: list[Filled] = []

        def done(outcome: AppendOutcome) -> None:
            if not isinstance(outcome, AppendReceipt):
                error = self._refusal(outcome)
                for request in turn.requests:
                    request.done(error)
                return
            assert filled[0].first_index == outcome.first_index, (filled[0], outcome)
            self._answer(turn, filled[0])

        self._filler.checked = batch  # PutBatch has looked at it
        try:
            self._member.append(
                *(batch, MESSAGES, TIMEOUT_MS, done, self),
                filled=lambda place: filled.append(cast(Filled, place)),
                awaits_results=False,
            )
        finally:
            self._filler.checked = None

    @staticmethod
    def _answer(turn: PutBatch, place: Filled) -> None:
        starts, stops = turn.row_starts.tolist(), turn.row_ends.tolist()
        for request, start, stop in zip(turn.requests, starts, stops, strict=True):
            positions = place.positions[start:stop]
            result = PutMessageResult(
                PutStatus.PUT_OK,
                int(place.queue_offsets[start]),
                int(positions[0]),
                stop - start,
                place.time_ms,
                positions,
            )
            request.done(result)

    # ---------------------------------------------------------------- reading

    def read(self, position: int, stop_position: int) -> LogRecords | None:
        """One record: later ones follow entry headers, and are found through the queues."""
        size = int.from_bytes(self.read_bytes(position, 4), "big")
        if position + size > min(stop_position, self.confirm_offset) or not size:
            return None
        records = RecordBatch.contiguous(self.read_bytes(position, size), np.array([size]))
        return LogRecords(position, records, position + size)

    def read_bytes(self, position: int, size_bytes: int) -> bytes:
        old = b""
        if self._old_log is not None and position < self._old_log.end_position:
            old = self._old_log.read_bytes(position, size_bytes)
            position, size_bytes = position + len(old), size_bytes - len(old)
            if not size_bytes:
                return old
        return old + self._member.node().store.read_bytes(position, size_bytes)

    def stored_offset(self, key: QueueKey) -> int:
        """After the last message of a queue that any reader may have seen; unknown to a slave."""
        if self._filler.term is None:
            return (1 << 63) - 1
        return self._filler.next_offsets.get(key, 0)


class DLedgerBroker:
    """A `BrokerService`, the store that it serves, and the `GroupLog` of its groups. On the loop."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        config: MessageStoreConfig,
        *,
        member_id: str,
        brokers: Mapping[str, str],
        groups: GroupService,
        old_log: OldLog | None = None,
        wall_ms: Callable[[], float] = wall_clock_ms,
        token: Callable[[], bytes] = lambda: os.urandom(16),
    ) -> None:
        """`root`: for queues and index. `brokers`: address of each member's broker, by member id.
        `old_log`: the messages before the first entry. `token`: 16 random bytes. Raises ConfigError."""
        slave_id_of(member_id)
        self.member_id = member_id
        self.brokers = dict(brokers)
        self.topics_table = groups.topics
        self.config = config
        self.groups = groups
        self.disk = disk
        self.root = root
        self._resets = LogResets(lambda: self.member.node() if self.member.is_up else None)
        self.filler = MessageStamper(groups.topics.takes, self._leads_in, self._resets)
        self.machine_of_messages = MessageMachines(
            self.filler,
            lambda: MessageMachine(disk, root, config, self._grown, self._first_position, old_log),
        )
        self.releases = SessionReleases(self, token)
        self._sessions = SendSessions(self)
        self._wall_ms = wall_ms
        self.old_log = old_log
        self.member: NodeHandle
        self.puts: Puts
        self.reads: ReadPool
        self.waiting: WaitingPulls
        self.log: DLedgerCommitLog
        self.role: RolePassThrough
        self.requests = Requests()
        self._is_open = False
        self._watchers = RoleWatchers(self._role_response)
        self._reader: tuple[MessageMachine, StoreReader] | None = None

    @property
    def machines(self) -> Mapping[str, MachineFactory]:
        return {MESSAGES: self.machine_of_messages, **self.groups.machines}

    def open(
        self,
        member: NodeHandle,
        puts: Callable[[DLedgerCommitLog], Puts],
        reads: ReadPool,
        waiting: WaitingPulls,
    ) -> None:
        """The member runs."""
        self.member = member
        own = self.brokers.get(self.member_id)
        if own is not None:
            self.filler.store_host = host_bytes(*parse_address(own))
        self.role = RolePassThrough(
            member, self.member_id, self.filler, self.machines.keys(), self._became
        )
        self.log = DLedgerCommitLog(
            member, self.filler, self.machine_of_messages, self.refusal_of, self.old_log
        )
        self.puts = CheckedPuts(puts(self.log), self.topics_table)
        self.reads, self.waiting = reads, waiting
        self.groups.open(self, self.config.delays_ms())
        self._is_open = True
        self.role_changed()

    def role_changed(self) -> None:
        """That of the member, which is looked at in its next turn."""
        if self._is_open:
            self.member.enter(self.role.look)

    def _became(self, state: RoleState) -> None:
        log.info(
            "%s is %s (broker id %d) in term %d, master %s",
            self.member_id,
            state.role.value,
            state.broker_id,
            state.term,
            state.master_id or "unknown",
        )
        self._watchers.changed()
        self.groups.lead(state.is_master)

    def tick(self, now_ms: float) -> None:
        """Every `TICK_MS`. `now_ms`: a clock that continues while the machine sleeps."""
        self.role_changed()
        self.groups.tick(now_ms)

    def _grown(self, keys: list[QueueKey]) -> None:
        if self._is_open:
            self.waiting.grown(keys)

    def on_failure(self, failure: StoreFailure) -> None:
        """A read that failed: the member itself looks after its disk."""
        log.warning("a read of messages failed: %s", failure)

    def close(self) -> None:
        self._is_open = False

    def ended(self) -> None:
        """The member has stopped."""
        self.machine_of_messages.close()
        if self.old_log is not None:
            self.old_log.close()

    def _leads_in(self) -> int | None:
        return self.member.leads_in if self._is_open else None

    def _first_position(self) -> int:
        """Any thread."""
        return self.log.min_offset if self._is_open and self.member.is_up else 0

    # ---------------------------------------------------------------- as a store

    @property
    def store(self) -> DLedgerBroker:
        return self

    @property
    def queues(self) -> QueueTable:
        machine = self.machine_of_messages.newest
        return {} if machine is None else machine.queues

    @property
    def shown_topics(self) -> Mapping[str, int]:
        return self.topics_table.counts()

    @property
    def reader(self) -> StoreReader:
        """Of the messages dispatched on this member. Raises LeaderNotReady."""
        if not self._is_open or not self.member.is_up:
            raise LeaderNotReady("the member begins anew", retry_after_ms=100)
        machine = self.machine_of_messages.newest
        if machine is None:
            raise LeaderNotReady("the queues of this member are not open yet", retry_after_ms=50)
        if self._reader is None or self._reader[0] is not machine:
            reader = StoreReader(
                self.log,
                machine.queues,
                machine.index,
                self.topics_table.takes,
                self.log.stored_offset,
                lambda key: self._begin_in_log(key, self.topics_table.begin_to_read(key)),
                self._resets,
            )
            self._reader = machine, reader
        return self._reader[1]

    def begin_of(self, key: QueueKey) -> int | None:
        return self._begin_in_log(key, self.topics_table.begin(key))

    def _begin_in_log(self, key: QueueKey, begin: int | None) -> int | None:
        """The machine hears of what the log has dropped with the next message only."""
        queue = self.queues.get(key)
        if begin is None or queue is None:
            return begin
        return max(begin, queue.offset_at(self._first_position()))

    @property
    def dispatched_messages(self) -> int:
        """Since this process began."""
        machine = self.machine_of_messages.newest
        return 0 if machine is None else machine.dispatched_messages

    @property
    def cluster_id(self) -> str:
        return self.member.cluster_id if self.member.is_up else ""

    @property
    def store_host(self) -> bytes:
        return self.filler.store_host

    # ---------------------------------------------------------------- as a service

    def refusal_of(self, error: LedgerError) -> LedgerError:
        """With the address of the master's broker instead of its log's."""
        if not isinstance(error, NotLeader):
            return error
        return NotLeader(
            str(error),
            leader_id=error.leader_id,
            leader_address=self.brokers.get(error.leader_id or ""),
            retry_after_ms=error.retry_after_ms,
        )

    def request(self, session: BrokerSession, message: wire.AnyBrokerMessage, frame: Frame) -> bool:
        if isinstance(message, wire.RoleRequest):
            self._watchers.take(session, message)
        elif isinstance(message, wire.OldLogRequest):
            session.later(
                message,
                lambda: piece_of(self.old_log, message),
                lambda request_id, piece: (msgspec.structs.replace(piece, request_id=request_id), None),
            )
        elif isinstance(message, wire.ReplicaRequest | wire.FailoverRequest):
            # No violation: a client need not know what kind of broker it asks.
            raise NotReplicated(
                "--role dledger has neither slaves by hand nor a coordinator: its log elects"
            )
        elif isinstance(message, ChangeUsersRequest | UsersRequest):
            raise BadRequest(
                "the users of this broker are those of its log: name the ports of that in --servers"
            )
        elif isinstance(message, wire.SessionSendRequest | wire.OpenSessionRequest):
            self._sessions.request(session, message, frame)
        else:
            return self.groups.request(session, message)
        return True

    def lost(self, session: BrokerSession) -> None:
        self._watchers.lost(session)
        self.groups.lost(session)

    @property
    def master_address(self) -> str:
        """Of the broker that is master, or about to be, as far as is known; else empty."""
        return self.brokers.get(self.role.state.master_id, "")

    def _role_response(self, request_id: int) -> wire.RoleResponse:
        state = self.role.state
        return wire.RoleResponse(
            request_id=request_id,
            member_id=self.member_id,
            role=state.role.value,
            broker_id=state.broker_id,
            term=state.term,
            master=self.master_address,
            brokers=[
                (member_id, 0 if member_id == state.master_id else slave_id_of(member_id), address)
                for member_id, address in self.brokers.items()
            ],
        )

    def status(self, request_id: int) -> wire.BrokerStatusResponse:
        state = self.role.state
        problems = [process_limits().problem] if process_limits().problem else []
        min_offset = max_offset = flushed_offset = confirm_offset = 0
        flush = ""
        if self.member.is_up:
            node = self.member.node()
            problems += node.problems()
            end, durable = node.store.end, node.store.durable
            min_offset, max_offset, flushed_offset = self.log.min_offset, end.position, durable.position
            applied = {machine.name: machine.applied_index for machine in node.machines.status()}
            # The log may end with entries that are no messages.
            is_dispatched = applied.get(MESSAGES, -1) >= end.index
            confirm_offset = end.position if is_dispatched else self.log.confirm_offset
            flush = f"log: {node.config.storage.flush}"
        if self.role.why_not:
            problems.append(f"leads and is not master yet: {self.role.why_not}")
        queues = self.queues.items()
        usage = self.disk.usage(self.root)
        return wire.BrokerStatusResponse(
            request_id=request_id,
            version=DESCRIPTION,
            role=state.role.value,
            flush=flush,
            directory=self.root,
            min_offset=min_offset,
            max_offset=max_offset,
            flushed_offset=flushed_offset,
            confirm_offset=confirm_offset,
            dispatch_behind_bytes=max(max_offset - confirm_offset, 0),
            put_messages=self.dispatched_messages,
            put_bytes=0,
            topics=len({key.topic for key, _ in queues}),
            queues=len(queues),
            disk_used_ratio=usage.used_ratio,
            set_aside_files=0,
            set_aside_bytes=0,
            problems=problems,
            broker_id=state.broker_id,
            term=state.term,
            master=self.master_address,
        )

    # ---------------------------------------------------------------- GroupLog

    @property
    def is_up(self) -> bool:
        return self.member.is_up

    def propose(self, command: Callable[[], Command], on_result: ResultCallback) -> None:
        def appended(outcome: AppendOutcome) -> None:
            if isinstance(outcome, AppendReceipt):
                (result,) = outcome.results
                unknown = ResultUnknown("it is committed, and its result is unknown")
                on_result(unknown if result is None else result)
            else:
                on_result(self.refusal_of(outcome))

        def append() -> None:
            batch = EntryBatch.from_bodies([encode(command())])
            self.member.append(batch, GROUPS, TIMEOUT_MS, appended, self)

        self.member.enter(append)

    def ask(self, question: bytes, on_result: ResultCallback, session: BrokerSession) -> None:
        def on_answer(answer: Answer) -> None:
            on_result(self.refusal_of(answer) if isinstance(answer, LedgerError) else answer[0])

        member = self.member
        member.enter(lambda: member.ask(GROUPS, question, TIMEOUT_MS, on_answer, session), session)

    def confirm(self, on_done: DoneCallback, session: BrokerSession) -> None:
        self.ask(encode(FreshnessProbe()), lambda answer: on_done(refusal_in(answer)), session)

    def end_of(self, key: QueueKey) -> int:
        return self.filler.next_offsets.get(key, 0)

    def stored_offset(self, key: QueueKey) -> int:
        return self.log.stored_offset(key)

    def existing_queues(self, topic: str) -> int:
        return 0

    def due_clock_ms(self) -> float:
        """A time in milliseconds that this clock and those of a quorum have reached: one alone may jump.
        The log detects a jump of all. -1: too few have reported theirs."""
        log_ms = self.age_clock_ms()
        if log_ms >= 0 or not self.is_up:
            return log_ms
        return min(self._wall_ms(), self.member.node().raft.answers.quorum_clock_ms())

    def age_clock_ms(self) -> float:
        """The same for ages, for which it is not known either while the log does not believe it."""
        member = self.member
        return min(self._wall_ms(), member.node().log_clock_ms) if member.is_up else -1.0

    def not_master(self) -> LedgerError:
        member = self.member
        if member.is_up and (refusal := member.refusal_unless_leading()) is not None:
            return self.refusal_of(refusal)
        return LeaderNotReady(
            "the broker becomes master once all earlier messages are dispatched", retry_after_ms=RETRY_MS
        )


# ---------------------------------------------------------------- DLedgerEndpoint
# The broker's port on a member.


class DLedgerEndpoint(Endpoint):
    def __init__(
        self, broker: DLedgerBroker, listen: str, *, group: str | None = None, tls: Tls | None = None
    ) -> None:
        """`listen`: HOST:PORT; port 0: a free one. `tls`: None: it is plain. Raises ConfigError."""
        self._tls = tls
        self.broker = broker
        self.group = group
        self._listen = listen
        parse_address(listen)
        self._port: BrokerPort | None = None
        self.machines = broker.machines

    @property
    def address(self) -> str:
        """Where it listens."""
        assert self._port is not None, "the endpoint is not open"
        return self._port.listener.address

    async def open(self, member: NodeHandle) -> None:
        loop = asyncio.get_running_loop()
        port = BrokerPort(self.broker, self._listen, self._tick, member.ports, self._tls, self.access)
        self.broker.open(
            member, lambda message_log: PutQueue(message_log, loop), port.reads, port.waiting
        )
        await port.open()
        self._port = port
        member.ports[BROKER] = self.address
        log.info(
            "the broker listens on %s%s", self.address, port.listener.speaks, extra={"event": "listens"}
        )
        port.tick()

    def _tick(self) -> None:
        self.broker.tick(boot_ms())

    def role_changed(self) -> None:
        self.broker.role_changed()

    async def close(self) -> None:
        self._end()
        if self._port is not None:
            await self._port.close_connections()

    def abandon(self) -> None:
        self._end()
        if self._port is not None:
            self._port.listener.abort_connections()

    def _end(self) -> None:
        if self._port is not None:
            self._port.close()
        self.broker.close()

    def ended(self) -> None:
        if self._port is not None:
            self._port.ended()
            self._port = None
        self.broker.ended()


# ---------------------------------------------------------------- LocalBrokers
# Brokers on members of one process, for tests and for a first look.

SMALL_INDEX = MessageStoreConfig(max_hash_slot_num=10_000, max_index_num=40_000)
"""RocketMQ's index files take 420 MB of holes each."""


class LocalBrokers:
    """`with LocalBrokers(topics={"orders": 4}) as brokers: connect(brokers.servers)`. `cluster` is the
    `LocalCluster` below, whose members may be killed and restarted; `brokers` are by member id."""

    def __init__(
        self,
        members: int = 3,
        *,
        topics: Mapping[str, int] = MappingProxyType({}),
        config: MessageStoreConfig = SMALL_INDEX,
        groups: Callable[[str], GroupService | None] = lambda member_id: None,
        starts: bool = True,
        directory: str | Path | None = None,
        storage: StoreConfig | None = None,
        staging: bool = True,
        tls: Callable[[str], TlsOptions | None] = lambda member_id: None,
    ) -> None:
        """`groups`: of a member, by its id; None: the log begins with `topics`, each with so many
        queues, or with those of the store that was taken over. `directory`, `storage`, `staging`,
        `tls`: as of `LocalCluster`."""
        ports = free_ports(members)
        self.addresses = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports)}
        self.brokers: dict[str, DLedgerBroker] = {}
        self._topics = topics
        self._config = config
        self._starts = starts
        self._groups = groups
        self._folder = tempfile.TemporaryDirectory(prefix="quorumlog-broker-")
        self._tls = tls
        self.cluster = LocalCluster(
            members,
            endpoints=self._endpoints,
            directory=directory,
            storage=storage,
            staging=staging,
            tls=tls,
        )

    def _endpoints(self, member_id: str) -> list[DLedgerEndpoint]:
        disk, directory = OsDisk(), str(self.cluster.data_dir(member_id))
        old = taken_over(disk, directory)
        groups = self._groups(member_id)
        if groups is None:
            topics = [OldTopic(*each, READ | WRITE) for each in self._topics.items()]
            groups = GroupService(old=OldState(topics, [], {}) if old is None else old.state)
        broker = self.brokers[member_id] = DLedgerBroker(
            disk,
            str(Path(self._folder.name) / member_id),
            self._config,
            member_id=member_id,
            brokers=self.addresses,
            groups=groups,
            old_log=None if old is None else OldLog(disk, directory, old),
        )
        options = self._tls(member_id)
        tls = None if options is None else Tls(options)
        return [DLedgerEndpoint(broker, self.addresses[member_id], tls=tls)]

    @property
    def servers(self) -> str:
        """For `quorumlog.broker.connect`."""
        return ",".join(self.addresses.values())

    def start(self) -> None:
        """See `LocalCluster.start`."""
        self.cluster.start()

    def __enter__(self) -> Self:
        """They run, unless they are to be made of classic stores first: `starts` is False then."""
        if self._starts:
            self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.cluster.close()
        self._folder.cleanup()
