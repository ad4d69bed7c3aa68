"""LocalCluster: a whole cluster inside the calling process, for tests and notebooks.

Real `LedgerServer`s with sockets on loopback, a thread and an event loop each.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import uvloop

from quorumlog.config import (
    DEFAULT_GROUP,
    MIB,
    ConsensusConfig,
    GroupConfig,
    MemberAddress,
    StoreConfig,
    TlsOptions,
)
from quorumlog.consensus.ready import Role, RoleChange
from quorumlog.errors import ConfigError, LeaderNotReady
from quorumlog.net.tls import Tls
from quorumlog.node import MachineFactory
from quorumlog.server.endpoints import Endpoint
from quorumlog.server.free_ports import free_ports
from quorumlog.server.ledger_server import LedgerServer

START_TIMEOUT_S = 30.0
CONSENSUS = ConsensusConfig(max_heartbeat_leak=40)
"""Six seconds without a heartbeat before anybody is given up: members that share a process are starved
or paused together, and a leader that was silent for the usual 750 ms would be deposed for it. A member
that was killed is missed at once, by its connections."""


class _MemberThread:
    def __init__(self, server: LedgerServer, name: str) -> None:
        self.server = server
        self._loop = uvloop.new_event_loop()
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"quorumlog-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self.server.start())
        except BaseException as error:
            self._failure = error
            self._started.set()
            self._loop.close()
            return
        self._started.set()
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def wait_started(self) -> None:
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def is_running(self) -> bool:
        """Waits until it has started, or failed to."""
        self._started.wait(START_TIMEOUT_S)
        return self._thread.is_alive() and self._failure is None

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result(START_TIMEOUT_S)
        self._end()

    def kill(self) -> None:
        done = threading.Event()

        def abandon() -> None:
            try:
                self.server.abandon()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(abandon)
        done.wait()
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class LocalCluster:
    """`with LocalCluster(members=3) as cluster: client = connect(cluster.servers)`.

    `directory`: place of the members' data directories; by default a temporary one that is removed at
    the end. `ports`: one per member; by default free ones. `store="memory"` keeps everything in memory.
    `consensus`: by default `CONSENSUS`. `state_machines`: as in `LedgerServer`. `time_marks`: as in
    `GroupConfig`; without them the indices of entries appended under one leader are consecutive.
    `staging`: as in `GroupConfig`; the Spark sink needs it.

    Members are called n0, n1, ...; `kill`, `stop`, `restart`, `server` and `data_dir` take such an id,
    and raise ConfigError for an unknown one, or if the member is not running. Raises ConfigError for
    invalid options."""

    def __init__(
        self,
        members: int = 3,
        *,
        directory: str | Path | None = None,
        flush: str = "sync",
        store: str = "file",
        group: str = DEFAULT_GROUP,
        consensus: ConsensusConfig | None = None,
        storage: StoreConfig | None = None,
        append_timeout_ms: int = 5000,
        time_marks: bool = True,
        staging: bool = True,
        ports: Sequence[int] | None = None,
        state_machines: Mapping[str, MachineFactory] | None = None,
        endpoints: Callable[[str], Sequence[Endpoint]] | None = None,
        tls: Callable[[str], TlsOptions | None] | None = None,
    ) -> None:
        """`endpoints`, `tls`: of a member, by its id; made anew for each of its starts."""
        if members < 1:
            raise ConfigError(f"a cluster needs at least one member, not {members}")
        if ports is not None and len(ports) != members:
            raise ConfigError(f"{members} members need as many ports, not {len(ports)}")
        self._temporary = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="quorumlog-"))
        self.members = tuple(
            MemberAddress(f"n{number}", "127.0.0.1", port)
            for number, port in enumerate(ports or free_ports(members))
        )
        self._configs = {
            member.member_id: GroupConfig(
                member_id=member.member_id,
                members=self.members,
                data_dir=str(self.directory / member.member_id),
                group=group,
                store=store,
                consensus=consensus or CONSENSUS,
                storage=storage or StoreConfig(flush=flush, segment_bytes=64 * MIB),
                append_timeout_ms=append_timeout_ms,
                time_marks=time_marks,
                staging=staging,
            )
            for member in self.members
        }
        self._machines = state_machines
        self._endpoints = endpoints
        self._tls = tls
        self._running: dict[str, _MemberThread] = {}
        self._is_started = False
        self._changed = threading.Condition()
        self._roles: dict[str, RoleChange] = {}
        """The last role change of each running member; guarded by `_changed`."""

    def __repr__(self) -> str:
        running = ", ".join(self.running) or "nobody"
        return f"<LocalCluster of {len(self.members)} at {self.servers}: {running} running>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Start every member and wait for a leader. Raises the error of a member that does not start,
        LeaderNotReady after 30 s, and ConfigError if a member runs already."""
        if self._running:
            raise ConfigError(f"{', '.join(self._running)} run already: start() once, or use `with`")
        self._is_started = True
        try:
            started = [self._start(m.member_id) for m in self.members]
            for member in started:
                member.wait_started()
            self.leader()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop every member cleanly; removes a temporary directory."""
        for member_id, member in list(self._running.items()):
            if member.is_running:
                self.stop(member_id)
            else:
                del self._running[member_id]
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self, member_id: str) -> _MemberThread:
        config = self._configs[member_id]
        options = None if self._tls is None else self._tls(member_id)
        server = LedgerServer(
            [config],
            on_role_change=functools.partial(self._role_changed, member_id),
            state_machines=self._machines,
            endpoints=() if self._endpoints is None else self._endpoints(member_id),
            tls=None if options is None else Tls(options),
        )
        member = _MemberThread(server, member_id)
        self._running[member_id] = member
        return member

    def _role_changed(self, member_id: str, group: str, change: RoleChange) -> None:
        with self._changed:
            if group == self._configs[member_id].group:
                self._roles[member_id] = change
            self._changed.notify_all()

    # ---------------------------------------------------------------- what a test does to it

    def kill(self, member_id: str) -> None:
        """Approximates SIGKILL within the process: sockets close, nothing is flushed."""
        self._take(member_id).kill()
        self._forget(member_id)

    def stop(self, member_id: str) -> None:
        """Stop a member as SIGTERM does: hand over, flush, close."""
        self._take(member_id).stop()
        self._forget(member_id)

    def start_another(self) -> MemberAddress:
        """Start one more process on an empty directory; it becomes a member once it is added to the
        group."""
        numbers = [int(member_id[1:]) for member_id in self._configs]
        address = MemberAddress(f"n{max(numbers) + 1}", "127.0.0.1", free_ports(1)[0])
        like = self._configs[self.members[0].member_id]
        self._configs[address.member_id] = replace(
            like,
            member_id=address.member_id,
            members=(*self.members, address),
            data_dir=str(self.directory / address.member_id),
        )
        self.restart(address.member_id)
        return address

    def restart(self, member_id: str) -> None:
        """Start a member on its directory; one that runs is stopped first. Returns once it listens."""
        self._is_started = True
        self._config(member_id)
        if member_id in self._running:
            self.stop(member_id)
        try:
            self._start(member_id).wait_started()
        except BaseException:
            self._running.pop(member_id, None)
            raise

    def _take(self, member_id: str) -> _MemberThread:
        member = self._running_member(member_id)
        del self._running[member_id]
        return member

    def _running_member(self, member_id: str) -> _MemberThread:
        self._config(member_id)
        if member_id not in self._running:
            running = ", ".join(self.running) or "no member is"
            raise ConfigError(f"{member_id} is not running; running: {running}")
        return self._running[member_id]

    def _forget(self, member_id: str) -> None:
        with self._changed:
            self._roles.pop(member_id, None)
            self._changed.notify_all()

    def _config(self, member_id: str) -> GroupConfig:
        if member_id not in self._configs:
            raise ConfigError(f"there is no member {member_id}; members: {', '.join(self._configs)}")
        return self._configs[member_id]

    # ---------------------------------------------------------------- looking at it

    @property
    def servers(self) -> str:
        """The address list for `connect`."""
        return ",".join(str(m) for m in self.members)

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(sorted(self._running))

    def data_dir(self, member_id: str) -> Path:
        """The member's data directory, whether it runs or not."""
        return Path(self._config(member_id).data_dir)

    def server(self, member_id: str) -> LedgerServer:
        """The running server, for operations that this class lacks; it lives in another thread."""
        return self._running_member(member_id).server

    def leader(self, timeout_s: float = START_TIMEOUT_S, *, other_than: str | None = None) -> str:
        """The id of the leader with the highest term; waits for one (other than a given member).

        Raises LeaderNotReady.
        """
        if not self._is_started:
            raise LeaderNotReady("no member runs: use the cluster in a `with` block, or call start()")
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                leaders = [
                    (change.term, member_id)
                    for member_id, change in self._roles.items()
                    if change.role is Role.LEADER and member_id != other_than
                ]
                if leaders:
                    return max(leaders)[1]
                if not self._changed.wait(deadline - time.monotonic()):
                    raise LeaderNotReady(f"no leader within {timeout_s} s; running: {self.running}")
