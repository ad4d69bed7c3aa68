"""NodeDriver: the loop around one LedgerNode, and its `Host`.

Inputs are gathered as they come and handed to the node in the next turn, which begins with the time.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from quorumlog.client_guard import contain
from quorumlog.config import GroupConfig, check_name, parse_address
from quorumlog.consensus.messages import PeerMessage
from quorumlog.consensus.ready import Envelope, Role, RoleChange
from quorumlog.entry import Durability, Replica
from quorumlog.errors import (
    BadRequest,
    ConfigError,
    LeaderNotReady,
    MembershipRefused,
)
from quorumlog.figures import now
from quorumlog.log_state.control_entries import LEVEL, MOST_NAME_CHARACTERS
from quorumlog.log_state.log_state import LostRange
from quorumlog.measures import Histogram, Requests
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.frame import Frame
from quorumlog.net.hello import Hello
from quorumlog.node import LedgerNode, MachineFactory
from quorumlog.node.housekeeping import PAUSE_MS
from quorumlog.node.member_changes import MemberChange, MemberOperation, MemberOutcome
from quorumlog.node.ports import BeginsAnew
from quorumlog.node.transfers import STOP_TIMEOUTS
from quorumlog.server.disk_thread import DiskThread
from quorumlog.server.peers.dialler import Dialler, Handshake
from quorumlog.server.peers.peer import PeerSession, RemoteMember
from quorumlog.server.peers.peer_link import PeerLink
from quorumlog.server.peers.peer_table import PeerAdmission, PeerTable
from quorumlog.server.problem_log import EventRing, ProblemLog
from quorumlog.server.status_report import StatusReport
from quorumlog.server.waiting_reads import WaitingReads
from quorumlog.store.log_points import LogStart
from quorumlog.store.member_directory import MemberDirectory
from quorumlog.wire.client_messages import ReloadResponse

log = logging.getLogger("quorumlog.server")

_WEAKEST_FIRST = [Durability.MEMORY, Durability.ASYNC, Durability.SYNC]
DUPLICATE_TRIES = 6
"""Refused as often in a row, a process ends that another one is already."""
SOON_S = PAUSE_MS / 1000
LEADERLESS_TIMEOUTS = 2
"""Election time-outs without a leader, after which reads that wait are sent to another member."""


class NodeDriver:
    def __init__(
        self,
        config: GroupConfig,
        directory: MemberDirectory,
        *,
        loop_turn: LoopTurn,
        dialler: Dialler,
        threads: Sequence[DiskThread],
        machines: Mapping[str, MachineFactory],
        held_machines: Collection[str],
        on_failure: Callable[[BaseException], None],
        on_anew: Callable[[NodeDriver, str], None],
        on_role_change: Callable[[str, RoleChange], None] | None,
        run_id: str,
        listens_on: str,
        tls_port: int,
    ) -> None:
        """`threads`: that flush, save promises, read and apply. `run_id` names this run of the process,
        `listens_on` its address, `tls_port` a second one for TLS, or 0: for the first frames."""
        self.config = config
        self.directory = directory
        self._loop = asyncio.get_running_loop()
        self._loop_turn = loop_turn
        self._flush, self._promises, self._reader, self._applier = threads
        self._flushes: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        """Work for the flush thread that this turn has brought."""
        self._on_failure = on_failure
        self._on_anew = on_anew
        self._on_role_change = on_role_change
        self._inbox: list[tuple[Connection | None, Any]] = []
        self._turn_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._weakest: Durability | None = None
        """See `weakest_durability`; None: members came or went since it was looked for."""
        self._connected: set[Replica] = set()
        self._heard_ms = self._now_ms()
        """When this member knew last who leads."""
        self.requests = Requests()
        self.sync_us = Histogram()
        """How long the flush thread took for each, in microseconds."""
        self.leader_changes = {"election": 0, "handover": 0}
        self._last_leader: tuple[int, str] = (0, "")
        self._is_handed_over = False
        """By the last leader that it knew, as far as this member has heard."""
        self.events = EventRing(self.wall_clock_ms)
        self.problem_log = ProblemLog(
            log, config.full_name, time.monotonic(), functools.partial(self.events.add, "problem")
        )
        self.reload: Callable[[], ReloadResponse] = lambda: ReloadResponse(member_id=config.member_id)
        """Of its process."""
        self.stopped = False
        self.failure: BaseException | None = None
        self.node = LedgerNode(
            config,
            directory,
            self,
            random.Random(),
            self._now_ms(),
            machines=machines,
            held_machines=held_machines,
        )
        self.reads = WaitingReads(self.node, self._read_beside)
        self.handshake = Handshake(config, directory, run_id, listens_on, tls_port)
        self.peers = PeerTable(
            config.member_id,
            lambda address: RemoteMember(
                dialler,
                config.group,
                address,
                self.handshake.hello,
                self._peer_connected,
                self._peer_lost,
                self.fail,
                self._peer_refused,
            ),
        )
        self.peers.follow({member.member_id: str(member) for member in config.members})
        self._followed = self.node.raft.members.version
        """The members that `peers` are."""
        self.admission = PeerAdmission(
            config,
            self.peers,
            self.handshake.response,
            self._voters,
            lambda: self.node.status().membership_index < 0,
            self._leader_id,
            self.peers.invite,
        )
        self.status = StatusReport(config, self.node, self.peers, self.admission, self._read_beside)

    def configure(self, config: GroupConfig) -> None:
        self.config = config
        self.node.configure(config)
        self.schedule()

    def start(self) -> None:
        self.peers.start()
        self.schedule()

    # ---------------------------------------------------------------- the loop

    def enter(self, connection: Connection | None, item: Any) -> None:
        """`connection.session.take(self, said)` in the next turn; dropped if the connection is closed by
        then. An exception of it ends the connection, unless it is of the member itself. None: the
        member's own, and `item` is called."""
        if not self.stopped:
            self._inbox.append((connection, item))
            if not self._turn_scheduled:
                self._turn_scheduled = True
                self._loop.call_soon(self._turn)

    def _enter_again(self, connection: Connection, item: Any) -> None:
        """There is room for its answer now; it may have waited for long, and rights may have gone."""
        if self.stopped:
            connection.abort()  # it would never be answered
        elif isinstance(item, Frame):
            session: Any = connection.session
            session.frame(item)
        else:
            self.enter(connection, item)

    def enter_now(self, method: Callable[..., None], *arguments: Any) -> None:
        """Like `enter`, from a callback of the loop after which nothing else can gather."""
        if not self.stopped:
            self._inbox.append((None, functools.partial(method, *arguments)))
            if not self._turn_scheduled:
                self._turn()

    def _hear(self, connection: Connection, message: PeerMessage) -> None:
        """Like `enter`. What changes nothing yet waits for the next turn, if that comes soon."""
        if not self.stopped:
            self._inbox.append((connection, message))
            if not (self._turn_scheduled or (self.node.may_wait(message) and self._turn_comes_soon)):
                self.schedule()

    def _flush_ended(self, done: Callable[[Any], None], result: Any) -> None:
        if not self.stopped:
            self._inbox.append((None, functools.partial(self.node.finish, done, result)))
            is_late = isinstance(result, Exception) or not self.node.waits_for_others
            if not self._turn_scheduled and (is_late or not self._turn_comes_soon):
                self._turn()

    @property
    def _turn_comes_soon(self) -> bool:
        return self._timer is not None and self._timer_at - time.monotonic() <= SOON_S

    def schedule(self) -> None:
        if not self._turn_scheduled and not self.stopped:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        if self.stopped:
            return
        node = self.node
        self._loop_turn.is_begun = True
        try:
            try:
                node.advance(time.monotonic() * 1000)
                self._take_inbox()
                has_ticked_all = node.write()
                if has_ticked_all and node.raft.members.version != self._followed:
                    self._follow_members()
            finally:
                self._loop_turn.flush()
            if node.machines.is_any_here:
                if self._flushes:
                    # Machines write, too, and leave the interpreter lock meanwhile.
                    self._submit_flushes()
                self._loop_turn.is_begun = True
                try:
                    node.apply()
                finally:
                    self._loop_turn.flush()
            now_s = time.monotonic()
            if self.reads.waiters:
                self.reads.expire()
            if has_ticked_all:
                self._look_whether_deaf(now_s * 1000)
                self._look_at_problems(now_s)
            self._set_timer(now_s)
            if self._flushes:
                self._submit_flushes()  # last: the flush thread would wait for the interpreter lock
        except BeginsAnew as reason:
            self._on_anew(self, str(reason))
        except BaseException as error:
            self.fail(error)

    def _look_whether_deaf(self, now_ms: float) -> None:
        """A member that was removed, is cut off, or waits for its disk, learns of nothing:
        who waits for entries there would wait for as long, while the others may go on."""
        node = self.node
        if node.raft.leader is not None and not node.is_held:
            self._heard_ms = now_ms
            if self.reads.refusal is not None:
                self.reads.refuse(None)
            return
        patience_ms = LEADERLESS_TIMEOUTS * self.config.consensus.election_timeout_ms
        is_deaf = node.is_left_out or now_ms - self._heard_ms >= patience_ms
        if is_deaf != (self.reads.refusal is not None):
            refusal = LeaderNotReady(
                f"{self.config.member_id} follows no leader of group {self.config.group}, and learns of"
                " no new entry: ask another member"
            )
            self.reads.refuse(refusal if is_deaf else None)

    def _leader_id(self) -> str:
        leader = self.node.raft.leader
        return "" if leader is None else leader.member_id

    def _follow_members(self) -> None:
        self._weakest = None
        self._followed = self.node.raft.members.version
        self.peers.follow(self.node.members.addresses(), self._voters())

    def _voters(self) -> frozenset[Replica]:
        """By any membership that may hold."""
        return frozenset(v for each in self.node.raft.members.living for v in each.voters())

    def change_members(self, change: MemberChange, done: Callable[[MemberOutcome], None]) -> None:
        """See `MemberChanges.request`. A new member is dialled first."""
        try:
            if len(change.address) > MOST_NAME_CHARACTERS:
                raise ConfigError(
                    f"an address has at most {MOST_NAME_CHARACTERS} characters, and this one has"
                    f" {len(change.address)}"
                )
            if change.operation is MemberOperation.SET_ADDRESS:
                parse_address(change.address)
            if change.operation is MemberOperation.ADD:
                check_name("the id of a member", change.member_id)
                if {",", "="} & set(change.member_id):
                    raise ConfigError(
                        f"{change.member_id!r} cannot be an id: lists of members use , and ="
                    )
                self.peers.invite(change.member_id, change.address)
        except ConfigError as error:
            done(BadRequest(str(error)))
            return
        self.node.members.request(change, functools.partial(self._change_answered, change, done))

    def _change_answered(
        self, change: MemberChange, done: Callable[[MemberOutcome], None], outcome: MemberOutcome
    ) -> None:
        """Of one that is there and lets nobody in, or was not let in, that is why it is silent."""
        peer = self.peers.get(change.member_id)
        is_connected = any(r.member_id == change.member_id for r in self.node.raft.connected)
        if isinstance(outcome, MembershipRefused) and not is_connected and peer and peer.control.problem:
            reason = f"{outcome} ({peer.control.problem})"
            outcome = MembershipRefused(reason, retry_after_ms=outcome.retry_after_ms)
        done(outcome)

    def _take_inbox(self) -> None:
        inbox, self._inbox = self._inbox, []
        for number, (connection, item) in enumerate(inbox, 1):
            try:
                if connection is None:
                    item()
                elif connection.closed:
                    continue
                elif connection.is_full:
                    connection.when_room(functools.partial(self._enter_again, connection, item))
                else:
                    session: Any = connection.session
                    session.take(self, item)
            except BeginsAnew:
                self._inbox = [*inbox[number:], *self._inbox]  # `part` knows whose they are
                raise
            except Exception as error:
                contain(error, connection)

    def _submit_flushes(self) -> None:
        flushes, self._flushes = self._flushes, []
        for work, done in flushes:
            work = functools.partial(self._measured, work)
            self._flush.submit(work, functools.partial(self._flush_ended, done))

    def _measured(self, work: Callable[[], Any]) -> Any:
        """In the flush thread."""
        began_s = time.monotonic()
        try:
            return work()
        finally:
            self.sync_us.add(int(1e6 * (time.monotonic() - began_s)))

    def _look_at_problems(self, now_s: float) -> None:
        if self.problem_log.is_due(now_s):
            status = self.node.status()
            self.problem_log.look((status.waits_for, *self.status.problems()), now_s)

    def fail(self, error: BaseException) -> None:
        """A broken invariant, a disk that refuses, a process too many: this member stops for good."""
        if self.failure is None:
            self.failure = error
            log.critical(
                f"member {self.config.member_id} of group {self.config.group} stops: {error}",
                exc_info=None if isinstance(error, ConfigError) else error,
                extra={"event": "member_stops"},
            )
            self.stop()
            self._on_failure(error)
        if not isinstance(error, Exception):
            raise error

    def _set_timer(self, now_s: float) -> None:
        wakeup_s = self.node.next_wakeup_ms() / 1000
        if self.reads.waiters:
            wakeup_s = self.reads.wakeup_s(wakeup_s)
        if wakeup_s <= now_s:
            self.schedule()  # after one look at the sockets
            return
        if self._timer is not None:
            if self._timer_at <= wakeup_s:
                return  # fires early, and is set again
            self._timer.cancel()
        self._timer_at = wakeup_s
        self._timer = self._loop.call_later(max(0.0, wakeup_s - now_s), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        if self._inbox:
            self.schedule()
        elif not self._turn_scheduled:
            self._set_timer(time.monotonic())

    @staticmethod
    def _now_ms() -> float:
        return time.monotonic() * 1000

    async def hand_over(self) -> None:
        """Returns once another member leads, or none was found within two election time-outs."""
        successor_found = asyncio.get_running_loop().create_future()

        def done(reason: str) -> None:
            if not successor_found.done():
                successor_found.set_result(reason)

        self.enter(None, functools.partial(self.node.find_successor, done))
        limit_s = (STOP_TIMEOUTS + 1) * self.config.consensus.election_timeout_ms / 1000
        with suppress(TimeoutError):  # of a member that has failed meanwhile
            reason = await asyncio.wait_for(successor_found, limit_s)
            if reason:
                said = f"{self.config.full_name} stops without a successor: {reason}"
                log.warning(said, extra={"event": "handover"})

    def stop(self) -> None:
        """No more turns; links close. The directory stays open; the caller closes it."""
        self.stopped = True
        self._submit_flushes()
        self.node.directory.snapshots.end()
        if self._timer is not None:
            self._timer.cancel()
        self.peers.close()

    def part(self, reason: str) -> None:
        """As `stop`, while the process continues: waiting requests are answered, and the other members
        find every connection closed."""
        inbox, self._inbox = self._inbox, []
        self.stop()
        for peer in self.peers.everybody():
            peer.part()
        self.node.answer_all(reason)
        self.reads.close()
        for connection, _ in inbox:
            if connection is not None:
                connection.abort()  # its requests would never be answered

    async def ended(self) -> None:
        """After `stop`: until no task of it is left in the loop."""
        await self.peers.ended()

    # ---------------------------------------------------------------- Host

    def send(self, envelope: Envelope) -> bool:
        peer = self.peers.leading_to(envelope.to)
        return peer is None or peer.send(envelope)

    def replicas_with_moving_data(self) -> Iterable[Replica]:
        peers = self.peers.everybody()
        moving = [peer.connections.connected_to for peer in peers if peer.data.has_moved()]
        return [replica for replica in moving if replica is not None]

    def flush_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._flushes.append((work, done))

    def read_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._reader.submit(work, self._finisher(done))

    def _read_beside(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """As `read_later`, for answers, which wait for no promise of this member: `done` changes nothing
        of the node."""
        self._reader.submit(work, functools.partial(self.enter_now, done))

    def apply_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._applier.submit(work, self._finisher(done))

    def promise_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._promises.submit(work, functools.partial(self.enter_now, done))

    def _finisher(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        return functools.partial(self.enter_now, self.node.finish, done)

    def role_changed(self, change: RoleChange) -> None:
        leads = change.role is Role.LEADER
        self._is_handed_over |= bool(change.because)
        if change.leader_id and (change.term, change.leader_id) != self._last_leader:
            self._last_leader = change.term, change.leader_id
            self.leader_changes["handover" if self._is_handed_over else "election"] += 1
            self._is_handed_over = False
        follows = f"follows {change.leader_id}" if change.leader_id else "knows no leader"
        leader = "" if leads else f", leader {change.leader_id or 'unknown'}"
        because = f": {change.because}" if change.because else ""
        self.events.add("leader", f"{'leads' if leads else follows} in term {change.term}{because}")
        role = f"is {change.role.value} in term {change.term}{leader}{because}"
        log.info(f"{self.config.full_name} {role}", extra={"event": "role"})
        if self._on_role_change is not None:
            self._on_role_change(self.config.group, change)

    def committed(self, committed_index: int) -> None:
        if self.reads.waiters:
            self.reads.committed(committed_index)

    def lost_committed(self, first_index: int) -> None:
        self.reads.lost_committed()
        log.critical(
            f"{self.config.full_name}: entries from index {first_index} on were acknowledged under flush"
            " = async, lost in a power failure, and are replaced by those of leader"
            f" {self.node.raft.leader}",
            extra={"event": "data_lost"},
        )

    def reader_lost(self, lost: LostRange) -> None:
        entries = f"entries {lost.first_index} to {lost.stop_index - 1}"
        log.warning(
            f"{self.config.full_name}: reader {lost.name} has lost {entries}, which it had not read: the"
            " disk was nearly full",
            extra={"event": "data_lost"},
        )

    def wall_clock_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def replacing_log(self, start: LogStart) -> None:
        ends, begins = self.node.store.end.index, start.point.index
        self.problem_log.note(
            f"its log is to be replaced by that of leader {self._leader_id()}"
            f"{now(f'it ends at {ends}, that of the leader begins after {begins}')}",
            time.monotonic(),
        )

    @property
    def level(self) -> int:
        return LEVEL

    def members_below(self, level: int) -> list[str]:
        return sorted({peer.member_id for peer in self.peers.everybody() if peer.level < level})

    def syncs(self, replica: Replica) -> bool:
        peer = self.peers.leading_to(replica)
        return peer is not None and peer.durability == Durability.SYNC.value

    def weakest_durability(self, own: Durability) -> Durability:
        if self._weakest is None:
            known = [own, *[peer.durability for peer in self.peers.everybody()]]
            self._weakest = next(each for each in _WEAKEST_FIRST if each in known)
        return self._weakest

    # ---------------------------------------------------------------- peers

    def admit(self, hello: Hello, connection: Connection, *, beside: bool) -> None:
        peer = self.peers.admit(hello, connection, beside=beside)
        group, receive = self.config.group, self.node.receive
        connection.session = PeerSession(connection, hello, group, peer, self._hear, receive)
        peer.welcomed(hello, connection)

    def _peer_refused(self, link: PeerLink) -> None:
        """Others have this member already, and nobody takes this process for it."""
        is_up = any(each.up for peer in self.peers.everybody() for each in peer.links)
        if link.refused_as_duplicate >= DUPLICATE_TRIES and not is_up:
            self.fail(ConfigError(link.problem))

    def _peer_connected(self, replica: Replica) -> None:
        self._weakest = None
        self._connected.add(replica)
        self._note_peer(f"is connected with {replica.member_id}", extra={"event": "peer_connected"})
        self.enter(None, functools.partial(self.node.connected, replica))

    def _peer_lost(self, replica: Replica, is_gone: bool) -> None:
        self._weakest = None
        if replica in self._connected:  # of its two connections the other one is reported, too
            self._connected.discard(replica)
            self._note_peer(f"has lost {replica.member_id}", extra={"event": "peer_lost"})
        self.enter(None, functools.partial(self.node.connection_lost, replica, is_gone))

    def _note_peer(self, what: str, extra: dict[str, str]) -> None:
        log.info(f"{self.config.full_name} {what}", extra=extra)
        self.events.add("peer", what)
