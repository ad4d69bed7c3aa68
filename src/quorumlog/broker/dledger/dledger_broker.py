"""DLedgerBroker: a member's broker: log, queues, role and what extends it, without sockets or threads.

broker = DLedgerBroker(disk, root, config, topics=..., brokers=..., extensions=[...])
broker.machines             go to the member
broker.open(member, ...)    once it runs; then `tick` every TICK_MS and `role_changed`
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.dledger.broker_role import RolePassThrough, RoleState, slave_id_of
from quorumlog.broker.dledger.dledger_commit_log import DLedgerCommitLog
from quorumlog.broker.dledger.extension import BrokerExtension
from quorumlog.broker.dledger.log_resets import LogResets
from quorumlog.broker.dledger.message_entries import MACHINE_NAME
from quorumlog.broker.dledger.message_filler import MessageFiller
from quorumlog.broker.dledger.message_machine import Grown, MessageMachine, MessageMachines
from quorumlog.broker.errors import NotReplicated
from quorumlog.broker.message_store import TopicTable
from quorumlog.broker.messages.record import host_bytes
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.old_log import PIECE_BYTES, OldLog, encode_record
from quorumlog.broker.queues.consume_queue import ConsumeQueue
from quorumlog.broker.serving.broker_service import Puts, QueueTable, Reads, Waits
from quorumlog.broker.serving.broker_session import BrokerSession
from quorumlog.broker.store_reader import StoreReader
from quorumlog.broker.wire.broker_messages import (
    AnyBrokerMessage,
    FailoverRequest,
    OldLogRequest,
    OldLogResponse,
    ReplicaRequest,
    RoleNotice,
    RoleRequest,
    RoleResponse,
    StatusResponse,
)
from quorumlog.config import parse_address
from quorumlog.errors import BadRequest, LeaderNotReady, LedgerError, NotLeader, StoreFailure
from quorumlog.net.frame import Frame
from quorumlog.net.limits import process_limits
from quorumlog.node import DoorMember, MachineFactory
from quorumlog.store.disk import Disk
from quorumlog.version import DESCRIPTION

log = logging.getLogger("quorumlog.broker")


class _NoQueues:
    """Before the log binds the machine that has them."""

    def get(self, key: QueueKey) -> None:
        return None

    def items(self) -> list[tuple[QueueKey, ConsumeQueue]]:
        return []


class FixedTopics:
    """As the broker was started with; None: any queue that somebody sends to."""

    def __init__(self, topics: Mapping[str, int] | None) -> None:
        self._topics = topics

    def takes(self, key: QueueKey) -> bool:
        if self._topics is None:
            return key.queue_id >= 0
        return 0 <= key.queue_id < self._topics.get(key.topic, 0)

    def counts(self) -> Mapping[str, int]:
        return self._topics or {}

    def begin(self, key: QueueKey) -> int | None:
        return 0

    def begin_to_read(self, key: QueueKey) -> int | None:
        return 0


class DLedgerBroker:
    """A `BrokerService`, and the store that it serves. On the loop."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        config: MessageStoreConfig,
        *,
        member_id: str,
        brokers: Mapping[str, str],
        topics: TopicTable,
        extensions: Sequence[BrokerExtension] = (),
        old_log: OldLog | None = None,
    ) -> None:
        """`root`: for queues and index. `brokers`: where each member's broker is reached, by member id.
        `old_log`: what lies below the first entry. Raises ConfigError."""
        slave_id_of(member_id)
        self.member_id = member_id
        self.brokers = dict(brokers)
        self.topics_table = topics
        self.config = config
        self.extensions = tuple(extensions)
        self.disk = disk
        self.root = root
        self.grown: Grown = lambda keys: None
        """Told which queues have grown, on the thread that applies."""
        self._resets = LogResets(lambda: self.member.node() if self.member.is_up else None)
        self.filler = MessageFiller(
            lambda key: self.topics_table.takes(key), self._leads_in, self._resets
        )
        self.machine_of_messages = MessageMachines(
            disk,
            root,
            config,
            self.filler,
            lambda keys: self.grown(keys),
            self._first_position,
            old_log,
        )
        self.old_log = old_log
        self.member: DoorMember
        self.puts: Puts
        self.reads: Reads
        self.waiting: Waits
        self.log: DLedgerCommitLog
        self.role: RolePassThrough
        self._is_open = False
        self._watchers: dict[BrokerSession, int] = {}
        self._reader: tuple[MessageMachine, StoreReader] | None = None
        self.on_failure: Callable[[StoreFailure], None] = _note

    @property
    def machines(self) -> Mapping[str, MachineFactory]:
        found: dict[str, MachineFactory] = {MACHINE_NAME: self.machine_of_messages}
        for extension in self.extensions:
            for name, factory in extension.machines.items():
                assert name not in found, name
                found[name] = factory
        return found

    def open(
        self,
        member: DoorMember,
        puts: Callable[[DLedgerCommitLog], Puts],
        reads: Reads,
        waiting: Waits,
    ) -> None:
        """The member runs."""
        self.member = member
        own = self.brokers.get(self.member_id)
        if own is not None:
            self.filler.store_host = host_bytes(*parse_address(own))
        self.role = RolePassThrough(
            member, self.member_id, self.filler, tuple(self.machines), [self._announce]
        )
        self.log = DLedgerCommitLog(
            member,
            self.filler,
            self.machine_of_messages,
            reads,
            lambda: self.role.state,
            self.refusal_of,
            self.old_log,
        )
        self.role.add_listener(self.log.role_changed)
        self.puts, self.reads, self.waiting = puts(self.log), reads, waiting
        for extension in self.extensions:
            extension.open(self)
            self.role.add_listener(extension.role_changed)
        self._is_open = True
        self.role_changed()

    def role_changed(self) -> None:
        """That of the member, which is looked at in its next turn."""
        if self._is_open:
            self.member.enter(self.role.look)

    def tick(self, now_ms: float) -> None:
        """Every `TICK_MS`."""
        self.role_changed()
        for extension in self.extensions:
            extension.tick(now_ms)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            for extension in self.extensions:
                extension.close()

    def ended(self) -> None:
        """The member has stopped."""
        self.machine_of_messages.close()
        if self.old_log is not None:
            self.old_log.close()

    def _leads_in(self) -> int | None:
        return self.member.leads_in if self._is_open else None

    def _first_position(self) -> int:
        """Any thread."""
        if self.old_log is not None:
            return self.old_log.first_position
        return self.member.node().store.begin.position if self._is_open and self.member.is_up else 0

    # ---------------------------------------------------------------- as a store

    @property
    def store(self) -> DLedgerBroker:
        return self

    @property
    def queues(self) -> QueueTable:
        machine = self.machine_of_messages.newest
        return _NoQueues() if machine is None else machine.queues

    @property
    def shown_topics(self) -> Mapping[str, int]:
        return self.topics_table.counts()

    @property
    def reader(self) -> StoreReader:
        """Of what is dispatched on this member. Raises LeaderNotReady."""
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

    def request(self, session: BrokerSession, message: AnyBrokerMessage, frame: Frame) -> bool:
        if isinstance(message, RoleRequest):
            if message.watches:
                self._watchers[session] = message.request_id
            session.answer(self.role_response(message.request_id))
            return True
        if isinstance(message, OldLogRequest):
            session.later(message, lambda: self._old_log_piece(message), _old_log_answer)
            return True
        if isinstance(message, ReplicaRequest | FailoverRequest):
            # No violation: a client need not know what kind of broker it asks.
            what = "--role dledger has neither slaves by hand nor a coordinator: its log elects"
            session.refuse(message.request_id, NotReplicated(what))
            return True
        return any(each.request(session, message, frame) for each in self.extensions)

    def _old_log_piece(self, message: OldLogRequest) -> OldLogResponse:
        """On the thread that reads. Raises BadRequest."""
        old = self.old_log
        if old is None:
            return OldLogResponse()
        if not message.size_bytes:
            return OldLogResponse(record=encode_record(old.record))
        stop = message.position + message.size_bytes
        if not old.first_position <= message.position < stop <= old.end_position:
            raise BadRequest(f"the old commit log has no bytes from {message.position} to {stop}")
        if message.size_bytes > PIECE_BYTES:
            raise BadRequest(f"a piece of the old commit log has at most {PIECE_BYTES} bytes")
        return OldLogResponse(data=old.read_bytes(message.position, message.size_bytes))

    def lost(self, session: BrokerSession) -> None:
        self._watchers.pop(session, None)
        for extension in self.extensions:
            extension.lost(session)

    @property
    def master_address(self) -> str:
        """Of the broker that is master, or about to be, as far as is known; else empty."""
        return self.brokers.get(self.role.state.master_id, "")

    def role_response(self, request_id: int) -> RoleResponse:
        state = self.role.state
        rows = [
            (member_id, 0 if member_id == state.master_id else slave_id_of(member_id), address)
            for member_id, address in self.brokers.items()
        ]
        return RoleResponse(
            request_id=request_id,
            member_id=self.member_id,
            role=state.role.value,
            broker_id=state.broker_id,
            term=state.term,
            master=self.master_address,
            brokers=rows,
        )

    def _announce(self, state: RoleState) -> None:
        master = self.brokers.get(state.master_id, "")
        log.info(
            "%s is %s (broker id %d) in term %d, master %s",
            self.member_id,
            state.role.value,
            state.broker_id,
            state.term,
            state.master_id or "unknown",
        )
        for session, request_id in list(self._watchers.items()):
            session.answer(
                RoleNotice(
                    request_id=request_id,
                    role=state.role.value,
                    broker_id=state.broker_id,
                    term=state.term,
                    master=master,
                )
            )

    def status(self, request_id: int) -> StatusResponse:
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
            is_dispatched = applied.get(MACHINE_NAME, -1) >= end.index
            confirm_offset = end.position if is_dispatched else self.log.confirm_offset
            flush = f"log: {node.config.storage.flush}"
        if self.role.why_not:
            problems.append(f"leads and is not master yet: {self.role.why_not}")
        queues = self.queues.items()
        usage = self.disk.usage(self.root)
        return StatusResponse(
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


def _old_log_answer(request_id: int, piece: OldLogResponse) -> tuple[AnyBrokerMessage, None]:
    return msgspec.structs.replace(piece, request_id=request_id), None


def _note(failure: StoreFailure) -> None:
    """A read that failed: the member itself looks after its disk."""
    log.warning("a read of messages failed: %s", failure)
