"""NodeDriver: one loop around one LedgerNode, and the node's view of the world.

Inputs are gathered as they come and handed to the node in the next turn, which begins with the time:
a process that was stopped learns of it before it answers anything. Appends of all connections that
arrived by then become one batch.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

from quorumlog.batch import EntryBatch
from quorumlog.config import GroupConfig
from quorumlog.consensus.ready import Envelope, RoleChange
from quorumlog.entry import Durability, Replica
from quorumlog.errors import (
    ConfigError,
    DirectoryDamaged,
    LedgerError,
    ProtocolViolation,
    RangeDamaged,
    StoreFailure,
)
from quorumlog.node import LedgerNode
from quorumlog.server.connection import Connection, LoopTurn
from quorumlog.server.disk_thread import DiskThread
from quorumlog.server.peers.peer import Peer
from quorumlog.server.peers.peer_admission import PeerAdmission
from quorumlog.server.peers.peer_link import PeerLink
from quorumlog.server.peers.stalled_peers import StalledPeers
from quorumlog.server.problem_log import ProblemLog
from quorumlog.store.directory.member_directory import MemberDirectory
from quorumlog.store.files.member_file import cluster_id_of
from quorumlog.store.ledger_store import ColdRange, LogRange
from quorumlog.version import VERSION
from quorumlog.wire.client_messages import WELCOME, Hello, HelloResponse, MemberInfo, StatusResponse
from quorumlog.wire.peer_hello import member_list_of

log = logging.getLogger("quorumlog.server")

_WEAKEST_FIRST = [Durability.MEMORY, Durability.ASYNC, Durability.SYNC]
DUPLICATE_TRIES = 4
"""Refused as often in a row, a process ends that another one is already."""
ReadOutcome = EntryBatch | LedgerError | None


class ReadWaiter:
    """A reader that waits for entry `index` to be committed."""

    __slots__ = ("deadline_s", "index", "wake")

    def __init__(self, index: int, deadline_s: float, wake: Callable[[], None]) -> None:
        self.index = index
        self.deadline_s = deadline_s
        self.wake = wake


class NodeDriver:
    """The `Host` of one node (node/ports.py)."""

    def __init__(
        self,
        config: GroupConfig,
        directory: MemberDirectory,
        *,
        loop_turn: LoopTurn,
        flush: DiskThread,
        reader: DiskThread,
        on_failure: Callable[[NodeDriver, BaseException], None],
        on_role_change: Callable[[str, RoleChange], None] | None = None,
        seed: int | None = None,
        run_id: str = "",
        listens_on: str = "",
    ) -> None:
        """`run_id` names this run of the process, `listens_on` its address: for the first frames."""
        self.config = config
        self._run_id = run_id
        self._listens_on = listens_on
        self.directory = directory
        self._loop = asyncio.get_running_loop()
        self._loop_turn = loop_turn
        self._flush = flush
        self._flushes: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        """Work for the flush thread that this turn has brought."""
        self._has_sent = False
        """This turn sent something to another member."""
        self._reader = reader
        self._on_failure = on_failure
        self._on_role_change = on_role_change
        self._inbox: list[tuple[Connection | None, Callable[..., None], tuple[Any, ...]]] = []
        self._turn_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._waiters: list[ReadWaiter] = []
        self._reads: dict[ColdRange, list[Callable[[ReadOutcome], None]]] = {}
        """Ranges that are being read for clients, and who waits for each."""
        self._looks_at_set_aside = False
        self._problem_log = ProblemLog(log, f"{config.group}/{config.member_id}", time.monotonic())
        self.stopped = False
        self.failure: BaseException | None = None
        self._member_list = member_list_of(config.members)
        self._stalled_peers = StalledPeers()
        self.node = LedgerNode(config, directory, self, random.Random(seed), self._now_ms())
        self.peers = {
            address.member_id: Peer(
                loop_turn,
                config.group,
                address,
                self._hello,
                self._peer_connected,
                self._peer_lost,
                self.fail,
                self._peer_refused,
            )
            for address in config.members
            if address.member_id != config.member_id
        }
        self.admission = PeerAdmission(
            loop_turn,
            config,
            self.peers,
            self.hello_response,
            lambda: self.node.status().voters,
            self.fail,
        )

    def configure(self, config: GroupConfig) -> None:
        """As `LedgerNode.configure`."""
        self.config = config
        self.node.configure(config)
        self.schedule()

    def start(self) -> None:
        for peer in self.peers.values():
            peer.start()
        self.schedule()

    # ---------------------------------------------------------------- the loop

    def enter(self, connection: Connection | None, method: Callable[..., None], *arguments: Any) -> None:
        """Call a method of the node in the next turn; dropped if `connection` is closed by then."""
        if not self.stopped:
            self._inbox.append((connection, method, arguments))
            self.schedule()

    def _enter_now(self, method: Callable[..., None], *arguments: Any) -> None:
        """Like `enter`, from a callback of the loop's own behind which nothing else can gather."""
        if not self.stopped:
            self._inbox.append((None, method, arguments))
            if not self._turn_scheduled:
                self._turn()

    def schedule(self) -> None:
        if not self._turn_scheduled and not self.stopped:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        if self.stopped:
            return
        self._has_sent = False
        self._loop_turn.begin()
        try:
            try:
                self._take_inbox()
                self.node.turn()
            finally:
                self._loop_turn.flush()
            if self._flushes and self._has_sent:
                # Once it is on its way: the disks of the followers wait for it.
                self._loop.call_soon(self._submit_flushes)
            self._expire_waiters()
            self._look_at_problems()
            self._set_timer()
            if self._flushes and not self._has_sent:
                self._submit_flushes()  # last: the flush thread would wait for the interpreter lock
        except BaseException as error:
            self.fail(error)

    def _take_inbox(self) -> None:
        self.node.advance(self._now_ms())
        inbox, self._inbox = self._inbox, []
        for connection, method, arguments in inbox:
            if connection is not None and connection.closed:
                continue
            try:
                method(*arguments)
            except ProtocolViolation as violation:
                if connection is None:
                    raise
                connection.violate(violation)

    def _submit_flushes(self) -> None:
        """Wake the flush thread."""
        flushes, self._flushes = self._flushes, []
        for work, done in flushes:
            self._flush.submit(work, functools.partial(self._enter_now, done))

    def _look_at_problems(self) -> None:
        now_s = time.monotonic()
        if self._problem_log.is_due(now_s):
            status = self.node.status()
            self._problem_log.look((status.waits_for, *self.problems()), now_s)

    def fail(self, error: BaseException) -> None:
        """A broken invariant, a disk that refuses, a process too many: this member stops, loudly, and
        retries nothing."""
        if self.failure is None:
            self.failure = error
            log.critical(
                "member %s of group %s stops: %s",
                self.config.member_id,
                self.config.group,
                error,
                exc_info=None if isinstance(error, ConfigError) else error,
            )
            self.stop()
            self._on_failure(self, error)
        if not isinstance(error, Exception):
            raise error

    def _set_timer(self) -> None:
        wakeup_s = self.node.next_wakeup_ms() / 1000
        if wakeup_s <= time.monotonic():
            self.schedule()  # behind one look at the sockets
            return
        if self._waiters:
            wakeup_s = min(wakeup_s, min([w.deadline_s for w in self._waiters]))
        if self._timer is not None:
            if self._timer_at <= wakeup_s and not self._timer.cancelled():
                return  # fires early, finds nothing due and sets itself again
            self._timer.cancel()
        self._timer_at = wakeup_s
        self._timer = self._loop.call_later(max(0.0, wakeup_s - time.monotonic()), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.schedule()

    @staticmethod
    def _now_ms() -> float:
        return time.monotonic() * 1000

    def stop(self) -> None:
        """No more turns; links close. The directory stays open for whoever closes it."""
        self.stopped = True
        self._submit_flushes()
        if self._timer is not None:
            self._timer.cancel()
        self.admission.close()
        for peer in self.peers.values():
            peer.close()

    # ---------------------------------------------------------------- Host

    def send(self, envelope: Envelope) -> bool:
        self._has_sent = True
        return self.peers[envelope.to.member_id].send(envelope)

    def members_with_moving_data(self) -> Iterable[str]:
        return [member_id for member_id, peer in self.peers.items() if peer.data.has_moved()]

    def flush_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._flushes.append((work, done))

    def read_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._reader.submit(work, functools.partial(self._enter_now, done))

    def role_changed(self, change: RoleChange) -> None:
        log.info(
            "%s/%s is %s in term %d, leader %s",
            self.config.group,
            self.config.member_id,
            change.role.value,
            change.term,
            change.leader_id or "unknown",
        )
        if self._on_role_change is not None:
            self._on_role_change(self.config.group, change)

    def committed(self, committed_index: int) -> None:
        if self._waiters:
            ready = [w for w in self._waiters if w.index <= committed_index]
            if ready:
                self._waiters = [w for w in self._waiters if w.index > committed_index]
                for waiter in ready:
                    waiter.wake()

    def lost_committed(self, first_index: int) -> None:
        self._reads = {}  # who asks from now on means what takes their place
        log.critical(
            "%s/%s: entries from index %d on were acknowledged under flush = async, lost in a power"
            " failure, and are replaced by those of leader %s",
            self.config.group,
            self.config.member_id,
            first_index,
            self.node.raft.leader,
        )

    def weakest_durability(self, own: Durability) -> Durability:
        known = [own.value, *(peer.durability for peer in self.peers.values())]
        return next(d for d in _WEAKEST_FIRST if d.value in known)

    # ---------------------------------------------------------------- peers

    @property
    def cluster_id(self) -> str:
        return cluster_id_of(self.directory.formation.founding)

    def _hello(self, role: str, to_member_id: str) -> Hello:
        return Hello(
            role=role,
            member_id=self.config.member_id,
            directory_id=self.node.replica.directory_id,
            to_member_id=to_member_id,
            cluster_id=self.cluster_id,
            members=self._member_list,
            segment_bytes=self.config.storage.segment_bytes,
            durability=self.directory.durability.value,
            run_id=self._run_id,
            listens_on=self._listens_on,
        )

    def hello_response(
        self, code: int = WELCOME, message: str = "", connection_id: str = ""
    ) -> HelloResponse:
        return HelloResponse(
            code=code,
            message=message,
            member_id=self.config.member_id,
            directory_id=self.node.replica.directory_id,
            cluster_id=self.cluster_id,
            members=self._member_list,
            segment_bytes=self.config.storage.segment_bytes,
            durability=self.directory.durability.value,
            connection_id=connection_id,
            run_id=self._run_id,
        )

    def _peer_refused(self, link: PeerLink) -> None:
        """Others have this member already, and nobody takes this process for it."""
        links = [link for peer in self.peers.values() for link in (peer.control, peer.data)]
        if link.refused_as_duplicate >= DUPLICATE_TRIES and not any(each.up for each in links):
            self.fail(ConfigError(link.problem))

    def _peer_connected(self, member_id: str, directory_id: str) -> None:
        log.info("%s/%s is connected with %s", self.config.group, self.config.member_id, member_id)
        self.enter(None, self.node.connected, member_id, directory_id)

    def _peer_lost(self, member_id: str, is_gone: bool) -> None:
        log.info("%s/%s has lost %s", self.config.group, self.config.member_id, member_id)
        self.enter(None, self.node.connection_lost, member_id, is_gone)

    # ---------------------------------------------------------------- readers and status

    def read(
        self, first_index: int, stop_index: int, limit_bytes: int, done: Callable[[ReadOutcome], None]
    ) -> None:
        """Committed entries, at once from memory or later from a file; see `readable_range`.

        Many readers may get the same batch: nobody writes to it.
        """
        try:
            found = self.node.readable_range(first_index, stop_index, limit_bytes)
        except LedgerError as error:
            done(error)
            return
        if isinstance(found, EntryBatch):
            done(found)
            return
        readers = self._reads.get(found)
        if readers is not None:
            readers.append(done)
        else:
            self._reads[found] = readers = [done]
            self._read_file(found, readers)

    def _read_file(self, cold: ColdRange, readers: list[Callable[[ReadOutcome], None]]) -> None:
        """One read for all that ask for the same range until it is done."""

        def read(result: tuple[LogRange, EntryBatch] | StoreFailure | LedgerError) -> None:
            if self._reads.get(cold) is readers:
                del self._reads[cold]
            outcome: ReadOutcome
            if isinstance(result, DirectoryDamaged):
                self.node.repairer.found(result)
                outcome = RangeDamaged(str(result))
            elif isinstance(result, StoreFailure):
                raise result
            else:
                outcome = result if isinstance(result, LedgerError) else result[1]
            for done in readers:
                done(outcome)

        self.read_later(lambda: self.node.store.read_from(*cold), read)

    def wait_for(self, index: int, wait_ms: int, wake: Callable[[], None]) -> None:
        """Call `wake` once `index` is committed, or when the time is over. Inside a turn, whose end sets
        the timer."""
        self._waiters.append(ReadWaiter(index, time.monotonic() + wait_ms / 1000, wake))

    def _expire_waiters(self) -> None:
        if self._waiters:
            now = time.monotonic()
            expired = [w for w in self._waiters if w.deadline_s <= now]
            if expired:
                self._waiters = [w for w in self._waiters if w.deadline_s > now]
                for waiter in expired:
                    waiter.wake()

    def status(self, request_id: int = 0) -> StatusResponse:
        status = self.node.status()
        peers = {p.replica.member_id: p for p in status.peers}
        members = []
        for member in self.config.members:
            own = member.member_id == self.config.member_id
            peer = peers.get(member.member_id)
            up = None if own else self.peers[member.member_id].control.up
            directory_id = status.replica.directory_id if own else up.directory_id if up else ""
            members.append(
                MemberInfo(
                    id=member.member_id,
                    address=str(member),
                    directory_id=directory_id,
                    reachable=own or up is not None,
                    is_voter=Replica(member.member_id, directory_id) in status.voters,
                    water_mark=status.durable_index if own else peer.water_mark if peer else -1,
                )
            )
        scrub = self.node.scrub_status()
        set_aside = self.node.store.set_aside
        self._look_at_set_aside()
        leader = status.leader
        leader_id = leader.member_id if leader is not None else ""
        return StatusResponse(
            request_id=request_id,
            group=self.config.group,
            id=self.config.member_id,
            address=str(self.config.own_address),
            directory_id=status.replica.directory_id,
            cluster_id=self.cluster_id,
            role=status.role.value,
            term=status.term,
            leader_id=leader_id,
            leader_address=next((m.address for m in members if m.id == leader_id), ""),
            ledger_begin_index=status.ledger_begin_index,
            ledger_end_index=status.ledger_end.index,
            durable_index=status.durable_index,
            committed_index=status.committed_index,
            flush=self.directory.durability.value,
            members=tuple(members),
            waits_for=status.waits_for,
            problems=self.problems(),
            version=VERSION,
            damaged_entries=sum(q.stop_index - q.first_index for q in self.node.store.damaged),
            scrub_next_index=scrub.next_index,
            scrub_stop_index=scrub.stop_index,
            scrub_passes=scrub.passes,
            scrub_ended_ms_ago=scrub.ended_ms_ago,
            set_aside_files=set_aside.files,
            set_aside_bytes=set_aside.size_bytes,
        )

    def _look_at_set_aside(self) -> None:
        """For the next who asks: people may have deleted some of it."""

        def looked(result: StoreFailure | LedgerError | None) -> None:
            self._looks_at_set_aside = False

        if not self._looks_at_set_aside:
            self._looks_at_set_aside = True
            self.read_later(self.node.store.look_at_set_aside, looked)

    def problems(self) -> tuple[str, ...]:
        """What an operator should know, in sentences, each once."""
        stalled = self._stalled_peers.problems(self.node.status().peers, self._now_ms(), time.time())
        found = (*self.node.problems(), *stalled, *self.admission.problems())
        return tuple(dict.fromkeys(found))
