"""AdminPort: a thread with a loop of its own, which answers while the loop that it looks at hangs."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from quorumlog.admin import page
from quorumlog.admin.looks import Look, Sample, Seen, TakeLook, unhealthy, unready
from quorumlog.admin.metrics import Exposition, process_samples
from quorumlog.admin.process import Process
from quorumlog.admin.who import ASKING, Lookers
from quorumlog.config import parse_address
from quorumlog.errors import ConfigError, the_extra
from quorumlog.measures import Histogram
from quorumlog.net.connection import LoopTurn
from quorumlog.net.tls import Tls
from quorumlog.store.disk import refusal
from quorumlog.stray_log import is_loopback

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Handler

log = logging.getLogger("quorumlog.server")

OPEN = ("/healthz", "/readyz")
"""Paths without authentication: an orchestrator has no password."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOK_EVERY_S = 0.5
PAGE_EVERY_S = 1.0
HANGS_AFTER_S = 2.0
"""A loop that has not turned for so long is not healthy."""
MOST_CONNECTIONS = 64
"""Beyond them one that asks nothing is closed, the oldest first, so that a probe always comes in."""
SILENT_S = 10.0
"""A connection that asks nothing for so long is closed."""


class AdminPort:
    """`with AdminPort(listen, process): ...`; any thread may open and close it."""

    def __init__(
        self, listen: str, process: Process, *, tls: Tls | None = None, insecure: bool = False
    ) -> None:
        """`listen`: HOST:PORT. `tls`: of the port; None: it is plain, and other machines reach it only
        if it may be `insecure`. Raises ConfigError."""
        try:
            import aiohttp.web
            import prometheus_client  # noqa: F401
        except ImportError as error:
            raise ConfigError(f"--admin needs a web server ({error}), {the_extra('admin')}") from None
        self._web = aiohttp.web
        host, port = parse_address(listen)
        if tls is None and not insecure and not is_loopback(host):
            raise ConfigError(
                f"--admin {listen} is reachable from other machines without TLS: bind to the loopback"
                " interface, give the server a certificate (--tls-cert), or set insecure = true in"
                " [admin] of --config"
            )
        self._process = process
        self._tls = tls
        self._seen: Seen | None = None
        self._throughput = page.Throughput()
        self.lag = Histogram()
        """Of the loop, in microseconds."""
        self._is_asked = False
        self._asking: set[object] = set()
        """Connections whose request is being answered."""
        self._lookers = Lookers(tls, is_loopback=is_loopback(host), wrong=self._wrong)
        self._exposition = Exposition(lambda: self._seen, self._process_samples)
        try:
            self._socket = socket.create_server((host, port), backlog=MOST_CONNECTIONS)
        except OSError as error:
            raise ConfigError(refusal(f"--admin {listen}", "listened on", error)) from None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="quorumlog-admin", daemon=True)

    @property
    def address(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    @property
    def url(self) -> str:
        return f"http{'' if self._tls is None else 's'}://{self.address}"

    @property
    def seen(self) -> Seen | None:
        return self._seen

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            log.exception("the admin port has failed; the member continues")
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        web = self._web
        runner = web.AppRunner(
            self._app(),
            access_log=None,
            keepalive_timeout=SILENT_S,
            handler_cancellation=True,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        context, server = None, None
        try:
            while not self._stop.is_set():
                self._ask()
                if self._seen is not None:
                    self._throughput.add(self._seen)
                newest = None if self._tls is None else self._tls.server
                if server is None or newest is not context:
                    if server is not None:
                        server.close()
                    context, server = newest, await self._listen(runner, newest)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), LOOK_EVERY_S)
        finally:
            if server is not None:
                server.close()
            await runner.cleanup()

    async def _listen(self, runner: web.AppRunner, context: ssl.SSLContext | None) -> asyncio.Server:
        manager = runner.server
        assert manager is not None

        def accept() -> asyncio.BaseProtocol:
            transports = {each: each.transport for each in manager.connections}
            live = [each for each, at in transports.items() if at is not None and not at.is_closing()]
            live.sort(key=lambda each: each in self._asking)
            for each in live[: max(0, len(live) - MOST_CONNECTIONS + 1)]:
                if (transport := transports[each]) is not None:
                    transport.abort()
            return manager()

        return await self._loop.create_server(
            accept,
            sock=self._socket.dup(),
            ssl=context,
            ssl_handshake_timeout=None if context is None else SILENT_S,
        )

    # ---------------------------------------------------------------- the loop that is looked at

    def _ask(self) -> None:
        """At most one question is on its way: a loop that hangs is not flooded."""
        loop = self._process.loop
        if loop is not None and not self._is_asked:
            self._is_asked = True
            try:
                loop.call_soon_threadsafe(self._look, loop, time.monotonic())
            except RuntimeError:
                self._is_asked = False  # that loop is closed

    def _look(self, loop: asyncio.AbstractEventLoop, asked_s: float) -> None:
        """There: a look a turn, so that the looks at many groups hold it for no longer than one."""
        at_s = time.monotonic()
        self.lag.add(int(1e6 * (at_s - asked_s)))
        waiting, looks = list(self._process.looks()), list[Look]()

        def take() -> None:
            looks.append(_taken(waiting.pop(0)))
            go_on()

        def go_on() -> None:
            if waiting:
                loop.call_soon(take)
            else:
                self._seen = Seen(at_s, tuple(looks))
                self._is_asked = False

        go_on()

    # ---------------------------------------------------------------- what is asked

    def _app(self) -> web.Application:
        @self._web.middleware
        async def count_request(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._asking.add(request.protocol)
            try:
                refused = None if request.path in OPEN else await self._refused(request)
                return refused or await handler(request)
            finally:
                self._asking.discard(request.protocol)

        app = self._web.Application(middlewares=[count_request])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/", self._page)
        app.router.add_get("/events", self._events)
        return app

    async def _refused(self, request: web.Request) -> web.Response | None:
        """For who may not look."""
        users, transport = self._process.users, request.transport
        shown = None if transport is None else transport.get_extra_info("peercert")
        refusal = await self._lookers.refusal(
            users.newest, request.headers, shown, f"{request.remote}:-"
        )
        if refusal is None:
            return None
        status, why = refusal
        headers = ASKING if status == 401 else None
        return self._web.Response(status=status, text=f"{why}\n", headers=headers)

    def _wrong(self, name: str, address: str) -> None:
        users, loop = self._process.users, self._process.loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(users.access.tell_of_wrong, name, address)

    async def _healthz(self, request: web.Request) -> web.Response:
        return self._verdict(unhealthy(self._seen, time.monotonic(), HANGS_AFTER_S))

    async def _readyz(self, request: web.Request) -> web.Response:
        return self._verdict(self._unready(request.query.get("leader")))

    async def _metrics(self, request: web.Request) -> web.Response:
        return self._web.Response(body=self._exposition.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _page(self, request: web.Request) -> web.Response:
        shown = page.whole(self._seen, self._unready(), self._throughput)
        return self._web.Response(text=shown, content_type="text/html", headers=page.HEADERS)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """The page anew, every second, until either side ends or may not look any more."""
        response = self._web.StreamResponse(headers=page.HEADERS)
        response.content_type = "text/event-stream"
        await response.prepare(request)
        while not self._stop.is_set() and await self._refused(request) is None:
            shown = page.body(self._seen, self._unready(), self._throughput)
            await asyncio.wait_for(response.write(f"data: {shown}\n\n".encode()), SILENT_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), PAGE_EVERY_S)
        return response

    def _process_samples(self) -> Iterable[Sample]:
        loop = self._process.loop
        strays = 0 if loop is None else LoopTurn.of(loop).strays.closed
        failures = self._process.users.access.failures
        ends_s = None if self._tls is None else self._tls.expires_s
        return process_samples(self.lag.taken(), strays, failures, ends_s)

    def _unready(self, leads: str | None = None) -> list[str]:
        return unready(self._seen, time.monotonic(), HANGS_AFTER_S, leads)

    def _verdict(self, reasons: list[str]) -> web.Response:
        if reasons:
            return self._web.Response(status=503, text="".join(f"{each}\n" for each in reasons))
        return self._web.Response(text="ok\n")


def _taken(take: TakeLook) -> Look:
    """What is wrong with looking is no harm to what is looked at."""
    try:
        return take()
    except Exception as error:
        log.exception("the admin port could not look")
        return Look("", "", unready=(f"unknown: {type(error).__name__}: {error}",))
