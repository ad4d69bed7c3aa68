"""The blocking client of a store: closed by another thread, and in processes that were forked."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorumlog.errors import LedgerError, Unreachable
from quorumlog.kv import KeyValueClient
from quorumlog.kv.client.values import Change
from quorumlog.kv.testing import LocalStores
from quorumlog.server.free_ports import free_ports
from tests.net.test_loop_thread import WAIT_S, in_a_child, outcome_of


@pytest.fixture(scope="module")
def stores() -> Iterator[LocalStores]:
    with LocalStores(1) as stores:
        yield stores


@pytest.fixture
def kv(stores: LocalStores) -> Iterator[KeyValueClient]:
    with KeyValueClient(stores.servers) as kv:
        yield kv


def test_close_of_another_thread_ends_a_watch_that_is_iterated(stores: LocalStores) -> None:
    with KeyValueClient(stores.servers) as kv, KeyValueClient(stores.servers) as other:
        begun = threading.Event()

        def watch() -> None:
            with kv.watch_prefix("w/") as changes:
                other["w/a"] = "1"
                for _ in changes:
                    begun.set()

        thread, found = outcome_of(watch)
        assert begun.wait(WAIT_S)
        kv.close()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert isinstance(found[0], Unreachable), found


@pytest.mark.processes
@pytest.mark.parametrize("held", ["kv.lock('held', ttl_s=3)", "kv.leadership('led', 'me', ttl_s=3)"])
def test_a_program_that_ends_with_a_lock_ends(held: str) -> None:
    """The interpreter leaves the `with` block while the client's thread no longer runs."""
    with LocalStores(1) as stores:  # of its own: the lock's lease goes on for its TTL
        program = f"""if True:
            import contextlib
            from quorumlog.kv import connect
            kv = connect({stores.servers!r})
            stack = contextlib.ExitStack()
            stack.enter_context({held})
            print("held")
        """
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S, check=True
        )
    assert done.stdout == "held\n"


@pytest.mark.processes
def test_a_program_that_ends_with_a_member_inside_ends(tmp_path: Path) -> None:
    port, listen = free_ports(2)
    program = f"""if True:
        import contextlib
        from quorumlog.config import GroupConfig, MemberAddress
        from quorumlog.kv import KeyValueStore

        @contextlib.contextmanager
        def running():
            member = MemberAddress("n0", "127.0.0.1", {port})
            config = GroupConfig("n0", (member,), {str(tmp_path)!r})
            with KeyValueStore(config, listen="127.0.0.1:{listen}") as store:
                yield store

        stack = contextlib.ExitStack()
        stack.enter_context(running())
        print("runs")
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S / 2, check=True
    )
    assert done.stdout == "runs\n"


def test_a_read_is_stale_by_anything_that_is_true(kv: KeyValueClient) -> None:
    kv.put("stale", b"1")
    for stale in (None, 0, 1, "yes"):
        found = kv.get("stale", stale=stale)  # type: ignore[arg-type]
        assert found is not None
        assert found.value == b"1"


def test_threads_share_a_watch(kv: KeyValueClient) -> None:
    """One waits for the other's change where that one has taken it meanwhile."""
    with kv.watch_prefix("s") as changes:
        kv.put("s1", b"1")
        (first,) = changes.batch(timeout_ms=WAIT_S * 1000)
        taken = [deque[Change[bytes]](), deque([first])]
        step = changes._step

        def raced(fill: Any) -> Any:
            return taken.pop(0) if taken else step(fill)

        changes._step = raced  # type: ignore[method-assign]
        assert next(iter(changes)) == first


def test_a_forked_child_reads_and_writes_and_the_parent_goes_on(kv: KeyValueClient) -> None:
    kv["a"] = "parent"

    def in_child() -> str:
        before = kv["a"].decode()
        kv["a"] = "child"
        return before

    assert in_a_child(in_child) == "parent"
    assert kv["a"] == b"child"


_MODULE: list[KeyValueClient] = []


def _read(key: str) -> bytes:
    return _MODULE[0][key]


def test_a_pool_of_processes_uses_the_client_of_its_module(kv: KeyValueClient) -> None:
    kv["pool"] = "1"
    _MODULE[:] = [kv]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(_read, ["pool"] * 8).get(WAIT_S) == [b"1"] * 8
        pool.close()  # its processes end by themselves: none is killed with a lock of the pool
        pool.join()
    assert kv["pool"] == b"1"


@pytest.mark.parametrize("hold", ["lock", "leadership"])
def test_what_is_given_as_an_interrupt_comes_is_given_back(
    kv: KeyValueClient, hold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = kv._thread.run

    def interrupted(work: Any) -> None:
        run(work)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(kv._thread, "run", interrupted)
    held = kv.lock("i") if hold == "lock" else kv.leadership("i", b"me")
    with pytest.raises(KeyboardInterrupt), held:
        pass
    assert kv.leases() == []


def test_what_is_open_stays_with_the_parent(kv: KeyValueClient) -> None:
    with kv.lock("l") as lock, kv.watch("k") as changes:
        assert in_a_child(lambda: str(lock.check())) == (
            f"LockLost: the lease {lock.lease.id if lock.lease else 0} was granted before the process"
            " forked and stays with the parent: take another one in this process"
        )
        lease = kv.grant(5)
        assert "stays with the parent" in in_a_child(lambda: str(kv.keep_alive(lease)))
        assert in_a_child(lambda: str(changes.batch(timeout_ms=1000))) == (
            "BadRequest: this BlockingWatch was opened before the process forked and stays with the"
            " parent: open another one in this process"
        )
        lock.check()
        kv["k"] = "still"
        assert [change.item.value for change in changes.batch(timeout_ms=WAIT_S * 1000)] == [b"still"]


def test_the_end_of_a_with_block_in_a_child_ends_nothing_of_the_parent(kv: KeyValueClient) -> None:
    with kv.lock("m") as lock:

        def leave() -> str:
            with kv.watch("k"):
                pass
            try:
                kv.close()
            except LedgerError as error:
                return str(error)
            return "left"

        assert in_a_child(leave) == "left"
        lock.check()
        assert kv.leases()
