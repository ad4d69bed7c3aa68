"""LedgerServer: one process (or one thread of it) that is a member of one or more groups.

It opens the directories, listens, distinguishes peers from clients by their first frame, and stops
everything in order. Sockets, the disk threads and the clock are shared by all groups.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import msgspec
import uvloop

from quorumlog.config import (
    GroupConfig,
    LimitOptions,
    UsersOptions,
    parse_address,
    reloaded,
    with_staging,
)
from quorumlog.consensus.ready import RoleChange
from quorumlog.errors import ConfigError, LedgerError, ProtocolViolation, StoreFailure, UnknownGroup
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.frame import DEFAULT_MAX_FRAME_BYTES, Frame
from quorumlog.net.hello import LOG, NOT_SERVED, REFUSED, Hello, HelloResponse, refusal_of_other
from quorumlog.net.listener import Listener
from quorumlog.net.tls import Tls, refusal_of
from quorumlog.node import MachineFactory
from quorumlog.server.clients.client_session import ClientSession
from quorumlog.server.disk_thread import DiskThread
from quorumlog.server.endpoints import Endpoint, Endpoints, answer_of, checked_machines
from quorumlog.server.node_driver import NodeDriver
from quorumlog.server.peers.dialler import Dialler, NameLookup
from quorumlog.server.problem_log import is_ours
from quorumlog.server.users_of_server import UsersOfServer
from quorumlog.store.directory_kind import kind_of_machines
from quorumlog.store.disk import OsDisk, kept_descriptors
from quorumlog.store.member_directory import MemberDirectory, open_directory_of
from quorumlog.wire.client_messages import ReloadResponse

log = logging.getLogger("quorumlog.server")

GC_THRESHOLD = 50_000
"""Objects until the collector looks for cycles: an append makes a dozen that no cycle holds, and with
the interpreter's 700 a tenth of a busy leader's time goes into looking at them again and again."""
EXIT_CLEAN = 0
EXIT_FAILED = 3


class Reopening:
    def __init__(
        self,
        driver: NodeDriver,
        reason: str,
        threads: Sequence[DiskThread],
        opened: Callable[[NodeDriver, MemberDirectory], None],
    ) -> None:
        """`opened(driver, directory)`: another node takes the place of that of `driver`."""
        self._driver = driver
        self._opened = opened
        self._directory: MemberDirectory | None = driver.directory
        """What is open; None between the two."""
        self._is_over = False
        driver.part(reason)
        self._end_work_of([*threads])

    def _end_work_of(self, threads: list[DiskThread]) -> None:
        """After all that was asked of each thread: it may still write into the old log."""
        thread = threads.pop()
        if threads:
            thread.submit(lambda: None, lambda _: self._end_work_of(threads))
        else:
            thread.submit(self._open, self._adopt)

    def _open(self) -> None:
        """In the last of the threads."""
        old = self._driver.directory
        self._directory = None
        old.close(False)
        try:
            self._directory = open_directory_of(self._driver.config, old.disk)
        except ConfigError as error:
            raise StoreFailure(str(error)) from error

    def _adopt(self, result: StoreFailure | LedgerError | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        if result is not None:
            self._driver.fail(result)
            return
        assert self._directory is not None
        self._opened(self._driver, self._directory)

    def close(self) -> None:
        """The server stops; its threads have ended."""
        self._is_over = True
        if self._directory is not None:
            self._directory.close(False)


class LedgerServer:
    """`run()` blocks until SIGTERM or SIGINT. In an event loop of your own:

        async with LedgerServer([config]) as server:    # start() and stop()
            failure = await server.failed               # None: stopped without one

    The loop is left unchanged: no signal handler, executor or task remains, and errors of other tasks
    go to the loop's own exception handler.

    `groups`: all must have the same own address, which is the advertised one. `bind`: the address to
    listen on, if it differs from the advertised one."""

    def __init__(
        self,
        groups: Sequence[GroupConfig],
        *,
        bind: str | None = None,
        on_role_change: Callable[[str, RoleChange], None] | None = None,
        state_machines: Mapping[str, MachineFactory] | None = None,
        endpoints: Sequence[Endpoint] = (),
        hold_machines: Collection[str] = (),
        tls: Tls | None = None,
        users: UsersOptions | None = None,
        limits: LimitOptions | None = None,
    ) -> None:
        """`state_machines`: by name; each group has one of each. `endpoints`: see `Endpoint`.
        `hold_machines`: names of machines that are not run, so that one which ends its member lets it
        start (docs/state-machines.md). `tls`: of its port and its links; None: they are plain. `users`
        and `limits`: of all its ports."""
        if not __debug__:
            raise ConfigError("quorumlog refuses to serve under python -O: its assertions must stay on")
        if isinstance(groups, GroupConfig):
            raise ConfigError("a server takes a list of groups: LedgerServer([config])")
        if not groups:
            raise ConfigError("a server needs at least one group")
        addresses = {str(g.own_address) for g in groups}
        if len(addresses) > 1:
            raise ConfigError(
                "all groups of one server must give it the same address; they give "
                + ", ".join(sorted(addresses))
            )
        self.groups = with_staging(groups)
        names = [g.group for g in self.groups]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"group {name!r} is configured twice")
        self.address = next(iter(addresses))
        self._bind = parse_address(bind) if bind else parse_address(self.address)
        self._tls = tls
        if tls is not None:
            for group in self.groups:
                tls.check_member(group.member_id)
        self._on_role_change = on_role_change
        users = users or UsersOptions()
        if users.group and users.group not in names:
            raise ConfigError(f"[users] group: there is no group {users.group!r}")
        self.users = UsersOfServer(
            users.group or groups[0].group,
            lambda: self._drivers,
            is_plain=tls is None or tls.options.peers != "required",
            options=users,
        )
        self.users.access.quotas.set(limits or LimitOptions())
        self._endpoints = Endpoints(
            endpoints, names, checked_machines(state_machines or {}), self.users.access
        )
        self._held_machines = self._checked_held(hold_machines)
        self._drivers: dict[str, NodeDriver] = {}
        self._reopenings: dict[NodeDriver, Reopening] = {}
        self._run_id = secrets.token_hex(8)
        """Tells this process from another run of it, and from another with the same directory."""
        self._listener = Listener(
            "the log",
            self._connect,
            has_peers=True,
            option="the address in --members (or --bind)",
            run_id=self._run_id,
            tls=tls,
            second="listen",
            access=self.users.access,
            is_of_member=lambda address: address in self._names.known,
        )
        self._threads: list[DiskThread] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where it runs; None: it has not started."""
        self._loop_turn: LoopTurn
        self._names: NameLookup
        self._dialler: Dialler
        self._ended: asyncio.Future[BaseException | None] | None = None
        self._exception_handler_before: Callable[..., object] | None = None
        self.failure: BaseException | None = None
        """Why a member has stopped; also errors while it was closed."""

    def _checked_held(self, names: Collection[str]) -> frozenset[str]:
        """Raises ConfigError: a name that is misspelt would hold nothing back."""
        if isinstance(names, str):
            raise ConfigError(f"hold_machines takes a list of names: [{names!r}]")
        known = {name for config in self.groups for name in self._endpoints.machines_of(config.group)}
        unknown = sorted(set(names) - known)
        if unknown:
            runs = ", ".join(sorted(known)) or "none"
            raise ConfigError(
                "--hold-machine or hold_machines: this member has no state machine"
                f" {unknown[0]!r} (it has: {runs})"
            )
        return frozenset(names)

    def __repr__(self) -> str:
        names = ",".join(config.group for config in self.groups)
        state = "serving" if self._drivers else "not running"
        if self.failure is not None:
            state = "failed"
        return f"<LedgerServer {self.groups[0].member_id} at {self.address}, groups {names}: {state}>"

    # ---------------------------------------------------------------- starting and stopping

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT, then hand over and stop; returns the exit status."""
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        return uvloop.run(self._run())

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.hung_up)
        await self.start()
        signalled = loop.create_task(stop.wait())
        ends: list[asyncio.Future[Any]] = [signalled, self.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        await self.stop()
        return EXIT_FAILED if self.failure is not None else EXIT_CLEAN

    def hung_up(self) -> ReloadResponse:
        """Called on SIGHUP; a subclass with a configuration file reloads it."""
        if self._tls is not None:
            return self._reloaded(*self._reload_tls())
        _log_reload("SIGHUP: nothing to reload")
        return self._reloaded(["nothing to reload"])

    def _reload_tls(self) -> tuple[list[str], list[str]]:
        """Returns what has changed, and what is refused."""
        if self._tls is None:
            return [], []
        outcome = self._tls.reload()
        return ([], [outcome]) if self._tls.refused else ([outcome], [])

    def _reloaded(
        self, changed: Sequence[str], refused: Sequence[str] = (), needs_restart: Sequence[str] = ()
    ) -> ReloadResponse:
        return ReloadResponse(
            member_id=self.groups[0].member_id,
            changed=tuple(changed),
            needs_restart=tuple(needs_restart),
            refused=tuple(refused),
        )

    def reload(self, groups: Sequence[GroupConfig]) -> ReloadResponse:
        """Apply options that can change at run time; the log names changed options, and those that need
        a restart. Raises ConfigError for an invalid combination, and then nothing has changed."""
        wanted = {config.group: config for config in with_staging(groups)}
        results = [
            (driver, reloaded(driver.config, wanted[group]))
            for group, driver in self._drivers.items()
            if group in wanted
        ]
        changed, needs_restart = [], []
        for group in sorted(set(wanted) ^ set(self._drivers)):
            _log_reload(f"reload: group {group} was added or removed: this needs a restart")
            needs_restart.append(f"group {group} comes or goes")
        for driver, result in results:
            name, group = driver.config.full_name, driver.config.group
            driver.configure(result.config)
            _log_reload(f"{name}: reloaded: {', '.join(result.changed) or 'nothing has changed'}")
            changed += [f"group {group}: {each}" for each in result.changed]
            if result.needs_restart:
                _log_reload(f"{name}: needs a restart to change: {', '.join(result.needs_restart)}")
            needs_restart += [f"group {group}: {each}" for each in result.needs_restart]
        return self._reloaded(changed, needs_restart=needs_restart)

    def set_limits(self, limits: LimitOptions) -> list[str]:
        """Apply limits, also to open connections. Returns `limit old -> new` for each changed one."""
        return self.users.access.quotas.reload(limits)

    async def start(self) -> None:
        """Open every directory and listen; raises ConfigError, StoreFailure or OSError."""
        if self._drivers:
            raise ConfigError("this server runs already: start() once, or use it in `async with`")
        loop = self.loop = asyncio.get_running_loop()
        self._exception_handler_before = loop.get_exception_handler()
        loop.set_exception_handler(self._unhandled)
        self._ended = loop.create_future()
        self._threads = [
            DiskThread(f"quorumlog-{name}", loop) for name in ("flush", "promise", "read", "apply")
        ]
        self._loop_turn = LoopTurn.of(loop)
        self._names = NameLookup(loop)
        self._dialler = Dialler(self._loop_turn, self._names, self._tls)
        opened: list[MemberDirectory] = []
        try:
            await self._listener.open(*self._bind, self._names.addresses_of)
            self._endpoints.ports[LOG] = self.address
            for config in self.groups:
                kind = kind_of_machines(self._endpoints.machines_of(config.group))
                opened.append(open_directory_of(config, OsDisk(), kind=kind))
                self._drivers[config.group] = self._driver_on(opened[-1], config)
        except BaseException:
            for directory in opened:
                directory.close(False)
            self._listener.close()
            kept_descriptors.let_go(self._park_soon)
            self._drivers.clear()
            self._close_threads()
            self._give_loop_back()
            raise
        kept_descriptors.keep(self._park_soon)
        self.users.look()
        for driver in self._drivers.values():
            driver.start()
        self.users.access.moved.append(self._wake_reads)
        try:
            await self._endpoints.open(self._drivers.get)
        except BaseException:
            await self.stop()
            raise

    def _wake_reads(self) -> None:
        """Who may not read any more does not wait for entries."""
        for driver in self._drivers.values():
            if not driver.stopped:
                driver.enter(None, driver.reads.wake)

    def _park_soon(self) -> None:
        """A file has got one of the descriptors that are kept back. Any thread."""
        assert self.loop is not None
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._park_files)

    def _park_files(self) -> None:
        for driver in self._drivers.values():
            if not driver.stopped and driver not in self._reopenings:
                driver.node.store.park_files()
        kept_descriptors.refill()

    def _driver_on(self, directory: MemberDirectory, config: GroupConfig) -> NodeDriver:
        for line in directory.report:
            log.warning(f"{config.full_name}: {line}", extra={"event": "directory"})
        machines = checked_machines(self._endpoints.machines_of(config.group))
        driver = NodeDriver(
            config,
            directory,
            loop_turn=self._loop_turn,
            dialler=self._dialler,
            threads=self._threads,
            machines=machines,
            held_machines=self._held_machines & machines.keys(),
            on_failure=self._member_failed,
            on_anew=self._reopen,
            on_role_change=self._role_changed,
            run_id=self._run_id,
            listens_on="{}:{}".format(*self._bind),
            tls_port=self._tls_port,
        )
        driver.reload = self.hung_up
        return driver

    @property
    def _tls_port(self) -> int:
        return self._listener.tls_at[1] if self._listener.tls_at is not None else 0

    def _role_changed(self, group: str, change: RoleChange) -> None:
        if group == self.users.group:
            self.users.look()  # it may have seen no users so far, and be asked to append at once
        self._endpoints.role_changed(group)
        if self._on_role_change is not None:
            self._on_role_change(group, change)

    def _reopen(self, driver: NodeDriver, reason: str) -> None:
        """Another node takes its place."""
        self._reopenings[driver] = Reopening(driver, reason, self._threads, self._reopened)

    def _reopened(self, old: NodeDriver, directory: MemberDirectory) -> None:
        del self._reopenings[old]
        driver = self._driver_on(directory, old.config)
        driver.node.users.follows(old.node.users)
        self._drivers[old.config.group] = driver
        driver.start()
        self._endpoints.begins_anew(old.config.group)

    def _close_driver(self, driver: NodeDriver, *, clean: bool) -> None:
        reopening = self._reopenings.pop(driver, None)
        if reopening is not None:
            reopening.close()
        elif clean:
            driver.node.close(clean=driver.failure is None)
        else:
            driver.directory.close(False)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    @property
    def failed(self) -> asyncio.Future[BaseException | None]:
        """Completes when a member of this server has failed, with the reason, or when the server was
        stopped, with None. A new future each time, so a caller's time-out cancels only its own. Raises
        RuntimeError before `start()`."""
        if self._ended is None:
            raise RuntimeError("the server was not started: await start(), or use `async with`")
        return asyncio.shield(self._ended)

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(self.failure)

    def _give_loop_back(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.get_exception_handler() == self._unhandled:
            loop.set_exception_handler(self._exception_handler_before)

    async def stop(self) -> None:
        """Transfer leadership, answer pending requests, sync, close."""
        self._listener.close()
        kept_descriptors.let_go(self._park_soon)
        await self._endpoints.close()
        await asyncio.gather(*(d.hand_over() for d in self._drivers.values() if not d.stopped))
        for driver in self._drivers.values():
            driver.stop()
        self.users.close()  # each change of roles looks at them once more, as a hand-over
        self._close_threads()
        for driver in self._drivers.values():
            try:
                self._close_driver(driver, clean=True)
            except (StoreFailure, AssertionError) as error:
                self.failure = self.failure or error
                log.critical("%s could not be closed cleanly: %s", driver.config.data_dir, error)
        self._listener.close_connections()
        drivers, self._drivers = self._drivers, {}
        self._end()
        self._give_loop_back()
        for driver in drivers.values():
            await driver.ended()

    async def read(
        self, machine: str, question: bytes, *, group: str | None = None, timeout_ms: int = 5000
    ) -> bytes:
        """Query a state machine on a leading member: the answer includes everything acknowledged
        before. `group`: None if there is only one. Raises a LedgerError."""
        name = self.groups[0].group if group is None else group
        if name not in self._drivers:
            raise UnknownGroup(f"group {name!r} is not served here; groups: {', '.join(self._drivers)}")
        return await answer_of(self._drivers[name], machine, question, timeout_ms)

    def _close_threads(self) -> None:
        """What was submitted is on disk when this returns."""
        for thread in self._threads:
            thread.close()
        self._endpoints.ended()

    def abandon(self) -> None:
        """As if the process were killed: no hand-over, no checkpoint, no flush not already begun."""
        self._listener.close()
        self.users.close()
        kept_descriptors.let_go(self._park_soon)
        self._endpoints.abandon()
        for driver in self._drivers.values():
            driver.stop()
        self._listener.abort_connections()
        self._close_threads()
        for driver in self._drivers.values():
            self._close_driver(driver, clean=False)
        self._drivers.clear()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What a callback of the loop raised, ours or the application's."""
        error = context.get("exception")
        if isinstance(error, AssertionError | StoreFailure) and is_ours(error):
            for driver in self._drivers.values():
                driver.fail(error)
        elif self._exception_handler_before is not None:
            self._exception_handler_before(loop, context)
        else:
            loop.default_exception_handler(context)

    def _member_failed(self, error: BaseException) -> None:
        """One group's member stopped; the process goes with it, so that nobody overlooks it."""
        self.failure = self.failure or error
        self._listener.close()
        kept_descriptors.let_go(self._park_soon)
        self._listener.abort_connections()
        self._end()

    # ---------------------------------------------------------------- connections

    @property
    def drivers(self) -> list[NodeDriver]:
        return list(self._drivers.values())

    def _connect(self, connection: Connection) -> None:
        connection.on_frame = self._frame

    def _frame(self, connection: Connection, frame: Frame) -> None:
        """The first frame of a connection; those after it go to the session that it opens."""
        hello = frame.message
        if not isinstance(hello, Hello):
            raise ProtocolViolation(f"a connection begins with {type(hello).__name__} instead of Hello")
        refusal = refusal_of_other(hello, LOG, self._endpoints.ports)
        if refusal is not None:
            _refuse(connection, frame.group, refusal)
        elif hello.role == "client":
            connection.session = ClientSession(connection, self._drivers, self._close_client, self.users)
            connection.send(frame.group, self._client_welcome(frame.group, connection))
        elif hello.role in ("control", "data"):
            self._welcome_peer(connection, frame.group, hello)
        else:
            raise ProtocolViolation(f"a Hello with the role {hello.role!r}")

    def _client_welcome(self, group: str, connection: Connection) -> HelloResponse:
        driver = self._drivers.get(group)
        if driver is None:
            return HelloResponse(connection_id=connection.connection_id)
        response = driver.handshake.response(connection_id=connection.connection_id)
        return msgspec.structs.replace(
            response,
            max_entry_bytes=driver.config.storage.append_limit_bytes,
            max_frame_bytes=DEFAULT_MAX_FRAME_BYTES,
            knows_conditions=True,
            knows_promises=True,
        )

    def _welcome_peer(self, connection: Connection, group: str, hello: Hello) -> None:
        driver = self._drivers.get(group)
        if driver is None:
            names = [each.group for each in self.groups]
            refusal = f"group {group!r} is not served at {self.address}; groups: {names}"
            _refuse(connection, group, HelloResponse(code=NOT_SERVED, message=refusal))
            return
        if driver.stopped:
            # Who was let in by it would speak to nobody, and not dial its successor.
            refusal = f"{driver.config.member_id} of group {group} opens its log anew"
            _refuse(connection, group, HelloResponse(code=NOT_SERVED, message=refusal))
            return
        reason = self._refusal_by_certificate(connection, hello)
        if reason:
            own = driver.config.member_id
            refusal = f"member {own} of group {group} refuses {hello.member_id}: {reason}"
            driver.admission.note(refusal)
            response = HelloResponse(code=REFUSED, message=refusal, tls_port=self._tls_port)
            _refuse(connection, group, response)
            return
        code, reason, beside = driver.admission.judge(hello, connection)
        connection.send(group, driver.handshake.response(code, reason, connection.connection_id))
        if reason:
            if code == REFUSED:
                member = "" if hello.member_id in reason.split() else f" of {hello.member_id}"
                driver.problem_log.note(f"refused a connection{member}: {reason}", time.monotonic())
            connection.close()
            return
        driver.admit(hello, connection, beside=beside)

    def _refusal_by_certificate(self, connection: Connection, hello: Hello) -> str:
        """Why it may not speak as a member; empty: it may, as far as TLS says."""
        if self._tls is None:
            return ""
        if connection.is_encrypted:
            return refusal_of(connection.certificate, self._tls.cluster, hello.member_id)
        if self._tls.options.peers == "required":
            return "it does not use TLS, and [tls] peers is required here"
        return ""

    def _close_client(self, connection_id: str) -> None:
        """A stream has moved: nothing that its old connection queued may still be appended."""
        connection = self._listener.connections.get(connection_id)
        if connection is not None and isinstance(connection.session, ClientSession):
            connection.session.lost()
            connection.abort()


def _log_reload(what: str) -> None:
    log.warning(what, extra={"event": "reload"})


def _refuse(connection: Connection, group: str, response: HelloResponse) -> None:
    connection.send(group, response)
    connection.close()
