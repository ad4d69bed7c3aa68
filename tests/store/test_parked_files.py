"""Where descriptors have run out, segments that are only read give theirs back."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.message import Message, PutMessageResult
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.client import connect
from quorumlog.config import StoreConfig
from quorumlog.errors import IndexOutOfRange
from quorumlog.server.local_cluster import LocalCluster
from quorumlog.store.disk import kept_descriptors
from tests.broker.store.store_making import put_and_wait, records_of
from tests.store.log_making import append_noop, append_numbered, numbered, read_log, sync
from tests.store.made_logs import open_small
from tests.store.test_drop import COUNT, filled
from tests.store.test_kept_descriptors import opening
from tests.waiting import eventually


def open_files(path: Path) -> set[str]:
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    found = {os.readlink(each) for each in links if os.path.islink(each)}
    return {each for each in found if each.startswith(str(path))}


def test_cold_segments_give_their_descriptors_back_and_are_read_as_before(tmp_path: Path) -> None:
    directory = filled(tmp_path)
    store = directory.store
    before = open_files(tmp_path)
    given = store.park_files()
    assert given > 3
    after = open_files(tmp_path)
    assert len(after) == len(before) - given
    assert max(each for each in before if "/data/" in each) in after, "it is written on"
    assert store.park_files() == 0
    assert [each[2] for each in read_log(store)] == [each[2] for each in numbered(COUNT)]
    assert open_files(tmp_path) == after
    append_noop(store, 2)
    sync(store)
    store.truncate_from(5)
    assert [each[2] for each in read_log(store)] == [each[2] for each in numbered(5)]
    append_noop(store, 3)
    sync(store)
    directory.close(True)
    directory = open_small(tmp_path)
    assert directory.store.end.index == 5
    directory.close(True)


def test_one_that_is_deleted_while_it_is_read_is_no_damage(tmp_path: Path) -> None:
    directory = filled(tmp_path)
    store = directory.store
    log_range = store.range_of(0, 3, 1 << 20)
    assert store.park_files()
    os.unlink(f"{tmp_path}/data/{0:020d}")
    with pytest.raises(IndexOutOfRange):
        store.read(log_range)
    directory.close(False)


def test_a_member_parks_files_when_one_has_got_a_descriptor_that_was_kept(tmp_path: Path) -> None:
    storage = StoreConfig(segment_bytes=1 << 20)
    with (
        LocalCluster(1, storage=storage, directory=str(tmp_path)) as cluster,
        connect(cluster.servers) as log,
    ):
        for _ in range(12):
            log.append(bytes(900_000))
        before = len(open_files(tmp_path))
        assert before > 12
        kept_descriptors.opened(opening(1))
        eventually(lambda: len(open_files(tmp_path)) < before, what="files that are parked")
        assert len(log.get(1).body) + len(log.get(5).body) >= 900_000


def test_what_is_not_synced_is_not_closed(tmp_path: Path) -> None:
    """The kernel would tell nobody that it could not be written."""
    directory = open_small(tmp_path)
    store = directory.store
    append_numbered(store, COUNT)
    assert store.park_files() == 0
    sync(store)
    assert store.park_files() > 0
    directory.close(True)


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """So many, for this process."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = set(map(int, os.listdir("/proc/self/fd")))
    free = [number for number in range(len(taken) + count + 1) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[count], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_store_with_more_segments_than_descriptors_opens(tmp_path: Path) -> None:
    """It had run with as many: a member that was started again ended with `Too many open files`."""
    filled(tmp_path, count=150).close(True)
    assert len(os.listdir(tmp_path / "data")) > 20
    with descriptors_left(20):
        directory = open_small(tmp_path)
        store = directory.store
        assert [each[2] for each in read_log(store)] == [each[2] for each in numbered(150)]
        append_noop(store, 2)
        sync(store)
    directory.close(True)


def put(store: MessageStore, size_bytes: int) -> None:
    found = put_and_wait(store, records_of([Message("orders", bytes(size_bytes))]))
    assert isinstance(found, PutMessageResult), found


def test_a_broker_with_more_files_than_descriptors_opens_and_gives_them_back(tmp_path: Path) -> None:
    config = MessageStoreConfig(mapped_file_size_commit_log=4096)
    with closing(MessageStore(str(tmp_path), config, topics={"orders": 1})) as store:
        for _ in range(60):
            put(store, 1000)
    assert len(os.listdir(tmp_path / "commitlog")) > 15
    with descriptors_left(22), closing(MessageStore(str(tmp_path), config)) as store:
        assert store.commit_log.read(0, 1 << 20) is not None
    with closing(MessageStore(str(tmp_path), config, topics={"orders": 1})) as store:
        before = len(open_files(tmp_path))
        given = store.commit_log.park_files()
        assert given > 10
        assert len(open_files(tmp_path)) == before - given
        found = store.commit_log.read(0, 1 << 20)
        assert found is not None and len(found.records)
        put(store, 1000)
