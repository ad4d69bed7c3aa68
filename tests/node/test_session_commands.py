"""Commands of producers' sessions: each takes effect once, and who repeats one gets its result."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.entry import AppendReceipt, Durability, EntryKind
from quorumlog.errors import AlreadyCommitted, ResultUnknown
from quorumlog.log_state.control_entries import (
    ControlBody,
    OpenProducer,
    ProducerBatch,
    ProducerEpoch,
    encode_body,
)
from quorumlog.node import kept_results
from quorumlog.node.kept_results import KeptResults, SessionBatch
from quorumlog.node.machine_runner import MachineRunner
from quorumlog.node.pending_appends import SessionPlace
from tests.node.machines import Chain, Disk, Lasting
from tests.node.test_producer_sessions import connect
from tests.node.test_state_machines import Group

SAVING = StoreConfig(
    segment_bytes=64 * 1024,
    index_segment_bytes=8 * 1024,
    reserve_step_bytes=16 * 1024,
    snapshot_entries=4,
)


class Sessions(Group):
    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **{"storage": SAVING, **options})
        self.epoch: ProducerEpoch = connect(self.cell).epoch

    def command(self, sequence: int, *bodies: bytes, machine: str = "chain") -> Any:
        place = SessionPlace("p", self.epoch, sequence)
        return self.append(*bodies, machine=machine, place=place)

    def restart_all(self) -> None:
        for member in list(self.cell.nodes):
            self.cell.kill(member)
            self.cell.start(member)
        self.cell.leader()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Sessions]:
    group = Sessions(tmp_path)
    yield group
    group.cell.close()


def test_a_repetition_has_the_result_and_takes_effect_once(group: Sessions) -> None:
    first = group.command(0, b"a", b"no way", b"b")
    assert first.results == (b"%d:a" % first.first_index, None, b"%d:b" % first.last_index)
    assert first.failures == ((1, "b'no way' is refused"),)
    assert group.command(0, b"a", b"no way", b"b") == first
    assert group.command(2, b"b").results == (b"%d:b" % first.last_index,)
    assert [[body for _, body in taken] for taken in group.settle()] == [[b"a", b"b"]] * 3


def test_another_leader_gives_the_result_that_the_first_one_gave(group: Sessions) -> None:
    first = group.command(0, b"a")
    group.settle()
    group.cell.cut_off = {group.cell.leader().replica.member_id}
    assert group.command(0, b"a").results == first.results


@pytest.mark.parametrize("commands", [3, 8])
def test_results_outlive_every_process(group: Sessions, commands: int) -> None:
    """They are applied again, or come from a snapshot."""
    outlive_every_process(group, commands)


def outlive_every_process(group: Sessions, commands: int) -> None:
    receipts = [group.command(number, b"%d" % number) for number in range(commands)]
    group.settle()
    group.restart_all()
    for number in range(commands - 3, commands):
        assert group.command(number, b"%d" % number) == receipts[number]
    assert {len(taken) for taken in group.settle()} == {commands}


def test_results_of_more_batches_than_have_receipts_are_not_kept(group: Sessions) -> None:
    for number in range(9):
        group.command(number, b"%d" % number)
    assert isinstance(group.command(2, b"2"), AlreadyCommitted)
    runner = group.cell.leader().machines._drivers["chain"]._runner
    assert runner is not None
    assert [len(pieces) for pieces in runner._kept._sessions.values()] == [5]


def test_sessions_without_commands_keep_nothing(group: Sessions) -> None:
    assert group.command(0, b"plain", machine="").results == ()
    group.append(b"x")
    runner = group.cell.leader().machines._drivers["chain"]._runner
    assert runner is not None
    assert runner._kept.encode() == b""


def test_a_machine_that_keeps_its_own_state_has_no_results_of_earlier_processes(tmp_path: Path) -> None:
    """It says so: the command is in the log, once."""
    disks: list[Disk] = []

    def make() -> Lasting:
        return Lasting(disks[0])

    disks.append(Disk())
    group = Sessions(tmp_path, make=make, members=1)
    assert isinstance(group.command(0, b"a"), AppendReceipt)
    group.restart_all()
    group.cell.until(group.is_bound)
    outcome = group.command(0, b"a")
    assert isinstance(outcome, ResultUnknown)
    assert "kept no longer" in str(outcome)
    group.cell.close()


def test_a_batch_of_which_a_part_is_in_the_log_has_all_its_results(group: Sessions) -> None:
    """As after a crash that has cut it: the rest is appended by the repetition."""
    group.command(0, b"a")
    receipt = group.command(1, b"b", b"c")
    whole = group.command(1, b"b", b"c", b"d")
    assert len(whole.parts) == 2
    assert whole.results == (*receipt.results, b"%d:d" % whole.last_index)
    group.settle()
    assert group.command(1, b"b", b"c", b"d") == whole


def kept_results_outlive_snapshots() -> None:
    """For mutants: with a directory of its own."""
    with tempfile.TemporaryDirectory() as path:
        group = Sessions(Path(path))
        outlive_every_process(group, 8)
        group.cell.close()


def test_a_batch_that_was_cut_ends_with_its_term() -> None:
    """What lies behind it is another's, on the same channel."""
    kept = KeptResults()
    halves = [EntryBatch.from_bodies([b"?", b"a"]), EntryBatch.from_bodies([b"b", b"c"])]
    for half, term in zip(halves, (1, 2), strict=True):
        half.stamp(8 + 2 * term, term, np.arange(2), 0)
    batch = EntryBatch.concatenate(halves)
    said = ProducerBatch("p", ProducerEpoch(5, 1), 0, 3)
    batches = kept.batches_in(batch, [(0, said)])
    kept.note(batches, np.arange(11, 14), [b"a", b"b", b"c"])
    receipt = AppendReceipt(1, 11, 1, Durability.SYNC)
    found = kept.results_of("p", receipt)
    assert found is not None
    assert found.results == (b"a",)
    assert kept.results_of("p", AppendReceipt(2, 12, 1, Durability.SYNC)) is None


@pytest.mark.parametrize("stretches", [(4,), (2, 2), (3, 1), (1, 1, 1, 1)])
def test_what_is_kept_of_a_session_that_ends_does_not_depend_on_stretches(
    stretches: tuple[int, ...],
) -> None:
    """Members apply the same log in stretches of their own, and save the same."""
    runner = MachineRunner("chain", 1, Chain(), 0)
    said = ProducerBatch("p", ProducerEpoch(5, 1), 0, 1)
    ended = OpenProducer("q", bytes(16), evicts=("p",))
    entries = [_control(EntryKind.PRODUCER, said), EntryBatch.from_bodies([b"a"])]
    entries += [_control(EntryKind.OPEN, ended), EntryBatch.from_bodies([b"b"])]
    for index, entry in enumerate(entries, 10):
        entry.set_channel(entry.first_header.magic == EntryKind.NORMAL)
        entry.stamp(index, 1, np.arange(1), 0)
    for count in stretches:
        runner.apply(EntryBatch.concatenate(entries[:count]))
        del entries[:count]
    assert runner._kept.encode() == b""


@pytest.mark.parametrize("stretches", [(10,), (5, 5), (4, 4, 2)])
def test_what_is_kept_of_a_batch_without_room_does_not_depend_on_stretches(
    stretches: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_results, "MOST_BYTES", 640)
    kept, index = KeptResults(), 11
    for count in stretches:
        batch = SessionBatch("p", 11, 21, 1, continues=False)
        kept.note([batch], np.arange(index, index + count), [bytes(84)] * count)
        index += count
    assert kept.encode() == b""


def _control(kind: EntryKind, body: ControlBody) -> EntryBatch:
    return EntryBatch.control(kind, encode_body(body))
