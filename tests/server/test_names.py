"""Names of members and servers: looked up at each dial, by a resolver of these tests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from quorumlog import GroupConfig, LedgerServer, MemberAddress, StoreConfig, connect, connect_async
from quorumlog.errors import OutcomeUnknown, Refused
from quorumlog.server.free_ports import free_ports

SMALL = StoreConfig(
    segment_bytes=256 * 1024, index_segment_bytes=32 * 1024, reserve_step_bytes=64 * 1024
)
NAME = "n1.log.test"
FIRST, SECOND = "127.0.0.2", "127.0.0.3"


class Names:
    """`socket.getaddrinfo`, on which asyncio's own loop stands too, with one name more."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        """Of NAME; empty: it is not known."""
        self.questions = 0
        self._ask = socket.getaddrinfo

    def getaddrinfo(self, host: Any, port: Any, *arguments: Any, **options: Any) -> list[Any]:
        if host != NAME:
            return self._ask(host, port, *arguments, **options)
        self.questions += 1
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [a for ip in self.addresses for a in self._ask(ip, port, *arguments, **options)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    return names


class Two:
    """n0 at its address, and n1, which the list of members names by NAME."""

    def __init__(self, path: Path) -> None:
        ports = free_ports(2)
        self.port = ports[1]
        self._path = path
        self._members = (MemberAddress("n0", "127.0.0.1", ports[0]), MemberAddress("n1", NAME, ports[1]))

    async def start(self, member_id: str, host: str) -> LedgerServer:
        port = next(m.port for m in self._members if m.member_id == member_id)
        config = GroupConfig(member_id, self._members, str(self._path / member_id), storage=SMALL)
        server = LedgerServer([config], bind=f"{host}:{port}")
        await server.start()
        return server


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def is_linked(server: LedgerServer) -> bool:
    (driver,) = server.drivers
    return all(m.reachable for m in driver.status.response().members) and bool(
        driver.status.response().leader_id
    )


@asynccontextmanager
async def foreign_process(kind: str, host: str, port: int, path: Path) -> AsyncIterator[None]:
    """Something that answers where the member was: another program, or a member of another group."""
    if kind == "another group":
        own = (MemberAddress("n1", host, port),)
        other = LedgerServer([GroupConfig("n1", own, str(path / "other"), group="g", storage=SMALL)])
        await other.start()
        try:
            yield
        finally:
            await other.stop()
        return

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()  # and say nothing
        writer.close()

    program = await asyncio.start_server(accept, host, port)
    try:
        yield
    finally:
        program.close()


def test_a_member_whose_name_is_not_known_yet_is_found_once_it_is(names: Names, tmp_path: Path) -> None:
    async def scene() -> None:
        two = Two(tmp_path)
        servers = [await two.start("n0", "127.0.0.1"), await two.start("n1", FIRST)]
        try:
            await until(lambda: names.questions > 4)
            assert not is_linked(servers[0])
            names.addresses = [FIRST]
            await until(lambda: all(map(is_linked, servers)))
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(scene())


@pytest.mark.parametrize("still_named", [False, True], ids=["moved", "both named"])
@pytest.mark.parametrize("foreign", ["another program", "another group"])
def test_a_member_that_has_moved_is_found_although_something_answers_where_it_was(
    names: Names, tmp_path: Path, foreign: str, still_named: bool
) -> None:
    """Also while its name leads to the old address first and to the new one behind it."""

    async def scene() -> None:
        two = Two(tmp_path)
        names.addresses = [FIRST]
        servers = [await two.start("n0", "127.0.0.1"), await two.start("n1", FIRST)]
        try:
            await until(lambda: all(map(is_linked, servers)))
            await servers.pop().stop()
            async with foreign_process(foreign, FIRST, two.port, tmp_path):
                questions = names.questions
                await until(lambda: names.questions > questions + 2)
                servers.append(await two.start("n1", SECOND))
                assert not is_linked(servers[0])
                names.addresses = [FIRST, SECOND] if still_named else [SECOND]
                await until(lambda: all(map(is_linked, servers)))
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(scene())


def alone(path: Path, port: int) -> GroupConfig:
    return GroupConfig("n0", (MemberAddress("n0", NAME, port),), str(path), storage=SMALL)


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_client_looks_the_name_of_a_server_up_again(names: Names, tmp_path: Path, kind: str) -> None:
    """Before it is known, and after the server has moved, within one call each."""

    async def scene() -> None:
        (port,) = free_ports(1)
        config = alone(tmp_path, port)
        server = LedgerServer([config], bind=f"{FIRST}:{port}")
        await server.start()
        with connect(f"{NAME}:{port}") as blocking:
            async with connect_async(f"{NAME}:{port}") as asynchronous:

                async def append(body: bytes) -> int:
                    while True:  # what was sent just before the connection was lost is unknown
                        with contextlib.suppress(OutcomeUnknown):
                            return await append_once(body)

                async def append_once(body: bytes) -> int:
                    if kind == "asyncio":
                        return (await asynchronous.append(body, timeout_ms=60_000)).first_index
                    receipt = await asyncio.to_thread(blocking.append, body, timeout_ms=60_000)
                    return receipt.first_index

                first = asyncio.create_task(append(b"first"))
                await until(lambda: names.questions > 2)
                assert not first.done()
                names.addresses = [FIRST]
                index = await first
                await server.stop()
                questions = names.questions
                second = asyncio.create_task(append(b"second"))
                await until(lambda: names.questions > questions + 2)
                server = LedgerServer([config], bind=f"{SECOND}:{port}")
                await server.start()
                names.addresses = [SECOND]
                assert await second > index
        await server.stop()

    asyncio.run(scene())


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_name_that_can_never_be_looked_up_is_a_server_that_is_not_there(kind: str) -> None:
    servers = "no..name:20911"
    with pytest.raises(Refused, match=r"no\.\.name:20911 .*label empty"):
        if kind == "blocking":
            with connect(servers, timeout_ms=300) as client:
                client.append(b"x")
        else:

            async def append() -> None:
                async with connect_async(servers, timeout_ms=300) as client:
                    await client.append(b"x")

            asyncio.run(append())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_members_that_look_each_other_up_leave_no_task_and_no_thread(
    names: Names, tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Nor one in the executor of the loop, which is the application's."""
    names.addresses = [FIRST]
    members = tuple(MemberAddress(f"n{n}", NAME, port) for n, port in enumerate(free_ports(3)))
    configs = [
        GroupConfig(m.member_id, members, str(tmp_path / m.member_id), storage=SMALL) for m in members
    ]
    threads = set(threading.enumerate())

    async def scene() -> None:
        async with LedgerServer(configs[:1]) as first, LedgerServer(configs[1:2]) as second:
            async with LedgerServer(configs[2:]):
                await until(lambda: is_linked(first) and is_linked(second))
            names.addresses = []
            questions = names.questions
            await until(lambda: names.questions > questions)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert getattr(asyncio.get_running_loop(), "_default_executor", None) is None
        await until(lambda: set(threading.enumerate()) == threads)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scene())
