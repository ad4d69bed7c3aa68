"""Which snapshots of a machine are known to be good, and which may go."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import Any

from quorumlog.config import StoreConfig
from quorumlog.node.applying.machine_opening import Opened
from quorumlog.node.applying.machine_runner import MachineRunner
from quorumlog.node.applying.snapshot_keeper import SnapshotKeeper
from quorumlog.store.files.snapshot_file import SnapshotFiles, SnapshotHead
from tests.node.machines import Chain
from tests.store.losing_disk import LosingDisk


def test_what_is_older_stays_until_the_newest_was_read_again() -> None:
    """It is damaged: two good ones are left, and what the log keeps is what they need."""
    disk = LosingDisk()
    disk.make_directory("d")
    files = SnapshotFiles(disk, "d")
    works: list[Any] = []
    host: Any = SimpleNamespace(read_later=lambda *work: works.append(work))

    def save(index: int) -> None:
        writer = files.create(SnapshotHead("chain", 1, (index, 1, 0)))
        writer.write(bytes(100))
        writer.finish()

    for index in (5, 9):
        save(index)
    with closing(files.open("chain", 9)) as loaded:
        loaded.finish()
    keeper = SnapshotKeeper("chain", files, host, StoreConfig())
    runner = MachineRunner("chain", 1, Chain(), 1)
    keeper.opened(Opened(runner, 9, None, (5, 9), (), loaded.id, ()))
    save(13)
    with closing(disk.open(files.path_of("chain", 13))) as file:
        file.pwritev([b"another"], 60)
    keeper.saved(13, "", 0.0)
    while works:
        look, looked = works.pop(0)
        looked(look())
    assert "chain-00000000000000000013" in keeper.problem
    assert files.indices_of("chain") == [5, 9, 13]
    assert keeper.bound == 5
    assert keeper.is_due(0.0), "another one takes its place"
