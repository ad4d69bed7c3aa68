"""What a client calls follows from its seed, and what is written down is what it was told."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemesis.history import READ, HistoryWriter, Operation, decode_body, load_histories
from nemesis.workload import APPEND, Workload
from quorumlog.entry import EntryRange


def workload(history: HistoryWriter, name: str = "c0.0") -> Workload:
    return Workload(name, history, ("n0", "n1", "n2"), 0.0, seed=3)


def test_the_same_seed_and_name_draw_the_same_calls(tmp_path: Path) -> None:
    def drawn(name: str) -> list[list[bytes]]:
        with HistoryWriter(tmp_path / "unused") as history:
            work = workload(history, name)
            return [work.next_batch(work.next_verb()).bodies for _ in range(50)]

    assert drawn("c0.0") == drawn("c0.0") != drawn("c0.1")


def test_nothing_is_read_before_something_was_acknowledged(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "history") as history:
        work = workload(history)
        assert {work.next_verb() for _ in range(100)} == {APPEND}
        work.appended(APPEND, work.next_batch(APPEND), True, parts=[EntryRange(41, 1, 1)])
        assert READ in {work.next_verb() for _ in range(100)}
        for _ in range(100):
            asked = work.next_range()
            stop_index = 42 if asked.stop_index is None else asked.stop_index
            assert 0 <= asked.first_index < stop_index <= 42


@pytest.mark.parametrize(("all_unwritten", "outcome"), [(True, False), (False, None)])
def test_a_stream_that_broke_knows_of_its_other_batches_only_if_none_was_written(
    tmp_path: Path, all_unwritten: bool, outcome: bool | None
) -> None:
    path = tmp_path / "history"
    with HistoryWriter(path) as history:
        stream = workload(history).next_stream()
        sent = [bodies for _, bodies in zip(range(4), stream.batches(), strict=False)]
        stream.acknowledged([EntryRange(100, len(sent[0]), 1)])
        left = sum(map(len, sent[1:]))
        stream.failed(left if all_unwritten else left - 1)
    operations: list[Operation] = load_histories([path])
    assert [operation.ok for operation in operations] == [True, outcome, outcome, outcome]
    assert [operation.index for operation in operations] == [100, -1, -1, -1]
    assert [op.values() for op in operations] == [[*map(decode_body, bodies)] for bodies in sent]
