"""Crashes: at every byte of the last write, at every step, and with the power gone.

What must hold after any of them: the log is a prefix of what was appended, everything that was
reported durable is in it, and nothing that was truncated is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from quorumlog.config import StoreConfig
from quorumlog.errors import StoreFailure
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.segments import scan_segment
from tests.store.log_making import (
    SMALL,
    append_bodies,
    append_numbered,
    make_directory,
    new_store,
    numbered,
    open_store,
    read_log,
    sync,
)
from tests.store.losing_disk import LosingDisk
from tests.store.stopping_disk import Stopped, StoppingDisk

DURABLE = 3
LAST = 3
LAST_SIZE = 120


@pytest.mark.parametrize(("index_written", "rest"), [(True, 0x00), (False, 0xA5)])
def test_cut_at_every_byte_of_the_last_write(index_written: bool, rest: int) -> None:
    """The last batch runs over a segment boundary: entry 3 | blank | entries 4, 5. Of its bytes, in the
    order of their positions, only the first ones reached the disk; `rest` lies where others should."""
    disk = LosingDisk()
    store = new_store("m", disk=disk)
    append_numbered(store, DURABLE)
    sync(store)
    before = disk.contents()
    start = store.end.position
    bodies = [bytes([0x41 + i]) * LAST_SIZE for i in range(LAST)]
    append_bodies(store, bodies)
    ranges = [store.range_of(i, i + 1, 1) for i in range(DURABLE, DURABLE + LAST)]
    ends = [one.position + one.size_bytes for one in ranges]
    store.close()
    after = disk.contents()
    expected = numbered(DURABLE) + [(DURABLE + i, 1, body) for i, body in enumerate(bodies)]
    assert ends[0] < SMALL.segment_bytes < ends[1]
    # Behind the blank's 8 bytes nothing was written.
    written = [*range(start, ends[0] + 8), *range(SMALL.segment_bytes, ends[-1])]

    for count in range(len(written) + 1):
        files = after if index_written else after | {p: d for p, d in before.items() if "/index/" in p}
        changed = {path: bytearray(content) for path, content in files.items()}
        for position in written[count:]:
            base = position // SMALL.segment_bytes * SMALL.segment_bytes
            changed[f"m/data/{base:020d}"][position - base] = rest
        cut_disk = LosingDisk.of({path: bytes(content) for path, content in changed.items()})
        whole = sum(end <= [*written, ends[-1]][count] for end in ends)
        store, report = open_store("m", disk=cut_disk)
        assert read_log(store) == expected[: DURABLE + whole], count
        assert store.durable == store.end
        append_numbered(store, 1, term=2)
        sync(store)
        store.close()
        store, report = open_store("m", disk=cut_disk)
        assert report.lines == ()
        assert read_log(store)[:-1] == expected[: DURABLE + whole], count
        store.close()


@pytest.mark.usefixtures("no_syncs")
def test_killed_at_every_step_of_appends_and_syncs(tmp_path: Path) -> None:
    def append_and_sync(path: str, disk: StoppingDisk, acknowledged: list[int]) -> None:
        store, _ = open_store(path, disk=disk)
        try:
            for count in (2, 3, 1, 6):
                append_numbered(store, count)
                sync(store)
                acknowledged.append(store.durable.index)
        finally:
            store.close()

    whole = StoppingDisk()
    path = str(tmp_path / "whole")
    make_directory(path)
    append_and_sync(path, whole, [])
    for stop_at in range(len(whole.steps)):
        path = str(tmp_path / f"m{stop_at}")
        make_directory(path)
        acknowledged = [-1]
        with contextlib.suppress(Stopped):
            append_and_sync(path, StoppingDisk(stop_at), acknowledged)
        store, _ = open_store(path)
        log = read_log(store)
        assert log == numbered(12)[: len(log)], stop_at
        assert store.end.index >= acknowledged[-1], stop_at
        store.close()


# ---------------------------------------------------------------- power


class Machine:
    """A store on a disk that loses power, beside the list of what it may and must hold."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.disk = LosingDisk()
        self.config = StoreConfig(
            segment_bytes=1024,
            index_segment_bytes=256,
            index_sync_bytes=random.choice([300, 2000, 1 << 20]),
            reserve_step_bytes=random.choice([128, 512, 4096]),
            disk_full_ratio=1.0,
        )
        make_directory("m", self.disk)
        self.disk.sync_directory("m")
        self.log: list[tuple[int, int, bytes]] = []
        self.acknowledged = 0
        self.term = 1
        self.store = self.open()
        self.space: Callable[[], None] | None = None

    def open(self) -> LedgerStore:
        return open_store("m", self.config, self.disk)[0]

    def append(self) -> None:
        count = self.random.randint(1, 6)
        bodies = [self.random.randbytes(self.random.randint(0, 300)) for _ in range(count)]
        first = len(self.log)
        append_bodies(self.store, bodies, self.term)
        self.log += [(first + i, self.term, body) for i, body in enumerate(bodies)]

    def sync(self) -> None:
        sync(self.store)
        self.acknowledged = len(self.log)

    def sync_with_a_truncation_inside(self) -> None:
        task = self.store.begin_sync()
        if task is None:
            return
        synced = len(self.log)
        if self.log and self.random.random() < 0.7:
            self.truncate()
            synced = min(synced, len(self.log))
            self.append()
        task.run()
        self.store.finish_sync(task)
        self.acknowledged = max(self.acknowledged, synced)
        assert self.store.durable.index >= self.acknowledged - 1

    def truncate(self) -> None:
        if not self.log:
            return
        cut = self.random.randint(0, len(self.log) - 1)
        self.store.truncate_from(cut)
        del self.log[cut:]
        self.acknowledged = min(self.acknowledged, cut)
        self.term += 1

    def sync_durable_file(self) -> None:
        self.store._durable_record.file.sync()

    def kill(self) -> None:
        self.store.close()
        self.store = self.open()
        assert read_log(self.store) == self.log  # the page cache outlives the process
        self.acknowledged = len(self.log)

    def lose_power(self) -> None:
        self.store.close()
        self.disk.lose_power(self.random)
        self.come_back()

    def come_back(self) -> None:
        self.store = self.open()
        held = read_log(self.store)
        assert held == self.log[: len(held)]
        assert len(held) >= self.acknowledged
        self.log = held
        self.acknowledged = len(held)
        self.term += 1
        self.check_structure()

    def fail_a_sync(self) -> None:
        """The cache shows the bytes, marked clean, and the disk does not have them."""
        self.append()
        self.disk.failing_syncs = "/data/"
        task = self.store.begin_sync()
        assert task is not None
        with pytest.raises(StoreFailure, match=r"cannot be synced: [^[]"):
            task.run()
        self.disk.failing_syncs = ""
        self.store.close()
        self.come_back()

    def fail_a_truncation(self) -> None:
        """As above: the cache shows zeros where the disk still has the dropped entries."""
        if not self.log:
            return
        cut = self.random.randint(0, len(self.log) - 1)
        self.acknowledged = min(self.acknowledged, cut)
        self.disk.failing_syncs = self.random.choice(["/data/", "/index/"])
        with pytest.raises(StoreFailure, match=r"cannot be synced: [^[]"):
            self.store.truncate_from(cut)
        self.disk.failing_syncs = ""
        self.store.close()
        self.come_back()

    def kill_inside_an_append(self) -> None:
        self.disk.steps_left = self.random.randint(0, 12)
        bodies = [bytes([len(self.log) % 256]) * self.random.randint(0, 300) for _ in range(4)]
        first = len(self.log)
        self.log += [(first + i, self.term, body) for i, body in enumerate(bodies)]
        with contextlib.suppress(Stopped):
            append_bodies(self.store, bodies, self.term)
            sync(self.store)
            self.acknowledged = len(self.log)
        self.come_back_after_a_kill()

    def kill_inside_a_truncation(self) -> None:
        if not self.log:
            return
        cut = self.random.randint(0, len(self.log) - 1)
        self.acknowledged = min(self.acknowledged, cut)
        self.disk.steps_left = self.random.randint(0, 25)
        with contextlib.suppress(Stopped):
            self.store.truncate_from(cut)
            del self.log[cut:]
        self.come_back_after_a_kill()

    def want_space(self) -> None:
        self.space = self.store.space_ahead()

    def make_space(self) -> None:
        if self.space is not None:
            self.space()

    def kill_while_space_is_made(self) -> None:
        self.want_space()
        self.disk.steps_left = self.random.randint(0, 12)
        with contextlib.suppress(Stopped):
            self.make_space()
        self.come_back_after_a_kill()

    def come_back_after_a_kill(self) -> None:
        """Perhaps killed again and again while it starts; perhaps the power goes as well."""
        self.disk.steps_left = -1
        self.store.close()
        while self.random.random() < 0.4:
            if self.random.random() < 0.2:
                self.disk.lose_power(self.random)
            self.disk.steps_left = self.random.randint(0, 25)
            with contextlib.suppress(Stopped):
                self.open().close()
            self.disk.steps_left = -1
        self.come_back()

    def check_structure(self) -> None:
        """Every byte of the data is an entry, a whole blank record or zero."""
        files = {path: data for path, data in self.disk.contents().items() if "/data/" in path}
        index, term, chain = 0, -1, 0
        for path, data in sorted(files.items()):
            base = int(path.rpartition("/")[2])
            scan = scan_segment(
                memoryview(data),
                base,
                base,
                expected_index=index,
                previous_term=term,
                previous_chain=chain,
                check_bodies=True,
            )
            sealed = base + len(data) <= self.store.end.position
            assert scan.stop == ("blank" if sealed else "zero"), (path, scan.stop, scan.problem)
            rest = data[scan.end_position - base + (8 if sealed else 0) :]
            assert not any(rest), path
            if len(scan.sizes):
                last = scan.headers[-1]
                index, term, chain = int(last["index"]) + 1, int(last["term"]), int(last["chain_crc"])
        assert index == len(self.log)


@pytest.mark.parametrize("seed", range(80))
def test_runs_with_crashes(seed: int) -> None:
    machine = Machine(Random(seed))
    steps = [
        *[machine.append] * 4,
        machine.sync,
        machine.sync,
        machine.sync_with_a_truncation_inside,
        machine.truncate,
        machine.sync_durable_file,
        machine.kill,
        machine.lose_power,
        machine.lose_power,
        machine.fail_a_sync,
        machine.fail_a_truncation,
        machine.kill_inside_an_append,
        machine.kill_inside_a_truncation,
        machine.want_space,
        machine.make_space,
        machine.kill_while_space_is_made,
    ]
    for _ in range(40):
        machine.random.choice(steps)()
    machine.kill()
    machine.check_structure()


@pytest.mark.parametrize("seed", range(60))
def test_power_lost_inside_a_truncation(seed: int) -> None:
    """Whatever step the truncation had reached: once it has been asked for again and new entries are
    durable, no later start finds anything of what was dropped (weakness W2 of the original)."""
    machine = Machine(Random(seed))
    for _ in range(6):
        machine.append()
    machine.sync()
    machine.append()
    machine.term = 2
    cut = machine.random.randint(0, len(machine.log) - 1)
    machine.acknowledged = min(cut, machine.acknowledged)
    machine.disk.steps_left = machine.random.randint(0, 30)
    with contextlib.suppress(Stopped):
        machine.store.truncate_from(cut)
        del machine.log[cut:]
    machine.disk.steps_left = -1
    machine.lose_power()
    if cut < len(machine.log):
        machine.store.truncate_from(cut)
        del machine.log[cut:]
    machine.acknowledged = len(machine.log)
    machine.append()
    machine.sync()
    durable = list(machine.log)
    for _ in range(3):
        machine.lose_power()
        assert machine.log == durable
        assert all(entry[1] > 1 for entry in machine.log[cut:])


def test_a_failed_sync_is_reported_to_everybody(tmp_path: Path) -> None:
    """The kernel tells only the first who asks; a reservation must not swallow what a flush needs."""
    disk = LosingDisk()
    make_directory("m", disk)
    store, _ = open_store("m", disk=disk)
    append_numbered(store, 1)
    task = store.begin_sync()
    assert task is not None
    file = store._data.file_at(0)
    assert file is not None
    disk.failing_syncs = "/data/"
    with pytest.raises(StoreFailure, match="Input/output error"):
        file.sync()
    disk.failing_syncs = ""
    with pytest.raises(StoreFailure, match="Input/output error"):
        task.run()
    store.close()
    store, _ = open_store("m", disk=disk)
    assert store.end.index == 0
    disk.lose_power(Random(0))
    assert open_store("m", disk=disk)[0].end.index == 0


def test_durable_entries_that_the_disk_lost_keep_the_log_end_and_wait_for_another_member(
    tmp_path: Path,
) -> None:
    """A disk that lied about a sync: never a shorter log in silence."""
    store = new_store(str(tmp_path))
    append_numbered(store, 6)
    sync(store)
    end = store.end
    store.close()
    (tmp_path / "data" / f"{1024:020d}").write_bytes(bytes(1024))
    store, report = open_store(str(tmp_path))
    assert store.end == end
    assert [(each.first_index, each.stop_index) for each in store.damaged] == [(4, 6)]
    assert any("entries 4 .. 5" in line for line in report.lines)
    store.close()
