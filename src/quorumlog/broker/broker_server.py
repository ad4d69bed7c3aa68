"""BrokerServer: a classic broker as a server."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import uvloop
from msgspec import convert
from msgspec.structs import replace

from quorumlog.broker import wire
from quorumlog.broker.broker_port import (
    EXPIRY_INTERVAL_S,
    BrokerPort,
    BrokerSession,
    PutQueue,
    Puts,
    RoleWatchers,
)
from quorumlog.broker.classic_users import ClassicUsers
from quorumlog.broker.epochs import Peer, RunKey
from quorumlog.broker.errors import NeedsReplicatedRole, NotReplicated, SwitchRefused
from quorumlog.broker.failover import FailoverService
from quorumlog.broker.groups.classic_group_log import ClassicGroupLog
from quorumlog.broker.groups.group_service import GroupService
from quorumlog.broker.message import host_bytes
from quorumlog.broker.record_batch import QueueKey
from quorumlog.broker.replication.acknowledgements import SlaveState
from quorumlog.broker.replication.ha_service import HAClient, HAService
from quorumlog.broker.replication.replica import BrokerReplica
from quorumlog.broker.store.log_files import BrokerRole
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.config import LimitOptions, UsersOptions, parse_address
from quorumlog.errors import BadRequest, ConfigError, StoreFailure
from quorumlog.measures import Requests
from quorumlog.net.frame import Frame
from quorumlog.net.limits import process_limits
from quorumlog.net.tls import Tls
from quorumlog.store.disk import kept_descriptors
from quorumlog.version import DESCRIPTION
from quorumlog.wire.client_messages import ChangeUsersRequest, UsersRequest

_MASTER, _SLAVE = 0, 1


def role_response(address: str, replica: BrokerReplica | None, request_id: int) -> wire.RoleResponse:
    """The master, as a classic broker knows it; without a `replica` the broker itself."""
    if replica is None:
        return wire.RoleResponse(
            request_id=request_id,
            member_id=address,
            role=BrokerRole.ASYNC_MASTER.value,
            broker_id=_MASTER,
            term=0,
            master=address,
            brokers=[(address, _MASTER, address)],
        )
    # A master that may acknowledge nothing is none for a client: another one may be it by now.
    is_master = replica.takes_messages
    known = replica.master
    master = replica.me if is_master else known or Peer(id="")
    listed = replica.history.copy_list
    peers = {} if listed is None else {peer.id: peer.address for peer in listed.members}
    if known is not None and known.id:
        peers[known.id] = known.address
    peers[replica.id] = replica.me.address
    return wire.RoleResponse(
        request_id=request_id,
        member_id=replica.id,
        role=replica.role.value if is_master else BrokerRole.SLAVE.value,
        broker_id=_MASTER if is_master else _SLAVE,
        term=replica.epoch,
        master=master.address,
        brokers=[
            (peer_id, _MASTER if peer_id == master.id else _SLAVE, address)
            for peer_id, address in sorted(peers.items())
        ],
    )


# ---------------------------------------------------------------- ReplicaRequests
# What a client asks of a broker as master or slave, and makes it be.


def state_of(
    replica: BrokerReplica, request_id: int = 0, *, dialect: str, client: HAClient | None = None
) -> wire.ReplicaResponse:
    """`client`: its connection to a master; None: it has none."""
    record, history = replica.record, replica.history
    is_slave = replica.role is BrokerRole.SLAVE
    client = client if is_slave else None
    problem = client.problem if client else ""
    if replica.fenced_by:
        problem = f"other brokers voted for epoch {replica.fenced_by}: this is no longer the master"
    in_sync, listed = replica.in_sync_set, history.copy_list
    if listed is not None and not listed.copies:
        listed = None  # a coordinator says who counts
    return wire.ReplicaResponse(
        request_id=request_id,
        id=replica.id,
        directory_id=replica.directory_id,
        address=replica.me.address,
        ha_address=replica.me.ha_address,
        role=replica.role.value,
        epoch=record.promised.number,
        leader=record.promised.leader,
        log_epoch=replica.log_epoch,
        fenced_by=replica.fenced_by,
        is_leading=replica.is_leading,
        min_offset=replica.min_offset,
        max_offset=replica.max_offset,
        flushed_offset=replica.flushed_offset,
        confirm_offset=replica.confirm_offset,
        in_sync_replicas=(listed.copies if listed else 0) if is_slave else replica.in_sync_replicas,
        in_sync_set=None if in_sync is None else sorted({each.id for each in in_sync}),
        dialect=dialect,
        history=record.history,
        confirmed=record.confirmed,
        copy_list=listed,
        is_list_confirmed=not is_slave and replica.is_run_confirmed,
        master=record.master,
        master_offset=client.master_offset if client else -1,
        master_release=client.master_release if client else "",
        slaves=[] if is_slave else [_slave_row(replica, slave) for slave in replica.slaves()],
        tails=[convert(tail, wire.TailRow, from_attributes=True) for tail in record.tails],
        problem=problem,
        has_users=replica.store.has_users,
    )


def work_of(replica: BrokerReplica, request: wire.ReplicaRequest) -> Callable[[], None] | None:
    """None for an unknown operation. Blocks for the disk."""
    if request.asked_directory_id not in ("", replica.directory_id):
        return partial(_refuse_as_another, replica.id)
    epoch, broker_id, directory_id = request.epoch, request.broker_id, request.directory_id
    at = {"address": request.address, "ha_address": request.ha_address}
    master = Peer(id=broker_id, directory_id=directory_id, **at)
    return {
        "promise": lambda: replica.promise(epoch, directory_id, anew=True),
        "lead": lambda: replica.lead(
            epoch,
            RunKey(*request.confirmed),
            request.forced_list,
            may_lose_users=request.may_lose_users,
        ),
        "slave": lambda: replica.become_slave(epoch, master),
        "resume": replica.resume,
        "drain": replica.drain,
        "add": lambda: replica.add(broker_id),
        "remove": lambda: replica.remove(broker_id),
        "copies": lambda: replica.set_copies(request.copies),
    }.get(request.verb)


def _refuse_as_another(broker_id: str) -> None:
    raise SwitchRefused(
        f"broker {broker_id} has another directory than when the switch began: switch again"
    )


def _slave_row(replica: BrokerReplica, slave: SlaveState) -> wire.PeerRow:
    peer, row = replica.peer_of(slave.id), convert(slave, wire.PeerRow, from_attributes=True)
    counts = replica.counts(slave.member)
    return replace(row, address=peer.address, ha_address=peer.ha_address, counts=counts)


# ---------------------------------------------------------------- BrokerServer
# A message store behind a port.

log = logging.getLogger("quorumlog.broker")

GC_THRESHOLD = 50_000
NO_OPTIONS = UsersOptions()


class BrokerServer:
    def __init__(
        self,
        store: MessageStore,
        bind: str,
        ha_service: HAService | None = None,
        failover: Callable[[], FailoverService] | None = None,
        tls: Tls | None = None,
        users: UsersOptions = NO_OPTIONS,
        limits: Callable[[], LimitOptions] | None = None,
    ) -> None:
        """`ha_service`: of a master or a slave. `failover`: decides which of both it is; called on the
        loop, before clients are accepted. `limits`: called again at each SIGHUP; may raise ConfigError.
        Raises ConfigError."""
        self.store = store
        self._tls = tls
        self.ha_service = ha_service
        self._make_failover = failover
        self.failover: FailoverService | None = None
        self.address = bind
        replica = None if ha_service is None else ha_service.replica
        self.groups = ClassicGroupLog(store, GroupService(), replica)
        if replica is not None and not replica.has_epochs and store.has_users:
            raise ConfigError(
                f"{store.root} has users, which --ha-dialect rocketmq does not replicate to slaves:"
                " start it with --ha-dialect quorumlog"
            )
        is_plain = ha_service is not None and tls is None
        self._limits = limits
        self.users = ClassicUsers(store, self.groups, replica, users, is_plain=is_plain)
        if limits is not None:
            self.users.access.quotas.set(limits())
        self.roles = RoleWatchers(partial(role_response, bind, replica))
        self.requests = Requests()
        self.failure: StoreFailure | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where it runs; None: it has not started."""
        self._host, self._port = parse_address(bind)

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM or SIGINT, or until the store fails."""
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        uvloop.run(self._run(ready))

    async def _run(self, ready: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.hung_up)
        await self.start()
        try:
            ready()
            ends = [loop.create_task(stop.wait()), self._failed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self.stop()

    async def start(self) -> None:
        """Raises ConfigError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._loop = self.loop = loop
        self._failed: asyncio.Future[Any] = loop.create_future()
        if self._make_failover is not None:
            self.failover = self._make_failover()
        self.put_queue = PutQueue(self.store.commit_log, loop)
        self.port: BrokerPort = BrokerPort(
            self, self.address, self._tick, {}, self._tls, self.users.access
        )
        self.reads, self.waiting = self.port.reads, self.port.waiting
        self.store.commit_log.store_host = host_bytes(self._host, self._port)
        self.store.reput.dispatched = self._grown
        self.puts: Puts = self.groups.open(self.put_queue, self.reads, loop)
        self.store.on_failure = self._store_failed
        await self.port.open()
        kept_descriptors.keep(self._park_soon)
        self.store.start()
        self._expire()
        if self.ha_service is not None:
            await self.ha_service.start(self._store_failed, self._role_changed)
        if self.failover is not None:
            self.failover.start(self._store_failed)
        self.port.tick()

    def hung_up(self) -> None:
        """Called on SIGHUP, which ends no broker, whether or not it has files to read again."""
        if self._tls is not None:
            self._tls.reload()
        if self._limits is None:
            if self._tls is None:
                log.warning(
                    "SIGHUP: nothing to reload: there is no --config file", extra={"event": "reload"}
                )
            return
        try:
            self.users.access.quotas.reload(self._limits())
        except ConfigError as error:
            log.error("SIGHUP: no limits are reloaded: %s", error, extra={"event": "reload"})

    def _park_soon(self) -> None:
        """A file has got one of the descriptors that are kept back. Any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._park_files)

    def _park_files(self) -> None:
        self.store.commit_log.park_files()
        kept_descriptors.refill()

    def _tick(self) -> None:
        self.groups.tick(self.store.clock())
        self.users.tick()

    def _role_changed(self) -> None:
        self.roles.changed()
        self.groups.look()
        self.users.look()

    def _grown(self, keys: list[QueueKey]) -> None:
        """Any thread."""
        self.waiting.grown(keys)
        self.groups.grown(keys)

    cluster_id = ""

    @property
    def store_host(self) -> bytes:
        return self.store.commit_log.store_host

    def request(self, session: BrokerSession, message: wire.AnyBrokerMessage, frame: Frame) -> bool:
        if isinstance(message, wire.FailoverRequest):
            session.answer(self.failover_status(message))
        elif isinstance(message, wire.ReplicaRequest):
            self._replica_request(session, message)
        elif isinstance(message, wire.RoleRequest):
            self.roles.take(session, message)
        elif isinstance(message, ChangeUsersRequest | UsersRequest):
            self.users.request(session, message)
        elif isinstance(message, wire.OldLogRequest):
            # No violation: a client need not know what only a broker on a replicated log does.
            raise NeedsReplicatedRole(
                "a log that was taken over lies below that of brokers with --role dledger only"
            )
        else:
            return self.groups.request(session, message, frame)
        return True

    def _replica_request(self, session: BrokerSession, request: wire.ReplicaRequest) -> None:
        """What blocks runs on the service's thread for it. Raises NotReplicated, SwitchRefused,
        BadRequest."""
        service = self.ha_service
        if service is None:
            raise NotReplicated(
                "this broker is neither master nor slave: start it with quorumlog broker serve --role"
            )
        if request.verb and self.failover is not None:
            raise SwitchRefused(
                "the master is elected by a coordinator; to change it use: quorumlog broker resign"
            )
        if request.verb == "drain":
            # Never blocks, and must not wait behind what does.
            service.replica.drain()

        def state() -> wire.ReplicaResponse:
            return state_of(
                service.replica, request.request_id, dialect=service.dialect, client=service.client
            )

        if request.verb in ("", "drain"):
            session.answer(state())
            return
        work = work_of(service.replica, request)
        if work is None:
            raise BadRequest(f"a broker has no operation {request.verb!r}")

        def carry_out() -> None:
            try:
                work()
            except ConfigError as error:
                raise BadRequest(str(error)) from None

        service.submit(carry_out, lambda outcome: session.settle(outcome, state()))

    def lost(self, session: BrokerSession) -> None:
        self.roles.lost(session)
        self.groups.lost(session)

    def _expire(self) -> None:
        """RocketMQ's FlushDiskWatcher."""
        self.store.commit_log.flush_service.expire(self.store.clock())
        self._expiry = self._loop.call_later(EXPIRY_INTERVAL_S, self._expire)

    def _store_failed(self, failure: StoreFailure) -> None:
        """Any thread."""

        def fail() -> None:
            if self.failure is None:
                self.failure = failure
                if not self._failed.done():
                    self._failed.set_result(None)

        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(fail)

    def status(self, request_id: int) -> wire.BrokerStatusResponse:
        store = self.store
        queues = store.queues.items()
        usage = store.disk.usage(store.root)
        problems = [str(store.failure)] if store.failure is not None else []
        if self.failover is not None and self.failover.rules.problem:
            problems.append(f"failover: {self.failover.rules.problem}")
        if store.cleaner.is_full:
            problems.append("the disk is above disk_space_warning_level_ratio: messages are refused")
        if process_limits().problem:
            problems.append(process_limits().problem)
        problems += self.users.problems
        return wire.BrokerStatusResponse(
            request_id=request_id,
            version=DESCRIPTION,
            role=store.commit_log.role.value,
            flush=store.config.flush_disk_type,
            directory=store.root,
            min_offset=store.commit_log.min_offset,
            max_offset=store.commit_log.max_offset,
            flushed_offset=store.commit_log.flushed_offset,
            confirm_offset=store.commit_log.confirm_offset,
            dispatch_behind_bytes=store.reput.behind_bytes,
            put_messages=self.put_queue.put_messages,
            put_bytes=self.put_queue.put_bytes,
            topics=len({key.topic for key, _ in queues}),
            queues=len(queues),
            disk_used_ratio=usage.used_ratio,
            set_aside_files=store.set_aside.count.files,
            set_aside_bytes=store.set_aside.count.size_bytes,
            problems=problems,
            users=self.users.words,
            has_users=self.store.has_users,
        )

    def failover_status(self, request: wire.FailoverRequest) -> wire.FailoverResponse:
        """Raises NotReplicated, BadRequest."""
        failover = self.failover
        if failover is None:
            raise NotReplicated("no coordinator decides over this broker: start it with --failover")
        if request.verb not in ("", "resign"):
            raise BadRequest(f"failover has no operation {request.verb!r}")
        if request.verb:
            failover.resign()
        return failover.status(request.request_id)

    async def stop(self) -> None:
        kept_descriptors.let_go(self._park_soon)
        self.port.close()
        self._expiry.cancel()
        if self.failover is not None:
            await self.failover.stop()
        if self.ha_service is not None:
            self.ha_service.stop()
            await self._loop.run_in_executor(None, self.ha_service.join)
        await self._loop.run_in_executor(None, self.store.close)
        await self.port.close_connections()
        self.port.ended()
