"""LoopThread: an asyncio loop on a daemon thread. Shell: blocking calls of asyncio objects.

Callers leave coroutines in a queue and wait, each on a lock; the loop is woken once for all that wait to
be begun. Any thread may call, and any thread may close.

A forked child shares the loop's epoll and sockets with its parent, so it neither runs nor closes that
loop: its descriptors are turned to the null device, and the next call starts another loop.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar

from quorumlog.errors import BadRequest

T = TypeVar("T")
_LEFT = (
    "was opened before the process forked and stays with the parent: open another one in this process"
)
_LAST_TURNS = 16
"""Of the loop, for what a closed client has answered to reach its caller."""
_LAST_WAIT_S = 1.0
"""For tasks that were cancelled."""


class OwnLoop:
    """The loop that an asyncio client was first used in: connections, timers and waiters are that
    loop's."""

    __slots__ = ("_process", "loop")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()

    def running(self) -> asyncio.AbstractEventLoop:
        """Raises RuntimeError if it is another than before, BadRequest in a forked child."""
        loop = asyncio.get_running_loop()
        if loop is not self.loop:
            if self.loop is not None and self._process != os.getpid():
                raise BadRequest(f"this {_LEFT}")
            if self.loop is not None:
                # An answer would wake a loop that does not run: the caller would wait for ever.
                raise RuntimeError(
                    "this client belongs to the event loop that it was first used in; make another one"
                    " in the loop of each asyncio.run()"
                )
            self.loop = loop
        return loop


class _Call(Generic[T]):
    __slots__ = ("_has_answered", "_is_cancelled", "_task", "_work", "error", "result")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False
        self._has_answered = threading.Lock()
        self._has_answered.acquire()
        self.error: BaseException | None = None
        self.result: T

    def begin(self, loop: asyncio.AbstractEventLoop, begun: set[_Call[Any]]) -> None:
        if self._is_cancelled:
            self._work.close()
            return
        begun.add(self)
        self._task = loop.create_task(self._carry_out(begun))

    async def _carry_out(self, begun: set[_Call[Any]]) -> None:
        try:
            self.result = await self._work
        except BaseException as error:  # the caller's, whatever it is
            self.error = error
        begun.discard(self)
        self._has_answered.release()

    def cancel(self) -> None:
        """On the loop."""
        self._is_cancelled = True
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()

    def refuse(self, error: BaseException) -> None:
        """It will not be carried out, or not to its end."""
        if self._task is None:
            self._work.close()
        self.error = error
        self._has_answered.release()

    def wait(self) -> None:
        self._has_answered.acquire()


class LoopThread:
    """Started by the first call, ended by `close` or when no longer referenced: tasks on the loop keep
    it alive for a turn only."""

    def __init__(self, closed: Callable[[], Exception]) -> None:
        """`closed`: the exception of calls that still wait when it is closed, and of later ones."""
        self._closed = closed
        self.generation = 0
        """Rises in a forked child: objects of an earlier one belong to the parent."""
        self.is_closed = False
        self._reset()
        _ALL.add(self)

    def _reset(self) -> None:
        self.lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._selector: selectors.BaseSelector | None = None
        self._thread: threading.Thread | None = None
        self._waiting: deque[_Call[Any]] = deque()
        """Not begun yet."""
        self._begun: set[_Call[Any]] = set()
        self._is_woken = False
        self._ending: asyncio.Task[None] | None = None
        self._is_over = False
        self.last: Callable[[], Coroutine[Any, Any, None]] = _nothing
        """Carried out when it ends, if anything was."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, or its exception. An interrupt of the waiting thread cancels it."""
        if self._thread is threading.current_thread():
            work.close()
            raise RuntimeError("a blocking client is called on its own thread, where it would wait")
        call = _Call(work)
        try:
            self._hand_over(call)
            call.wait()
        except BaseException:
            if self._loop is not None:
                with suppress(RuntimeError):  # it has ended
                    self._loop.call_soon_threadsafe(call.cancel)
            raise
        if call.error is None:
            return call.result
        error = call.error
        if isinstance(error, asyncio.CancelledError) and self.is_closed:
            error = self._closed()
        try:
            raise error
        finally:
            del error, call  # its traceback holds this frame

    def call(self, function: Callable[[], T]) -> T:
        """Run it on the loop, and return its result."""

        async def work() -> T:
            return function()

        return self.run(work())

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start it without a waiter."""
        self._hand_over(_Call(work))

    def _hand_over(self, call: _Call[Any]) -> None:
        # While the interpreter ends no daemon thread runs any more: nobody would ever answer.
        if self.is_closed or sys.is_finalizing() or (self._thread is None and not self._start()):
            call.refuse(self._closed())
            return
        self._waiting.append(call)
        if self._is_over:
            self._refuse_waiting()
        elif not self._is_woken:
            self._is_woken = True
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._begin_waiting)
            except RuntimeError:
                pass  # it has ended, and `close` refuses what waits
            except BaseException:  # an interrupt: the next one wakes it
                self._is_woken = False
                raise

    def _start(self) -> bool:
        with self.lock:
            if self._thread is None and not self.is_closed:
                self._selector = selectors.DefaultSelector()
                self._loop = asyncio.SelectorEventLoop(self._selector)
                thread = threading.Thread(
                    target=_run,
                    args=(self._loop, weakref.ref(self)),
                    name="quorumlog-client",
                    daemon=True,
                )
                thread.start()
                self._thread = thread
            return self._thread is not None

    def _begin_waiting(self) -> None:
        self._is_woken = False
        assert self._loop is not None
        if self._is_over:
            self._refuse_waiting()
        while self._waiting:
            self._waiting.popleft().begin(self._loop, self._begun)

    def _refuse_waiting(self) -> None:
        with suppress(IndexError):
            while True:
                self._waiting.popleft().refuse(self._closed())

    def has_run(self) -> None:
        """The loop has ended."""
        self._is_over = True
        self._refuse_waiting()

    def __del__(self) -> None:
        loop = self._loop
        if loop is None or self.is_closed or sys.is_finalizing():
            return
        self.is_closed = True  # iterations may be dropped with it, and end later
        with suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(_end_unclosed, loop, self.last)
        # Last: where warnings are errors this raises.
        warnings.warn("a blocking client was not closed", ResourceWarning, source=self, stacklevel=2)

    def close(self) -> None:
        """Carries `last` out; then all that waits ends. May be repeated, by any thread: each returns
        when it has ended."""
        with self.lock:
            is_first, self.is_closed = not self.is_closed, True
            thread, loop = self._thread, self._loop
        if thread is None or loop is None:
            return
        if is_first:
            loop.call_soon_threadsafe(self._begin_end, loop)
        if thread is not threading.current_thread():
            thread.join()

    def has_ended(self) -> bool:
        """It is closed; then it has ended when this returns."""
        if self.is_closed and self._thread is not None:
            self._thread.join()
        return self.is_closed

    def _begin_end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ending = loop.create_task(self._end(loop))

    async def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._begin_waiting()
            await self.last()
            for _ in range(_LAST_TURNS):
                if self._begun:
                    await asyncio.sleep(0)
            await _end_tasks(loop)
        finally:
            self._is_over = True
            for call in list(self._begun):
                call.refuse(self._closed())
            loop.stop()

    def forget(self) -> None:
        """In a forked child."""
        if self._loop is not None and self._selector is not None and not self._loop.is_closed():
            null = os.open(os.devnull, os.O_RDWR)
            # Not closed: who owns these numbers would close what others have got under them by then.
            for number in [key.fd for key in self._selector.get_map().values()]:
                os.dup2(null, number, inheritable=False)
            if isinstance(self._selector, selectors.EpollSelector):
                os.dup2(null, self._selector.fileno(), inheritable=False)
            os.close(null)
            _FORGOTTEN.append((self._loop, self._begun, self._waiting))
        self._reset()
        self.generation += 1


def _run(loop: asyncio.AbstractEventLoop, whose: weakref.ref[LoopThread]) -> None:
    try:
        loop.run_forever()
        loop.close()
    finally:
        if (thread := whose()) is not None:
            thread.has_run()


async def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    await asyncio.sleep(0)  # transports hear that they are closed
    ends = loop.time() + _LAST_WAIT_S
    while (left := asyncio.all_tasks() - {asyncio.current_task()}) and loop.time() < ends:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=_LAST_WAIT_S)


def _end_unclosed(
    loop: asyncio.AbstractEventLoop, last: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    async def end() -> None:
        try:
            await last()
            await _end_tasks(loop)
        finally:
            loop.stop()

    _ENDING.add(ending := loop.create_task(end()))
    ending.add_done_callback(_ENDING.discard)


async def _nothing() -> None:
    pass


_ENDING: set[asyncio.Task[None]] = set()
_ALL: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_FORGOTTEN: list[object] = []
"""Of parents: were it collected, it would be closed."""


def _forget_all() -> None:
    for thread in list(_ALL):
        thread.forget()


os.register_at_fork(after_in_child=_forget_all)


ONE_SESSION = (
    "a producer has one session at a time, which stays with the process that has forked: make another"
    " client in this one, with a producer_id of its own"
)


class Closes(Protocol):
    async def close(self) -> None: ...


A = TypeVar("A")
C = TypeVar("C", bound=Closes)


class Shell(Generic[A]):
    """Blocking calls of `made`, which a client has handed out: an open stream, a lock, a watch."""

    def __init__(self, thread: LoopThread, made: A) -> None:
        self._thread = thread
        self._made = made
        self._generation = thread.generation

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(
            f"a {name} cannot be pickled or copied: it has a thread and connections; where another"
            " process needs one, as in a worker of a pool or a function that Spark sends to its tasks,"
            " connect there"
        )

    @property
    def _it(self) -> A:
        """Raises BadRequest in a forked child."""
        if self._generation != self._thread.generation:
            raise BadRequest(f"this {type(self).__name__} {_LEFT}")
        return self._made

    @property
    def _is_left(self) -> bool:
        """It is the parent's, or has ended with its client: there is nothing to end."""
        return self._generation != self._thread.generation or self._thread.is_closed

    def _each(self, items: AsyncIterator[T]) -> Iterator[T]:
        async def step() -> T:
            return await anext(items)

        try:
            while True:
                try:
                    yield self._step(step)
                except StopAsyncIteration:
                    return
        finally:
            if isinstance(items, AsyncGenerator) and not self._is_left:
                self._thread.start(items.aclose())

    def _step(self, step: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._it  # noqa: B018 - raises
        return self._thread.run(step())


class ClientShell(Shell[C]):
    """A blocking client. In a forked child it connects anew, with the same arguments."""

    def __init__(
        self,
        make: Callable[[], C],
        closed: Callable[[], Exception],
        *,
        end: Callable[[C], Coroutine[Any, Any, None]] | None = None,
        stays_with_parent: str = "",
    ) -> None:
        """`end`: closes it at once, where `close` waits for earlier calls. `stays_with_parent`: why a
        forked child cannot use it."""
        super().__init__(LoopThread(closed), make())
        self._make = make
        self._end = end
        self._stays_with_parent = stays_with_parent
        self._ends_with(self._made)

    def _ends_with(self, made: C) -> None:
        end = self._end
        self._thread.last = made.close if end is None else lambda: end(made)

    @property
    def _it(self) -> C:
        if self._generation != self._thread.generation:
            if self._stays_with_parent:
                raise BadRequest(self._stays_with_parent)
            with self._thread.lock:
                if self._generation != self._thread.generation:
                    _FORGOTTEN.append(self._made)
                    self._made, self._generation = self._make(), self._thread.generation
                    self._ends_with(self._made)
        return self._made

    def close(self) -> None:
        """End its connections and all waiting calls, in any thread. May be repeated."""
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
