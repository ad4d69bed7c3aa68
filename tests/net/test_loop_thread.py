"""Blocking calls of an asyncio client: from any thread, until anybody closes it, and after a fork."""

from __future__ import annotations

import asyncio
import gc
import os
import selectors
import signal
import socket
import threading
import warnings
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from quorumlog.errors import BadRequest
from quorumlog.net.loop_thread import ClientShell, LoopThread, OwnLoop, Shell, _Call

WAIT_S = 60.0


class Echo:
    """Sends to a server what it is given, and reads it back."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.is_ended = False

    async def say(self, line: bytes) -> bytes:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        self._streams[1].write(line + b"\n")
        return (await self._streams[0].readline()).rstrip()

    async def wait(self, begun: Callable[[], object] = lambda: None) -> None:
        begun()
        await asyncio.Event().wait()

    async def lines(self) -> AsyncGenerator[bytes]:
        for number in range(2):
            yield await self.say(b"%d" % number)
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.is_ended = True


class BlockingEcho(ClientShell[Echo]):
    def __init__(self, port: int, **options: Any) -> None:
        super().__init__(lambda: Echo(port), lambda: BadRequest("the client is closed"), **options)

    def say(self, line: bytes) -> bytes:
        return self._thread.run(self._it.say(line))

    def wait(self, begun: Callable[[], object] = lambda: None) -> None:
        self._thread.run(self._it.wait(begun))

    def lines(self) -> Any:
        return self._each(self._it.lines())

    def stream(self) -> BlockingStream:
        return BlockingStream(self._thread, self._it)


class BlockingStream(Shell[Echo]):
    def say(self, line: bytes) -> bytes:
        return self._thread.run(self._it.say(line))


class Server:
    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while came := connection.recv(4096):
                connection.sendall(came)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server() -> Any:
    server = Server()
    yield server
    server.close()


def in_a_child(work: Callable[[], str]) -> str:
    """What `work` says, or raises, in a forked child."""
    receiver, sender = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.alarm(int(WAIT_S))
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(sender, said.encode())
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver) as lines:
        said = lines.read()
    os.waitpid(child, 0)
    return said


def outcome_of(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def test_any_thread_may_call_and_each_has_its_own_answer(server: Server) -> None:
    answers: dict[int, list[bytes]] = {}
    loop_thread = LoopThread(lambda: BadRequest("closed"))

    async def double(number: int) -> bytes:
        await asyncio.sleep(0)
        return b"%d" % (2 * number)

    def call(number: int) -> None:
        answers[number] = [loop_thread.run(double(number)) for _ in range(50)]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert answers == {number: [b"%d" % (2 * number)] * 50 for number in range(8)}
    loop_thread.close()


def test_what_it_raises_the_caller_raises(server: Server) -> None:
    with BlockingEcho(server.port) as client, pytest.raises(TypeError):
        client.say("text")  # type: ignore[arg-type]


def test_close_of_another_thread_ends_who_waits(server: Server) -> None:
    client = BlockingEcho(server.port)
    waits = threading.Event()
    thread, found = outcome_of(lambda: client.wait(waits.set))
    assert waits.wait(WAIT_S)
    client.close()
    client.close()
    thread.join(WAIT_S)
    assert [str(error) for error in found] == ["the client is closed"]
    with pytest.raises(BadRequest, match="the client is closed"):
        client.say(b"late")


def test_close_ends_an_iteration(server: Server) -> None:
    client = BlockingEcho(server.port)
    second = threading.Event()

    def read() -> None:
        for line in client.lines():
            if line == b"1":
                second.set()

    thread, found = outcome_of(read)
    assert second.wait(WAIT_S)
    client.close()
    thread.join(WAIT_S)
    assert [str(error) for error in found] == ["the client is closed"]


def test_one_that_nobody_has_any_more_ends() -> None:
    """Each left a thread, an event loop and its connections for ever."""
    who_is_dropped_is_closed()


def who_is_dropped_is_closed() -> None:
    server = Server()
    client = BlockingEcho(server.port)
    stream, made, thread = client.stream(), client._made, None
    assert client.say(b"first") == b"first"
    thread = client._thread._thread
    assert thread is not None
    del client
    assert stream.say(b"it is used still") == b"it is used still"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del stream
        gc.collect()
    assert [each.category for each in told if "client was not closed" in str(each.message)]
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert made.is_ended
    server.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_nobody_has_any_more_ends_where_warnings_are_errors(server: Server) -> None:
    client = BlockingEcho(server.port)
    assert client.say(b"first") == b"first"
    thread = client._thread._thread
    assert thread is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del client
        gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_close_before_the_first_call_starts_nothing(server: Server) -> None:
    client = BlockingEcho(server.port)
    client.close()
    with pytest.raises(BadRequest, match="closed"):
        client.say(b"late")
    assert client._thread._thread is None


def of_nobody() -> LoopThread:
    return LoopThread(lambda: BadRequest("closed"))


def a_call_that_is_answered_is_nobodys_any_more() -> None:
    """Else it would be answered once more when its client is closed."""
    loop_thread = of_nobody()
    assert loop_thread.call(lambda: 1) == 1
    assert not loop_thread._begun
    loop_thread.close()


def test_a_call_that_is_answered_is_nobodys_any_more() -> None:
    a_call_that_is_answered_is_nobodys_any_more()


@contextmanager
def interrupts() -> Iterator[None]:
    """Others may have set what they do."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGINT, before)
    raise AssertionError("it was not interrupted")


def an_interrupt_of_who_waits_cancels() -> None:
    cancelled: list[bool] = []

    async def work() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    loop_thread = of_nobody()
    with interrupts():
        loop_thread.run(work())
    for _ in range(2):  # turns of the loop
        loop_thread.call(lambda: None)
    assert cancelled
    loop_thread.close()


def test_an_interrupt_of_who_waits_cancels() -> None:
    an_interrupt_of_who_waits_cancels()


def an_interrupt_of_who_hands_over_stops_no_later_call() -> None:
    """And what was handed over is not begun."""
    loop_thread = of_nobody()
    loop_thread.call(lambda: None)
    loop = loop_thread._loop
    assert loop is not None
    wakes = loop.call_soon_threadsafe
    ran: list[int] = []

    def interrupted(*called: Any) -> None:
        loop.call_soon_threadsafe = wakes  # type: ignore[method-assign]
        raise KeyboardInterrupt

    loop.call_soon_threadsafe = interrupted  # type: ignore[assignment,method-assign]
    with interrupts():
        loop_thread.call(lambda: ran.append(1))
    thread, found = outcome_of(lambda: loop_thread.call(lambda: ran.append(2)))
    thread.join(WAIT_S)
    assert found == [None]
    assert ran == [2]
    loop_thread.close()


def test_an_interrupt_of_who_hands_over_stops_no_later_call() -> None:
    an_interrupt_of_who_hands_over_stops_no_later_call()


def close_ends_whatever_waits() -> None:
    """What has begun is cancelled, and ended where it takes no notice; what has not is refused."""
    loop_thread = of_nobody()
    cancelled: list[str] = []
    begun = threading.Semaphore(0)

    async def wait(name: str, *, is_deaf: bool = False) -> None:
        begun.release()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(name)
                if not is_deaf:
                    raise

    waiting = [
        outcome_of(lambda: loop_thread.run(wait("hears"))),
        outcome_of(lambda: loop_thread.run(wait("deaf", is_deaf=True))),
    ]
    for _ in waiting:
        assert begun.acquire(timeout=WAIT_S)
    late = _Call(wait("late"))

    async def last() -> None:
        """Another thread has looked whether it is closed just before it was."""
        asyncio.get_running_loop().call_soon(loop_thread._waiting.append, late)

    loop_thread.last = last
    loop_thread.close()
    assert {"hears", "deaf"} <= {*cancelled}
    assert not late._has_answered.locked()
    for thread, found in waiting:
        thread.join(WAIT_S)
        assert [repr(each) for each in found] == ["BadRequest('closed')"]


def test_close_ends_whatever_waits() -> None:
    close_ends_whatever_waits()


def a_call_may_close_its_client() -> None:
    loop_thread = of_nobody()
    thread, found = outcome_of(lambda: loop_thread.call(lambda: loop_thread.close()))
    thread.join(WAIT_S)
    assert found == [None]
    assert loop_thread.has_ended()


def test_a_call_may_close_its_client() -> None:
    a_call_may_close_its_client()


def a_forgotten_loop_holds_no_descriptor() -> None:
    """As in a forked child, whose parent goes on with the same epoll and the same sockets."""
    loop_thread = of_nobody()
    selector = loop_thread._selector = selectors.DefaultSelector()
    loop_thread._loop = asyncio.SelectorEventLoop(selector)
    here, there = socket.socketpair()
    with here, there:
        selector.register(here, selectors.EVENT_READ)
        loop_thread.forget()
        for number in (here.fileno(), selector.fileno()):
            assert os.readlink(f"/proc/self/fd/{number}") == os.devnull
        assert loop_thread._loop is None, "the next call starts another one"


def test_a_forgotten_loop_holds_no_descriptor() -> None:
    a_forgotten_loop_holds_no_descriptor()


def what_was_opened_before_a_fork_says_so() -> None:
    loop_thread = of_nobody()
    stream = Shell(loop_thread, Echo(0))
    assert stream._it is stream._made
    loop_thread.forget()
    try:
        found: object = stream._it
    except BadRequest as error:
        found = str(error)
    assert "before the process forked" in str(found)


def test_what_was_opened_before_a_fork_says_so() -> None:
    what_was_opened_before_a_fork_says_so()


def test_a_call_on_its_own_thread_says_so(server: Server) -> None:
    with BlockingEcho(server.port) as client:

        async def work() -> bytes:
            return client.say(b"inside")

        with pytest.raises(RuntimeError, match="own thread"):
            client._thread.run(work())


def test_a_forked_child_connects_anew_and_the_parent_goes_on(server: Server) -> None:
    with BlockingEcho(server.port) as client:
        assert client.say(b"before") == b"before"
        assert in_a_child(lambda: client.say(b"child").decode()) == "child"
        assert client.say(b"after") == b"after"
        assert in_a_child(lambda: (client.close(), "closed")[1]) == "closed"
        assert client.say(b"still") == b"still"
        assert server.connections == 2


def test_a_child_holds_no_connection_of_its_parent(server: Server) -> None:
    """Else nobody would be told that the parent has gone."""
    with BlockingEcho(server.port) as client:
        client.say(b"before")

        def sockets() -> str:
            links = [os.readlink(f"/proc/self/fd/{number}") for number in _numbers(client)]
            return " ".join(sorted(set(links)))

        assert in_a_child(sockets) == os.devnull


def _numbers(client: BlockingEcho) -> list[int]:
    assert client._made._streams is not None
    return [client._made._streams[1].get_extra_info("socket").fileno()]


def test_what_stays_with_the_parent_says_so(server: Server) -> None:
    with BlockingEcho(server.port, stays_with_parent="one session: make another") as client:
        stream = client.stream()
        assert stream.say(b"a") == b"a"
        assert in_a_child(lambda: stream.say(b"b").decode()) == (
            "BadRequest: this BlockingStream was opened before the process forked and stays with the"
            " parent: open another one in this process"
        )
        assert in_a_child(lambda: client.say(b"b").decode()) == "BadRequest: one session: make another"
        lines = client.lines()
        assert next(lines) == b"0"
        assert "BadRequest" in in_a_child(lambda: next(lines).decode())
        assert next(lines) == b"1"


def an_asyncio_client_belongs_to_one_loop() -> None:
    own = OwnLoop()

    async def use() -> None:
        own.running()

    asyncio.run(use())
    found = ""
    try:
        asyncio.run(use())
    except RuntimeError as error:
        found = str(error)
    assert "the event loop that it was first used in" in found


def test_an_asyncio_client_belongs_to_one_loop() -> None:
    an_asyncio_client_belongs_to_one_loop()
