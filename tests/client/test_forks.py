"""A log's client in processes that were forked."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest

from quorumlog import LedgerClient, connect
from quorumlog.server import LocalCluster
from tests.net.test_loop_thread import WAIT_S, in_a_child


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1) as cluster:
        yield cluster


@pytest.fixture
def log(cluster: LocalCluster) -> Iterator[LedgerClient]:
    with connect(cluster.servers) as log:
        yield log


_MODULE: list[LedgerClient] = []


def _append(number: int) -> int:
    return _MODULE[0].append(b"%d" % number).count


def test_a_pool_of_processes_uses_the_client_of_its_module(log: LedgerClient) -> None:
    log.append(b"before")
    _MODULE[:] = [log]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(_append, range(16)).get(WAIT_S) == [1] * 16
        pool.close()
        pool.join()
    assert log.append(b"after").count == 1


def test_what_is_open_stays_with_the_parent(log: LedgerClient) -> None:
    first = log.append_batch([b"%d" % number for number in range(3)]).first_index
    tail, reader = iter(log.tail(first)), log.reader("forked", first_index=first)
    stream = log.append_stream([b"a", b"b"], batch_records=1, window=1)
    assert next(stream).count == 1
    left = "was opened before the process forked and stays with the parent: open another one"
    for work in (
        lambda: str(next(stream)),
        lambda: str(reader.commit(first + 1)),
        lambda: str([entry.body for entry in reader.read()]),
    ):
        assert left in in_a_child(work)
    assert in_a_child(lambda: str(log.reader("forked").position)) == str(first)
    assert [next(tail).body for _ in range(4)] == [b"0", b"1", b"2", b"a"]
    assert left in in_a_child(lambda: str(next(tail)))
    assert [receipt.count for receipt in stream] == [1]
    assert next(tail).body == b"b"
    assert reader.commit(first + 1) == first + 1


def test_what_a_child_leaves_ends_nothing_of_its_parent(log: LedgerClient) -> None:
    tail = log.tail(log.append(b"x").first_index)
    assert next(iter(tail)).body == b"x"

    def leave() -> str:
        tail.close()
        log.close()
        return "left"

    assert in_a_child(leave) == "left"
    log.append(b"y")
    assert next(iter(tail)).body == b"y"
    tail.close()
