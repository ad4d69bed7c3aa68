"""BrokerServer: a message store behind a port."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvloop

from quorumlog.broker.errors import NeedsReplicatedRole, NotReplicated
from quorumlog.broker.failover.failover_service import FailoverService
from quorumlog.broker.message_store import MessageStore
from quorumlog.broker.messages.record import host_bytes
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.replication.service.ha_service import HAService
from quorumlog.broker.serving.broker_port import BrokerPort
from quorumlog.broker.serving.broker_roles import BrokerRoles
from quorumlog.broker.serving.broker_service import Puts, ServedGroups
from quorumlog.broker.serving.broker_session import BrokerSession
from quorumlog.broker.serving.put_queue import EXPIRY_INTERVAL_S, PutQueue
from quorumlog.broker.serving.replica_requests import ReplicaRequests
from quorumlog.broker.wire.broker_messages import (
    AnyBrokerMessage,
    FailoverRequest,
    FailoverResponse,
    OldLogRequest,
    ReplicaRequest,
    ReplicaResponse,
    RoleRequest,
    StatusResponse,
)
from quorumlog.broker.wire.group_messages import AnyGroupMessage
from quorumlog.config import parse_address
from quorumlog.errors import BadRequest, LedgerError, StoreFailure
from quorumlog.net.frame import Frame
from quorumlog.net.limits import process_limits
from quorumlog.net.tls import Tls
from quorumlog.version import DESCRIPTION

log = logging.getLogger("quorumlog.broker")

GC_THRESHOLD = 50_000
NEEDS_DLEDGER = (
    "groups, sessions, delays and topics that change need brokers with --role dledger; of a classic"
    " broker, `pull` by offset"
)


class BrokerServer:
    def __init__(
        self,
        store: MessageStore,
        bind: str,
        ha_service: HAService | None = None,
        failover: Callable[[], FailoverService] | None = None,
        groups: ServedGroups | None = None,
        tls: Tls | None = None,
    ) -> None:
        """`ha_service`: of a master or a slave. `failover`: who says which of both it is; called where
        the loop runs, before anybody is let in."""
        self.store = store
        self._tls = tls
        self.ha_service = ha_service
        self._make_failover = failover
        self.failover: FailoverService | None = None
        self.address = bind
        self.groups = groups
        """Topics that change, and consumer groups; None: it has neither."""
        self.roles = BrokerRoles(bind, None if ha_service is None else ha_service.replica)
        self.failure: StoreFailure | None = None
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
        if self._tls is not None:
            loop.add_signal_handler(signal.SIGHUP, self._tls.reload)
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
        self._loop = loop
        self._failed: asyncio.Future[Any] = loop.create_future()
        if self._make_failover is not None:
            self.failover = self._make_failover()
            self.failover.failed = self._store_failed
        self.put_queue = PutQueue(self.store.commit_log, loop)
        self.puts: Puts = self.put_queue
        self.port = BrokerPort(self, self.address, self._tick, {}, self._tls)
        self.reads, self.waiting = self.port.reads, self.port.waiting
        self.store.commit_log.store_host = host_bytes(self._host, self._port)
        self.store.reput.dispatched = self._grown
        if self.groups is not None:
            self.puts = self.groups.open(self.put_queue, self.reads, loop)
        self.store.on_failure = self._store_failed
        await self.port.open()
        self.replica_requests = ReplicaRequests(self.ha_service, loop, is_by_hand=self.failover is None)
        self.store.start()
        self._expire()
        if self.ha_service is not None:
            self.ha_service.on_role = self._role_changed
            await self.ha_service.start(self._store_failed)
        if self.failover is not None:
            self.failover.start()
        self.port.tick()

    def _tick(self) -> None:
        if self.groups is not None:
            self.groups.tick(self.store.clock())

    def _role_changed(self) -> None:
        self.roles.changed()
        if self.groups is not None:
            self.groups.look()

    def _grown(self, keys: list[QueueKey]) -> None:
        """Any thread."""
        self.waiting.grown(keys)
        if self.groups is not None:
            self.groups.grown(keys)

    @property
    def store_host(self) -> bytes:
        return self.store.commit_log.store_host

    def request(self, session: BrokerSession, message: AnyBrokerMessage, frame: Frame) -> bool:
        if isinstance(message, FailoverRequest):
            try:
                session.answer(self.failover_status(message))
            except LedgerError as error:
                session.refuse(message.request_id, error)
        elif isinstance(message, ReplicaRequest):

            def done(outcome: ReplicaResponse | LedgerError) -> None:
                if isinstance(outcome, LedgerError):
                    session.refuse(message.request_id, outcome)
                else:
                    session.answer(outcome)

            self.replica_requests.take(message, done)
        elif isinstance(message, RoleRequest):
            self.roles.take(session, message)
        elif self.groups is not None and isinstance(message, AnyGroupMessage):
            return self.groups.request(session, message, frame)
        elif isinstance(message, OldLogRequest | AnyGroupMessage):
            # No violation: a client need not know what only a broker on a replicated log does.
            session.refuse(message.request_id, NeedsReplicatedRole(NEEDS_DLEDGER))
        else:
            return False
        return True

    def lost(self, session: BrokerSession) -> None:
        self.roles.lost(session)
        if self.groups is not None:
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

    def status(self, request_id: int) -> StatusResponse:
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
        return StatusResponse(
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
        )

    def failover_status(self, request: FailoverRequest) -> FailoverResponse:
        """Raises NotReplicated, BadRequest."""
        failover = self.failover
        if failover is None:
            raise NotReplicated("no coordinator decides over this broker: start it with --failover")
        if request.verb not in ("", "resign"):
            raise BadRequest(f"failover has no verb {request.verb!r}")
        if request.verb:
            failover.resign()
        return failover.status(request.request_id)

    async def stop(self) -> None:
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
