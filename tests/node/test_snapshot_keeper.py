"""Which snapshots of a machine are known to be good, and which may go."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import Any

from quorumlog.config import StoreConfig
from quorumlog.node.machine_runner import MachineRunner, Opened
from quorumlog.node.snapshot_keeper import SnapshotKeeper
from quorumlog.store.snapshots import SnapshotFiles, SnapshotHead
from tests.node.machines import Chain
from tests.store.losing_disk import LosingDisk


class Kept:
    """A keeper of the snapshots 5 and 9, of which 9 was loaded."""

    def __init__(self) -> None:
        self.disk = LosingDisk()
        self.disk.make_directory("d")
        self.files = SnapshotFiles(self.disk, "d")
        self._works: list[Any] = []
        host: Any = SimpleNamespace(read_later=lambda *work: self._works.append(work))
        for index in (5, 9):
            self.save(index)
        with closing(self.files.open("chain", 9)) as loaded:
            loaded.finish()
        self.may_delete = True
        self.keeper = SnapshotKeeper("chain", self.files, host, StoreConfig(), lambda: self.may_delete)
        runner = MachineRunner("chain", 1, Chain(), 1)
        self.keeper.opened(Opened(runner, 9, None, (5, 9), (), loaded.id, ()))

    def save(self, index: int) -> None:
        writer = self.files.create(SnapshotHead("chain", 1, (index, 1, 0)))
        writer.write(bytes(100))
        writer.finish()

    def read(self) -> None:
        while self._works:
            self.read_one()

    def read_one(self, at: int = 0) -> None:
        look, looked = self._works.pop(at)
        looked(look())


def test_what_is_older_stays_until_the_newest_was_read_again() -> None:
    """It is damaged: two good ones are left, and what the log keeps is what they need."""
    kept = Kept()
    kept.save(13)
    with closing(kept.disk.open(kept.files.path_of("chain", 13))) as file:
        file.pwritev([b"another"], 60)
    kept.keeper.saved(13, "", 0.0)
    kept.read()
    assert "chain-00000000000000000013" in kept.keeper.problem
    assert kept.files.indices_of("chain") == [5, 9, 13]
    assert kept.keeper.bound == 5
    assert kept.keeper.is_due(0.0), "another one takes its place"


def test_what_another_member_is_getting_stays_and_the_log_behind_it() -> None:
    kept = Kept()
    getting = kept.keeper.newest_good
    assert getting is not None and kept.keeper.pin(getting, 100.0)
    for index in (13, 17):
        kept.save(index)
        kept.keeper.saved(index, "", 0.0)
        kept.read()
    assert kept.files.indices_of("chain") == [9, 13, 17]
    assert kept.keeper.bound == 9
    kept.keeper.unpin(100.0)
    assert kept.keeper.bound == 13


def test_none_is_deleted_while_the_machine_is_to_be_made_anew_from_an_older_one() -> None:
    kept = Kept()
    kept.may_delete = False
    for index in (13, 17):
        kept.save(index)
        kept.keeper.saved(index, "", 0.0)
        kept.read()
    assert kept.files.indices_of("chain") == kept.keeper.indices == [5, 9, 13, 17]
    kept.may_delete = True
    kept.save(21)
    kept.keeper.saved(21, "", 0.0)
    kept.read()
    assert kept.files.indices_of("chain") == kept.keeper.indices == [17, 21]


def test_none_is_saved_before_all_are_gone_that_are_on_their_way_out() -> None:
    """Some were given up while others were; what the next one is of may be among them."""
    kept = Kept()
    kept.read()
    for index in (13, 17):
        kept.save(index)
        kept.keeper.saved(index, "", 0.0)
        kept.read_one(-1)
    assert kept.keeper.going == [5, 9] and kept.files.indices_of("chain") == [5, 9, 13, 17]
    kept.keeper.applied(StoreConfig().snapshot_entries, 0, 0)
    kept.read_one()
    assert kept.files.indices_of("chain") == [9, 13, 17]
    assert not kept.keeper.is_due(0.0)
    kept.read_one()
    assert not kept.keeper.going and kept.keeper.is_due(0.0)
