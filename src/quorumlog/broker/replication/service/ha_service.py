"""HAService: a broker's replication, whichever role it has: it lets slaves in, or follows a master."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from quorumlog.broker.replication.protocol.master_link import LinkToSlave, MasterLink
from quorumlog.broker.replication.protocol.old_dialect import OldMasterLink
from quorumlog.broker.replication.protocol.rocketmq_links import (
    RocketmqMasterLink,
    RocketmqSlaveLink,
)
from quorumlog.broker.replication.protocol.slave_link import LinkToMaster, SlaveLink
from quorumlog.broker.replication.replica import Replica
from quorumlog.broker.replication.replica_core import ReplicaObserver
from quorumlog.broker.replication.service.ha_client import HAClient
from quorumlog.broker.replication.service.ha_connection import AnyBytes, HAConnection
from quorumlog.broker.store.log_files import Role
from quorumlog.config import parse_address
from quorumlog.errors import ConfigError, StoreFailure
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.listener import Listener
from quorumlog.net.tls import Tls, refusal_of
from quorumlog.server.disk_thread import DiskThread
from quorumlog.stray_log import StrayLog

log = logging.getLogger("quorumlog.broker")

TICK_S = 0.05
CONFIRM_INTERVAL_S = 0.002
"""Slaves are told what is confirmed so often at most, if nothing else is sent."""
QUORUMLOG, ROCKETMQ = "quorumlog", "rocketmq"


class Wakeup:
    """Any thread, however often: one call on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._is_set = False
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            if self._is_set:
                return
            self._is_set = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        with self._lock:
            self._is_set = False
        self._call()


class HAService(ReplicaObserver):
    """On the loop's thread, but for what a replica calls."""

    def __init__(
        self, replica: Replica, dialect: str = QUORUMLOG, bind: str = "", tls: Tls | None = None
    ) -> None:
        """`bind`: where slaves are let in, if it is not the address that they are told. `tls`: between
        master and slaves, which Java's do not speak. Raises ConfigError."""
        if dialect not in (QUORUMLOG, ROCKETMQ):
            raise ConfigError(f"--ha-dialect must be {QUORUMLOG} or {ROCKETMQ}, not {dialect!r}")
        self.replica = replica
        self.dialect = dialect
        self._tls = tls if dialect == QUORUMLOG else None
        self._host, self._port = parse_address(bind or replica.me.ha_address)
        self._listener = Listener(
            "the broker",
            self._came,
            decoder=AnyBytes,
            has_peers_only=True,
            option="--ha-port",
            tls=self._tls,
        )
        self._connections: dict[HAConnection, None] = {}
        self._confirm_timer: asyncio.TimerHandle | None = None
        self._is_noting = False
        self._to_master: SlaveLink | None = None
        """The newest link to a master."""
        self._strays = StrayLog(log)
        self.client: HAClient | None = None

    async def start(self, failed: Callable[[StoreFailure], None], changed: Callable[[], None]) -> None:
        """`changed` is called on the loop: the role, the master or the epoch is another one. Raises
        ConfigError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._loop, self._failed, self._changed = loop, failed, changed
        self._reads = DiskThread("broker-ha-reads", loop)
        self._records = DiskThread("broker-ha-records", loop)
        self._turn, self._thread = LoopTurn.of(loop), threading.get_ident()
        self._grown = Wakeup(loop, self._push)
        self._confirmed = Wakeup(loop, self._confirm_later)
        self._roles = Wakeup(loop, self._role_changed)
        self.client = HAClient(self.replica, loop, self._link_to_master, failed, self._tls)
        self.replica.observer = self
        await self._listener.open(self._host, self._port)
        self._role_changed()
        self._tick()

    def role_changed(self) -> None:
        self._roles()

    def confirmed(self) -> None:
        self._confirmed()

    def grown(self) -> None:
        if threading.get_ident() == self._thread:
            self._push()  # what was put: its slaves have the longest way to go
        else:
            self._grown()

    # ---------------------------------------------------------------- links

    def _intervals(self) -> dict[str, Any]:
        config = self.replica.store.config
        return {
            "heartbeat_ms": config.ha_send_heartbeat_interval,
            "silence_ms": config.ha_housekeeping_interval,
        }

    def _came(self, connection: Connection) -> None:
        foreign = partial(self._foreign, connection)
        link = self._link_to_slave(connection.peer_host, self.replica.store.clock(), foreign)
        session = HAConnection(
            connection,
            self.replica,
            link,
            self._reads,
            self._loop.call_soon,
            self._listener.greeted,
            self._lost,
            self._strays,
        )
        connection.session = session
        connection.is_always_heard = True  # what a slave says is small, and it is silent to who is deaf
        self._connections[session] = None

    def _link_to_slave(
        self, host: str, now_ms: float, foreign: Callable[[str], str] = lambda slave_id: ""
    ) -> LinkToSlave:
        link: LinkToSlave
        replica = self.replica
        if self.dialect == ROCKETMQ:
            size = replica.store.config.ha_transfer_batch_size
            link = RocketmqMasterLink(replica, host, now_ms, chunk_bytes=size, **self._intervals())
            if not replica.is_leading:
                link.close("this broker is not the master")
        else:
            refusal = "" if replica.is_leading else f"broker {replica.id} is not the master"
            link = MasterLink(replica, now_ms, **self._intervals(), refusal=refusal, foreign=foreign)
        return link

    def _foreign(self, connection: Connection, slave_id: str) -> str:
        """Why it is not that slave, by its certificate; empty: it is, or there is no TLS."""
        return (
            "" if self._tls is None else refusal_of(connection.certificate, self._tls.cluster, slave_id)
        )

    def _link_to_master(self, now_ms: float) -> LinkToMaster:
        own = self.replica.own_log()
        if self.dialect == ROCKETMQ:
            return RocketmqSlaveLink(
                own.max_offset,
                own.file_bytes,
                now_ms,
                own_tail=self.replica.store.last_record(),
                reports_flushed=own.is_sync_flush,
                **self._intervals(),
            )
        last = self._to_master
        if isinstance(last, OldMasterLink):
            is_old = last.master is not None
        else:  # who closes without a word to our greeting may be of the release before
            is_old = last is not None and not last.is_heard
        self._to_master = (OldMasterLink if is_old else SlaveLink)(own, now_ms, **self._intervals())
        return self._to_master

    def _lost(self, connection: HAConnection) -> None:
        self._connections.pop(connection, None)

    # ---------------------------------------------------------------- events

    def _role_changed(self) -> None:
        for connection in list(self._connections):
            connection.end("the role, or the list, has changed")
        assert self.client is not None
        self.client.restart()
        self._changed()

    def _push(self) -> None:
        if self.replica.role is Role.SLAVE:
            assert self.client is not None
            self.client.wakeup()
            return
        self._turn.is_begun = True
        try:
            for connection in list(self._connections):
                connection.settle()
        finally:
            self._turn.flush()

    def _confirm_later(self) -> None:
        if self._confirm_timer is None:
            self._confirm_timer = self._loop.call_later(CONFIRM_INTERVAL_S, self._confirm)

    def _confirm(self) -> None:
        self._confirm_timer = None
        for connection in list(self._connections):
            connection.link.confirmed()
            connection.settle()

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        now_ms = self.replica.store.clock()
        for connection in list(self._connections):
            connection.tick(now_ms)
        assert self.client is not None
        self.client.tick(now_ms)
        self.replica.group_transfer.expire(now_ms)
        if self.replica.outlasts_its_drain:
            self._records.submit(self.replica.end_drain, lambda outcome: None)
        self._note()

    def _note(self) -> None:
        """What a master has to write down for its slaves to know it."""
        replica = self.replica
        if self._is_noting or replica.role is Role.SLAVE:
            return
        if replica.has_confirmed_run:
            work = replica.note_confirmed
        elif replica.has_ahead_to_note:
            work = replica.note_ahead
        elif joining := replica.joining():
            work = partial(replica.add, joining)
        else:
            return
        self._is_noting = True
        self._records.submit(work, self._noted)

    def _noted(self, outcome: object) -> None:
        self._is_noting = False
        if isinstance(outcome, StoreFailure):
            self._failed(outcome)

    def submit(self, work: Callable[[], None], done: Callable[[object], None]) -> None:
        """A change of roles, which blocks: off the loop, in order."""
        self._records.submit(work, done)

    def stop(self) -> None:
        """No connection is left; then `join`."""
        self._listener.close()
        self._ticker.cancel()
        self.replica.stop_acknowledging()
        for connection in list(self._connections):
            connection.close("the broker stops")
        assert self.client is not None
        self.client.close()

    def join(self) -> None:
        """Blocks until what was received is written. Off the loop."""
        assert self.client is not None
        self.client.join()
        self._reads.close()
        self._records.close()
