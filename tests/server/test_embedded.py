"""A server inside somebody else's loop, and a cluster inside somebody else's process."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from quorumlog import (
    ConfigError,
    GroupConfig,
    LedgerServer,
    LocalCluster,
    MemberAddress,
    connect,
    connect_async,
)
from quorumlog.server.free_ports import free_ports
from tests.server.test_cluster import SMALL

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


def config_of(path: Path) -> GroupConfig:
    address = MemberAddress("n0", "127.0.0.1", free_ports(1)[0])
    return GroupConfig("n0", (address,), str(path / "n0"), storage=SMALL)


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], main: Any) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main)


@LOOPS
def test_a_server_leaves_the_loop_as_it_found_it(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    contexts: list[dict[str, Any]] = []
    threads = set(threading.enumerate())

    def handler(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        contexts.append(context)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(handler)
        signals = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
        server = LedgerServer([config_of(tmp_path)])
        with pytest.raises(RuntimeError, match="start"):
            server.failed  # noqa: B018
        async with server as serving:
            assert serving is server
            assert repr(server) == f"<LedgerServer n0 at {server.address}, groups default: serving>"
            failed = server.failed
            async with connect_async(server.address) as log:
                await log.append(b"a")
                loop.call_soon(_assert_false)
                await log.append(b"b")
            assert not failed.done(), "the application's mistake has stopped the server"
        assert await failed is None
        assert await server.failed is None
        assert loop.get_exception_handler() is handler
        assert signals == [
            signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        ]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert getattr(loop, "_default_executor", None) is None

    run(new_loop, main())
    assert [str(context["exception"]) for context in contexts] == ["of the application"]
    assert set(threading.enumerate()) == threads


def _assert_false() -> None:
    raise AssertionError("of the application")


@LOOPS
def test_a_member_that_fails_is_told_to_whoever_waits(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def main() -> None:
        async with LedgerServer([config_of(tmp_path)]) as server:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(server.failed, 0)
            (driver,) = server.drivers
            bug = AssertionError("a broken invariant")
            asyncio.get_running_loop().call_soon(driver.fail, bug)
            assert await asyncio.wait_for(server.failed, 10) is bug
            assert server.failure is bug

    run(new_loop, main())


def test_a_server_that_cannot_start_gives_the_loop_back(tmp_path: Path) -> None:
    async def main() -> None:
        config = config_of(tmp_path)
        async with LedgerServer([config]):
            before = asyncio.get_running_loop().get_exception_handler()
            with pytest.raises(ConfigError, match="listen"):
                await LedgerServer([config]).start()
            assert asyncio.get_running_loop().get_exception_handler() == before

    asyncio.run(main())


def test_what_runs_already_is_not_started_again(tmp_path: Path) -> None:
    """Else it would lose its directory's lock, or its members, and could not be stopped any more."""

    async def main() -> None:
        config = config_of(tmp_path)
        server = LedgerServer([config])
        for _ in range(2):
            async with server, connect_async(server.address) as log:
                with pytest.raises(ConfigError, match="this server runs already"):
                    await server.start()
                await log.append(b"a")

    asyncio.run(main())
    with LocalCluster(1, store="memory") as cluster:
        with pytest.raises(ConfigError, match="n0 run already"):
            cluster.start()
        with connect(cluster.servers) as log:
            log.append(b"a")


def test_a_group_that_is_not_in_a_list_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"LedgerServer\(\[config\]\)"):
        LedgerServer(config_of(tmp_path))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "members", [MemberAddress("n0", "127.0.0.1", 1), ("n0=127.0.0.1:1",), "n0=127.0.0.1:1"]
)
def test_members_that_are_no_list_of_addresses_say_what_is_wanted(members: Any) -> None:
    with pytest.raises(ConfigError, match="members must be a tuple of MemberAddress"):
        GroupConfig("n0", members, "directory")


def test_members_of_a_local_cluster_are_told_by_id(tmp_path: Path) -> None:
    with LocalCluster(3, directory=tmp_path, storage=SMALL) as cluster:
        assert repr(cluster).endswith("n0, n1, n2 running>")
        first = cluster.server("n1")
        cluster.restart("n1")
        assert cluster.server("n1") is not first
        cluster.stop("n1")
        for act in (cluster.stop, cluster.kill, cluster.server):
            with pytest.raises(ConfigError, match="n1 is not running; running: n0, n2"):
                act("n1")
        for act in (cluster.stop, cluster.kill, cluster.server, cluster.restart, cluster.data_dir):
            with pytest.raises(ConfigError, match="there is no member n7; members: n0, n1, n2"):
                act("n7")
        cluster.restart("n1")
        assert cluster.running == ("n0", "n1", "n2")
