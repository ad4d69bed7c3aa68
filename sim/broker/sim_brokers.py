"""A broker on each process of each simulated member, and a checker that watches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast
from weakref import ref

from quorumlog.batch import EntryBatch
from quorumlog.broker.broker_port import MOST_READS, TICK_MS, PutQueue, ReadQueue, WaitingPulls, greet
from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.dledger.dledger_broker import DLedgerBroker
from quorumlog.broker.groups.group_service import GroupService
from quorumlog.broker.offline.old_log import OldState, OldTopic
from quorumlog.broker.store.dispatch import MESSAGES
from quorumlog.broker.wire import broker_request_decoder
from quorumlog.errors import LedgerError, ProtocolViolation, StoreFailure
from quorumlog.net.connection import Connection, Session
from quorumlog.net.frame import AnyFrameMessage, Frame, encode_frame
from quorumlog.node import MachineFactory
from quorumlog.store.memory_disk import MemoryDisk
from quorumlog.testing.cluster import SimCluster
from quorumlog.testing.member import SimMember
from quorumlog.testing.promises import Violation
from quorumlog.wire.client_message import ClientMessage
from sim.clients import DataCallback, LostCallback, PortsOpened, SimConnection, SimPorts, address_of

CONFIG = MessageStoreConfig(max_hash_slot_num=64, max_index_num=256, mapped_file_size_consume_queue=800)


class _Timer:
    is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class _Loop:
    """What a broker asks of the loop of its process. Loops are remembered until they are closed, which
    must not keep a whole run."""

    def __init__(self, member: SimMember) -> None:
        self._cluster = ref(member.cluster)
        self._place = member.place
        self._process = member.process

    @property
    def _member(self) -> SimMember | None:
        cluster = self._cluster()
        return None if cluster is None else cluster.member(self._place)

    def is_closed(self) -> bool:
        return self._member is None or self._member.process != self._process

    def call_soon(self, act: Callable[..., None], *arguments: Any) -> None:
        self.call_later(0.0, act, *arguments)

    call_soon_threadsafe = call_soon

    def call_later(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> _Timer:
        timer, member = _Timer(), self._member
        assert member is not None
        member.later(1000 * delay_s, lambda: None if timer.is_cancelled else act(*arguments))
        return timer


class _Reads:
    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result = work()
        except (LedgerError, StoreFailure) as error:
            result = error
        done(result)


class _Connection(SimConnection):
    """As a broker's session sees it."""

    session: Session | None = None
    is_full = False

    def __init__(
        self, brokers: SimBrokers, member: SimMember, on_data: DataCallback, lost: LostCallback
    ) -> None:
        super().__init__(brokers, member, broker_request_decoder(), on_data, lost)
        self._broker = brokers.brokers[member.member_id]

    def take(self, frame: Frame) -> None:
        if self.session is None:
            greet(self._broker, cast(Connection, self), frame, {})
        else:
            self.session.frame(frame)

    def left(self) -> None:
        if self.session is not None:
            self.session.lost()

    @property
    def closed(self) -> bool:
        return not self.is_up

    def send(
        self, group: str, message: AnyFrameMessage | ClientMessage, batch: EntryBatch | None = None
    ) -> None:
        if self.is_up:
            self.say(encode_frame(group, message, batch))

    def violate(self, violation: ProtocolViolation) -> None:
        raise AssertionError(f"what a client said cannot be processed: {violation}")


class _Topics(GroupService):
    """These topics, and no machine that could change them."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        super().__init__(old=OldState([OldTopic(*each, 6) for each in topics.items()], [], {}))

    @property
    def machines(self) -> Mapping[str, MachineFactory]:
        return {}


class SimBrokers(SimPorts):
    def __init__(self, topics: Mapping[str, int]) -> None:
        super().__init__()
        self._topics = topics
        self._made: dict[str, DLedgerBroker] = {}
        self.brokers: dict[str, DLedgerBroker] = {}
        """Of members that run, by id."""

    @property
    def addresses(self) -> dict[str, str]:
        return {member_id: address_of(member_id) for member_id in self.cluster.member_ids}

    def connect(self, member: SimMember, on_data: DataCallback, lost: LostCallback) -> SimConnection:
        return _Connection(self, member, on_data, lost)

    def machines_of(self, member_id: str) -> Mapping[str, MachineFactory]:
        broker = self._made[member_id] = DLedgerBroker(
            MemoryDisk(),
            "messages",
            CONFIG,
            member_id=member_id,
            brokers=self.addresses,
            groups=_Topics(self._topics),
        )
        return broker.machines

    def started(self, member: SimMember) -> None:
        handle = self.handle_of(member)
        broker = self.brokers[member.member_id] = self._made[member.member_id]
        loop = cast(Any, _Loop(member))
        waiting = WaitingPulls(loop)
        broker.open(
            handle,
            lambda message_log: PutQueue(message_log, loop),
            ReadQueue(_Reads(), MOST_READS),
            waiting,
        )

        def tick() -> None:
            if handle.is_up:
                broker.tick(member.local_ms)
                member.later(TICK_MS, tick)

        member.later(TICK_MS, tick)

    def stopped(self, member: SimMember) -> None:
        self.brokers.pop(member.member_id, None)
        super().stopped(member)


class BrokersWatched(PortsOpened):
    """Opens a broker where a process begins, and looks at it after each of its turns.

    A master has dispatched every entry of earlier leaders, and there is one in a term. No member finds
    that a message is not the next one of its queue."""

    def __init__(self, cluster: SimCluster, brokers: SimBrokers) -> None:
        super().__init__(cluster, brokers)
        self._brokers = brokers
        self._masters: dict[int, str] = {}
        self._looked: dict[str, int] = {}

    def turned(self, member: SimMember) -> None:  # type: ignore[override]
        broker = self._brokers.brokers.get(member.member_id)
        if broker is None:
            return
        (status,) = [each for each in member.node.machines.status() if each.name == MESSAGES]
        if status.problem and "has stopped" in status.problem:
            raise Violation(f"{member.member_id}: {status.problem}")
        term = broker.filler.term
        if term is None or self._looked.get(member.member_id) == term:
            return
        self._looked[member.member_id] = term
        first = self._masters.setdefault(term, member.member_id)
        if first != member.member_id:
            raise Violation(f"{first} and {member.member_id} are masters of term {term}")
        raft = member.node.raft
        if status.applied_index < raft.ledger_end.index:
            of_next = raft.term_at(status.applied_index + 1)
            if of_next != term:
                raise Violation(
                    f"{member.member_id} is master of term {term}, and has not dispatched entry"
                    f" {status.applied_index + 1} of term {of_next}"
                )
        self.cluster.trace.count("broker: became master")
