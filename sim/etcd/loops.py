"""asyncio in virtual time: an event loop for each process, and the connections between processes."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from quorumlog.net.frame import Frame, FrameDecoder
from quorumlog.testing.member import SimMember
from sim.clients import LATENCY_MS, DataCallback, LostCallback, SimConnection, SimPorts

CUT_MS = 20.0
"""What is held back by a cut is looked at so often."""
Later = Callable[[float, Callable[[], None]], None]


class _Server(NamedTuple):
    loop: SimLoop
    member: SimMember
    factory: Callable[[], asyncio.BufferedProtocol]


class SimSockets(SimPorts):
    """The ports of all processes, by number."""

    def __init__(self) -> None:
        super().__init__()
        self.servers: dict[int, _Server] = {}
        self.loops: list[SimLoop] = []
        self.failures: list[str] = []
        """What no code has taken from a loop or a task."""

    def connect(self, member: SimMember, on_data: DataCallback, lost: LostCallback) -> SimPipe:
        return SimPipe(self, member, on_data, lost)

    def is_cut(self, one: SimMember | None, other: SimMember) -> bool:
        """`one` None: a client, which reaches every member."""
        if one is None:
            return False
        ways = {(one.place, other.place), (other.place, one.place)}
        return bool(ways & self.cluster.network.cut)

    def close(self) -> None:
        """At the end of a run."""
        for loop in self.loops:
            loop.finish()


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, sockets: SimSockets, later: Later, member: SimMember | None = None) -> None:
        """`member` None: of a client."""
        super().__init__()
        self._sockets = sockets
        self._cluster = sockets.cluster
        self._later = later
        self.member = member
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._has_ended = False
        self.set_task_factory(self._make_task)
        sockets.loops.append(self)

    def stop_process(self) -> None:
        self._has_ended = True
        for port, server in list(self._sockets.servers.items()):
            if server.loop is self:
                del self._sockets.servers[port]

    def finish(self) -> None:
        """No task is left to be ended by the collection of garbage."""
        ready: deque[Callable[[], None]] = deque()
        self._later = lambda after_ms, act: None if after_ms else ready.append(act)
        self._has_ended = False
        for task in list(self._tasks):
            task.cancel()
        while ready:
            ready.popleft()()
        self._has_ended = True
        self.close()

    # ---------------------------------------------------------------- AbstractEventLoop

    def time(self) -> float:
        return self._cluster.now_ms / 1000

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_at(self.time(), callback, *args, context=context)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._has_ended:
            self._later(max(0.0, (when - self.time()) * 1000), partial(self._run, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def _run(self, handle: asyncio.TimerHandle) -> None:
        if self._has_ended or handle.cancelled():
            return
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)

    def call_exception_handler(self, context: Any) -> None:
        if not self._has_ended:
            self._sockets.failures.append(f"{context['message']}: {context.get('exception')!r}")

    def _make_task(self, _: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=self, **options)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    # ---------------------------------------------------------------- connections

    async def create_server(self, factory: Any, host: Any, port: Any, **_: Any) -> Any:  # type: ignore[override]
        assert self.member is not None, "clients do not listen"
        self._sockets.servers[port] = _Server(self, self.member, factory)
        name = SimpleNamespace(getsockname=lambda: (host, port))
        return SimpleNamespace(sockets=[name], close=lambda: self._sockets.servers.pop(port, None))

    async def create_connection(self, factory: Any, host: Any, port: Any, **_: Any) -> Any:  # type: ignore[override]
        sockets = self._sockets
        number = len(sockets.connections)
        chance = self._cluster.stream(f"dial after {number}, {self._cluster.now_ms}")
        await asyncio.sleep(chance.uniform(*LATENCY_MS) / 1000)
        while (server := sockets.servers.get(port)) and sockets.is_cut(self.member, server.member):
            await asyncio.sleep(CUT_MS / 1000)
        if server is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        mine = SimSocket(self, factory())
        pipe = sockets.connect(server.member, mine.received, mine.lost)
        pipe.dialler = self.member
        mine.connected(pipe.write, pipe.leave)
        pipe.accepted = SimSocket(server.loop, server.factory())
        pipe.accepted.connected(lambda data: pipe.say([data]), pipe.break_off)
        server.loop.call_soon(pipe.accepted.protocol.connection_made, pipe.accepted)
        mine.protocol.connection_made(mine)
        return mine, mine.protocol


class SimPipe(SimConnection):
    """A connection from one process to another. While its members are cut off from each other, what is
    sent waits."""

    dialler: SimMember | None = None
    accepted: SimSocket

    def __init__(
        self, sockets: SimSockets, member: SimMember, on_data: DataCallback, lost: LostCallback
    ) -> None:
        super().__init__(sockets, member, FrameDecoder(), on_data, lost)
        self._sockets = sockets
        self._due = {"out": 0, "in": 0}
        """How many would be there but for a cut."""

    def write(self, data: bytes) -> None:
        self._arrives(lambda: self.accepted.received(data))

    def take(self, frame: Frame) -> None:
        raise AssertionError("it knows no frames")

    def left(self) -> None:
        self.accepted.lost()

    def _pass(self, way: str) -> None:
        self._due[way] += 1
        if self._due[way] == 1:
            self._release(way)

    def _release(self, way: str) -> None:
        while self._due[way]:
            if self._sockets.is_cut(self.dialler, self.member):
                self._cluster.at(CUT_MS, partial(self._release, way))
                return
            super()._pass(way)
            self._due[way] -= 1


class SimSocket(asyncio.Transport):
    """One end, in the loop of its process."""

    def __init__(self, loop: SimLoop, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self._loop = loop
        self.protocol = protocol
        self._unread: deque[bytes] = deque()
        self._is_paused = self._is_closing = self._is_lost = False

    def connected(self, send: Callable[[bytes], None], leave: Callable[[], None]) -> None:
        self._send, self._leave = send, leave

    def received(self, data: bytes) -> None:
        self._unread.append(data)
        self._loop.call_soon(self._read)

    def _read(self) -> None:
        while self._unread and not (self._is_paused or self._is_closing):
            data = self._unread.popleft()
            into: Any = self.protocol.get_buffer(-1)
            taken = min(len(data), len(into))
            into[:taken] = data[:taken]
            if data[taken:]:
                self._unread.appendleft(data[taken:])
            self.protocol.buffer_updated(taken)

    def lost(self) -> None:
        """The other end is gone."""
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._is_closing = True
        if not self._is_lost:
            self._is_lost = True
            self.protocol.connection_lost(None)

    # ---------------------------------------------------------------- Transport

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self._send(bytes(data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._leave()
            self.lost()

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._loop.call_soon(self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """What is written is under way at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return "127.0.0.1", 1
        return SimpleNamespace(setsockopt=lambda *_: None) if name == "socket" else default
