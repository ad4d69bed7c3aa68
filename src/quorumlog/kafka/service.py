"""KafkaService: shared by all requests: leadership, applied state, and appends of entries.

Requests are answered on the loop, by the functions of `producing`, `fetching`, `topics` and
`group_requests`. Only the leader of the group serves records, changes of topics, and consumer groups; it
leads all partitions. It begins once all entries of earlier leaders are applied here, which a
linearizable read of its own machine confirms. `acks` 0, 1 and all are the same: the answer, if the
client wants one, follows the commit of the entry.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from quorumlog.batch import EntryBatch
from quorumlog.client_guard import guarded
from quorumlog.config import KafkaOptions, parse_address
from quorumlog.entry import AppendReceipt
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import (
    BodyTooLarge,
    CommandError,
    ConfigError,
    Forbidden,
    LeaderNotReady,
    LeaderTransferring,
    LedgerError,
    NotAuthenticated,
    NotLeader,
    OutcomeUnknown,
    Refused,
    RequestTimeout,
    UnknownMachine,
)
from quorumlog.kafka.codec import KafkaRequest, Values
from quorumlog.kafka.expiry import OffsetExpiry
from quorumlog.kafka.forwarding import LeaderCalls
from quorumlog.kafka.groups import GroupCoordinator
from quorumlog.kafka.machine import (
    Command,
    KafkaMachine,
    KafkaMachines,
    Partition,
    entry_of,
)
from quorumlog.kafka.places import MACHINE_NAME, PREFIX_BYTES
from quorumlog.log_state.users import Kind, Right
from quorumlog.net.access import EVERYBODY, Access, Caller, Need, audit
from quorumlog.node import AppendOutcome, NodeHandle
from quorumlog.node.machine_driver import Answer

log = logging.getLogger("quorumlog.kafka")

T = TypeVar("T")
Read = Callable[[Callable[[int, int], bytes]], T]

TICK_MS = 100
ASK_TIMEOUT_MS = 10_000
MOST_TIMEOUT_MS = 60_000
"""Most milliseconds that a request may wait."""
LARGE_BYTES = 256 << 10
"""A batch from this size is appended alone: joining it with others would copy it."""
NO_NODE = -1

_DENIED = {
    Kind.TOPIC: ErrorCode.topic_authorization_failed,
    Kind.CONSUMER_GROUP: ErrorCode.group_authorization_failed,
    Kind.CLUSTER: ErrorCode.cluster_authorization_failed,
}
_AGAIN = {
    Kind.TOPIC: ErrorCode.not_leader_or_follower,
    Kind.CONSUMER_GROUP: ErrorCode.not_coordinator,
    Kind.CLUSTER: ErrorCode.not_controller,
}
"""Errors after which a client looks for the leader."""


def code_of(error: LedgerError, kind: Kind = Kind.TOPIC) -> ErrorCode:
    """Kafka's error code. It is retriable if nothing was written, or the outcome is unknown."""
    if isinstance(error, Forbidden | NotAuthenticated):
        return _DENIED[kind]
    if isinstance(error, NotLeader | LeaderNotReady | LeaderTransferring | UnknownMachine):
        return _AGAIN[kind]
    if isinstance(error, BodyTooLarge):
        return ErrorCode.message_too_large
    if kind is Kind.CONSUMER_GROUP and (error.retriable or isinstance(error, OutcomeUnknown | Refused)):
        # Consumers end at any other one: Java's by an exception where offsets are committed or fetched.
        return ErrorCode.coordinator_load_in_progress
    if isinstance(error, OutcomeUnknown | RequestTimeout):
        return ErrorCode.request_timed_out
    if isinstance(error, Refused):
        return ErrorCode.not_enough_replicas  # certainly not written, says this one
    return ErrorCode.unknown_server_error


class KafkaClient(Protocol):
    """The client of a connection."""

    caller: Caller
    is_member: bool
    """The client is a member that forwards a request after checking the rights of its own client."""

    @property
    def host(self) -> str: ...


class KafkaCall:
    """One request, and its answer."""

    __slots__ = ("_done", "client", "fields", "on_lost", "request")

    def __init__(
        self,
        request: KafkaRequest,
        fields: Any,
        client: KafkaClient,
        done: Callable[[Values | bytes | None, int], None],
    ) -> None:
        self.request = request
        self.fields = fields
        self.client = client
        self._done = done
        self.on_lost: Callable[[], None] | None = None
        """Called if the connection ends while the request waits."""

    def answer(self, values: Values | bytes | None, code: int = 0) -> None:
        """`values`: the fields of the response; bytes: a whole response from another member; None:
        the request wants no response. `code`: the first error in it."""
        self._done(values, code)

    @property
    def knows_users(self) -> bool:
        """False: this member has no current users and rights, so it cannot check any."""
        return self.client.is_member or not isinstance(self.client.caller.stranger(), LeaderNotReady)

    def tell_audit(self, command: Command) -> None:
        """Write an administrative command to the audit log, if there are users."""
        caller = self.client.caller
        if caller.is_checked:
            # The line names the operation, as CreateTopic(...), not our class.
            audit.warning("user %s at %s: Kafka: %s", *caller.who, repr(command).replace("Kafka", "", 1))

    def denied(
        self,
        right: Right,
        kind: Kind,
        name: str = "",
        *,
        instead: Right | None = None,
        is_any: bool = False,
    ) -> ErrorCode:
        """An error code, or `none` if its user has the right. `instead`, `is_any`: see `Need`."""
        caller = self.client.caller
        if not caller.is_checked or self.client.is_member:
            return ErrorCode.none
        key = right, kind, name, instead, is_any
        refusal = caller.refusal(
            key, (Need(right, kind, name.encode(), is_any=is_any, instead=instead),)
        )
        return ErrorCode.none if refusal is None else code_of(refusal, kind)


_NOTHING = KafkaMachine(lambda grown: None)


class KafkaService:
    def __init__(
        self,
        member_id: str,
        servers: Mapping[str, str],
        options: KafkaOptions,
        machines: KafkaMachines,
        reads: ThreadPoolExecutor,
        leader_calls: LeaderCalls,
    ) -> None:
        """`servers`: HOST:PORT at which clients reach the port of each member, by member id. `reads`:
        its threads may wait for the disk. Raises ConfigError."""
        self.member_id = member_id
        self.options = options
        self._unknown = ""
        """The leader that the log names and clients would not find, once that is logged."""
        self.machines = machines
        self._node_ids = {each: node_id_of(each) for each in servers}
        """By member id."""
        self.nodes = {self._node_ids[each]: parse_address(at) for each, at in servers.items()}
        """(host, port) of each member by node id."""
        if len(self.nodes) < len(servers):
            raise ConfigError(
                f"of the member ids {', '.join(sorted(servers))} two end with the same number, which is"
                " the node id for Kafka's clients: name members like n0, n1, n2"
            )
        self.member: NodeHandle
        self.access: Access = EVERYBODY
        """The users and rights of the port."""
        self.rechecks: set[Callable[[], None]] = set()
        """Callbacks of waiting requests, called when rights have changed."""
        self.waiting: dict[Partition, set[Callable[[], None]]] = {}
        """Callbacks, called when a partition has new records."""
        self.commits = Counter[str]()
        """Number of commits of offsets that are not applied yet, by group."""
        self.reads = reads
        self.leader_calls = leader_calls
        self.leader = NO_NODE
        self.epoch = 0
        self.cluster_id = ""
        self.log_begin = 0
        """Position at which the member's log begins."""
        self.most_batch_bytes = 1 << 20
        self._ready_in: int | None = None
        self._asked_in: int | None = None
        self.new_coordinator: Callable[[], GroupCoordinator] = lambda: GroupCoordinator(
            lambda: str(uuid.uuid4())
        )
        self._coordinator: GroupCoordinator | None = None
        self._expiry: OffsetExpiry
        """Expiry of the offsets of the coordinator's groups."""

    @property
    def machine(self) -> KafkaMachine:
        return self.machines.newest or _NOTHING

    @property
    def leads(self) -> bool:
        """This member leads, all entries of earlier leaders are applied, and users and rights are
        known. After a start they are known a moment later; until then every request would be refused."""
        return self._ready_in is not None and self.access.users is not None

    @property
    def coordinator(self) -> GroupCoordinator | ErrorCode:
        """The coordinator, or an error code."""
        if self._coordinator is not None and self.leads:
            return self._coordinator
        is_soon = self._asked_in is not None
        return ErrorCode.coordinator_load_in_progress if is_soon else ErrorCode.not_coordinator

    # ---------------------------------------------------------------- who leads

    def look(self) -> None:
        """Update leadership; called in a turn of the member, when its role has changed and
        periodically."""
        term = None
        self.leader = NO_NODE
        if self.member.is_up:
            raft, term = self.member.node().raft, self.member.leads_in
            self.epoch, self.cluster_id = raft.term, self.member.cluster_id
            self.log_begin = self.member.node().store.begin.position
            limit_bytes = self.member.node().config.storage.append_limit_bytes
            self.most_batch_bytes = limit_bytes - HEADER_BYTES - PREFIX_BYTES
            if raft.leader is not None:
                self.leader = self._node_of(raft.leader.member_id)
        if self._ready_in != term:
            self._lose()
        if term is not None and not self.leads:
            self.leader = NO_NODE  # a moment later
        if term is None:
            self._asked_in = None
        elif self._ready_in is None and self._asked_in != term:
            self._asked_in = term
            self.member.ask(
                MACHINE_NAME, b"", ASK_TIMEOUT_MS, lambda answer: self._answered(term, answer), self
            )

    def _node_of(self, leader: str) -> int:
        """Its node id; NO_NODE if clients would not find it. A member that was added after this one's
        start is looked for at the same port on its host, unless the ports were given."""
        if leader not in self._node_ids and not self.options.servers:
            _, port = parse_address(self.options.listen)
            address = self.member.node().members.addresses().get(leader)
            digits = _digits_of(leader)
            place = None if address is None else (parse_address(address)[0], port)
            if place and digits and not (int(digits) in self.nodes or place in self.nodes.values()):
                self._node_ids[leader] = int(digits)
                self.nodes[int(digits)] = place
        if leader in self._node_ids:
            self._unknown = ""
        elif leader != self._unknown:
            self._unknown = leader
            log.warning(
                "%s leads, and clients of Kafka cannot find it: its address is not in --kafka-servers"
                " of %s. Transfer leadership to another member, and restart every member with it",
                leader,
                self.member_id,
            )
        return self._node_ids.get(leader, NO_NODE)

    def _answered(self, term: int, answer: Answer) -> None:
        if self._asked_in != term or self.member.leads_in != term:
            return
        if isinstance(answer, LedgerError) and not isinstance(answer, CommandError):
            self._asked_in = None  # asked again at the next look
            return
        self._ready_in = term
        self._coordinator = self.new_coordinator()
        self._expiry = OffsetExpiry(
            self.options.offsets_retention_minutes * 60_000,
            self._coordinator,
            lambda command, done: self.append(entry_of(command), MOST_TIMEOUT_MS, self, done),
        )
        if self.leads:
            self.leader = self._node_ids[self.member_id]
        log.info("%s leads all partitions in term %d", self.member_id, term)

    def _lose(self) -> None:
        self._ready_in = None
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            coordinator.close()

    def tick(self, now_ms: int) -> None:
        """Called every `TICK_MS`."""
        self.member.enter(self.look)
        if self._coordinator is not None:
            self._coordinator.tick(now_ms)
            self._expiry.tick(now_ms, self.machine.groups)

    def rights_moved(self) -> None:
        """Rights have changed: end waiting requests whose client's right was revoked."""
        self.member.enter(self.look)
        for recheck in list(self.rechecks):
            recheck()

    def close(self) -> None:
        self._lose()
        self.leader_calls.close()

    def grown(self, partitions: set[Partition]) -> None:
        for partition in partitions:
            for wake in list(self.waiting.get(partition, ())):
                wake()

    # ---------------------------------------------------------------- the log

    def append(
        self,
        batch: EntryBatch,
        timeout_ms: int,
        client: object,
        done: Callable[[tuple[bytes | None, ...] | LedgerError], None],
    ) -> None:
        """`done` receives the result of each entry once they are committed and applied here."""

        def answered(outcome: AppendOutcome) -> None:
            done(outcome.results if isinstance(outcome, AppendReceipt) else outcome)

        def append() -> None:
            if not self.member.is_up:
                done(LeaderNotReady("the member begins anew", retry_after_ms=TICK_MS))
                return
            filler = self.machines.filler
            filler.checked = batch
            try:
                timeout = max(0, min(timeout_ms, MOST_TIMEOUT_MS))  # 0: as the log has it
                self.member.append(batch, MACHINE_NAME, timeout, answered, client)
            finally:
                filler.checked = None

        if batch.total_bytes >= LARGE_BYTES:
            self.member.enter_now(guarded(append, client))
        else:
            self.member.enter(append, client)

    def confirm(self, client: KafkaClient, done: Callable[[LedgerError | None], None]) -> None:
        """`done` is called once all entries acknowledged before the call, by any leader, are applied
        here."""

        def answered(answer: Answer) -> None:
            done(answer if isinstance(answer, LedgerError) else None)

        def ask() -> None:
            if not self.member.is_up:
                done(LeaderNotReady("the member begins anew", retry_after_ms=TICK_MS))
            else:
                self.member.ask(MACHINE_NAME, b"", ASK_TIMEOUT_MS, answered, client)

        self.member.enter(ask, client)

    def read(self, read: Read[T], call: KafkaCall, done: Callable[[T | None], None]) -> None:
        """Run `read`, which gets a reader of bytes at positions of the log; `done` receives its
        result. None: the read failed and may be retried."""
        loop = asyncio.get_running_loop()

        def over(future: asyncio.Future[T]) -> None:
            failure = future.exception()
            if failure is not None:
                log.warning("a read of records failed: %s: %s", type(failure).__name__, failure)
            guarded(lambda: done(None if failure is not None else future.result()), call.client)()

        def begin() -> None:
            if not self.member.is_up:
                done(None)
                return
            read_bytes = self.member.node().store.read_bytes
            loop.run_in_executor(self.reads, read, read_bytes).add_done_callback(over)

        self.member.enter(begin, call.client)


def node_id_of(member_id: str) -> int:
    """The number at the end of a member's id. Raises ConfigError."""
    digits = _digits_of(member_id)
    if not digits:
        raise ConfigError(
            f"the member id {member_id!r} must end with a number, the node id for Kafka's clients: name"
            " members like n0, n1, n2"
        )
    return int(digits)


def _digits_of(member_id: str) -> str:
    """Empty: it ends with none, or they are no node id."""
    digits = member_id[len(member_id.rstrip("0123456789")) :]
    return digits if digits and len(digits) < 20 and int(digits) < 1 << 31 else ""
