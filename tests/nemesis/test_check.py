"""The checker accepts what a correct log may do and names what it may not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest

from nemesis.check import check
from nemesis.history import LAST_SEQUENCE, READ_TO_END, Log, Operation


class Clients:
    """Calls that follow each other, each returned before the next begins unless told otherwise."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._clock = count(step=10)
        self._values = count()

    def append(
        self,
        ok: bool | None,
        index: int = -1,
        *,
        size: int = 1,
        call_ns: int | None = None,
        return_ns: int | None = None,
    ) -> None:
        """Of client `c`: values c/0, c/1, ... in the order of the calls."""
        value = next(self._values)
        for _ in range(size - 1):
            next(self._values)
        now = next(self._clock)
        call = now if call_ns is None else call_ns
        returned = now + 5 if return_ns is None else return_ns
        verb = "append" if size == 1 else "append_batch"
        self.operations.append(Operation("c", verb, call, returned, ok, value, size, index))

    def read(self, first: int, entries: list[tuple[int, str]], size: int) -> None:
        now = next(self._clock)
        self.operations.append(
            Operation("r", "read", now, now + 5, True, count=size, index=first, entries=entries)
        )

    def read_to_end(self, first: int, entries: list[tuple[int, str]], call_ns: int) -> None:
        size = entries[-1][0] + 1 - first if entries else 0
        self.operations.append(
            Operation(
                "r", READ_TO_END, call_ns, call_ns + 5, True, count=size, index=first, entries=entries
            )
        )

    def kinds(self, log: Log, *others: Log, begin_index: int = 0) -> list[str]:
        logs = {f"n{number}": one for number, one in enumerate([log, *others] if others else [log] * 3)}
        return [violation.kind for violation in check(self.operations, logs, begin_index)]


@pytest.fixture
def clients() -> Clients:
    return Clients()


def test_acknowledged_appends_at_their_indices_are_accepted(clients: Clients) -> None:
    clients.append(True, 1)
    clients.append(True, 2, size=2)
    clients.append(False)
    clients.read(0, [(1, "c/0"), (2, "c/1")], 3)
    assert clients.kinds([None, "c/0", "c/1", "c/2"]) == []


@pytest.mark.parametrize(
    "log", [[None], [None, "c/0"], [None, "c/0", "c/1"], [None, "c/0", "c/1", "c/2"]]
)
def test_of_an_unknown_append_any_prefix_may_be_in_the_log(clients: Clients, log: Log) -> None:
    clients.append(None, size=3)
    assert clients.kinds(log) == []


def test_an_unknown_append_may_come_behind_one_that_was_called_later(clients: Clients) -> None:
    clients.append(None)
    clients.append(True, 0)
    assert clients.kinds(["c/1", "c/0"]) == []


def test_a_lost_acknowledged_append_is_found(clients: Clients) -> None:
    clients.append(True, 0)
    clients.append(True, 1)
    assert clients.kinds(["c/0"]) == ["lost"]


def test_an_acknowledged_append_at_another_index_is_found(clients: Clients) -> None:
    clients.append(True, 0)
    assert clients.kinds([None, "c/0"]) == ["moved"]


def test_a_value_that_is_in_the_log_twice_is_found(clients: Clients) -> None:
    clients.append(None)
    assert clients.kinds(["c/0", None, "c/0"]) == ["duplicate"]


def test_a_refused_append_that_is_in_the_log_is_found(clients: Clients) -> None:
    clients.append(False)
    assert clients.kinds(["c/0"]) == ["refused but present"]


@pytest.mark.parametrize("log", [["c/1"], ["c/0", "c/2"], ["c/1", "c/0"], ["c/0", None, "c/1"]])
def test_an_unknown_append_that_is_no_prefix_in_one_piece_is_found(clients: Clients, log: Log) -> None:
    clients.append(None, size=3)
    kinds = clients.kinds(log)
    assert set(kinds) == {"torn"}


def test_an_append_that_stands_before_one_that_had_returned_is_found(clients: Clients) -> None:
    clients.append(None, call_ns=100, return_ns=900)
    clients.append(True, 1, call_ns=0, return_ns=50)
    assert clients.kinds(["c/0", "c/1"]) == ["reordered"]


def test_batches_of_a_stream_out_of_their_order_are_found_though_they_were_under_way_together(
    clients: Clients,
) -> None:
    clients.append(True, 1, call_ns=0, return_ns=100)
    clients.append(True, 0, call_ns=0, return_ns=100)
    assert clients.kinds(["c/1", "c/0"]) == ["reordered"]


def test_a_read_that_leaves_an_entry_out_is_found(clients: Clients) -> None:
    clients.append(True, 0, size=3)
    clients.read(0, [(0, "c/0"), (2, "c/2")], 3)
    assert clients.kinds(["c/0", "c/1", "c/2"]) == ["gap in a read"]


def test_a_read_to_the_end_may_miss_only_what_was_not_acknowledged_when_it_was_called(
    clients: Clients,
) -> None:
    clients.append(True, 0, call_ns=0, return_ns=10)
    clients.append(True, 1, call_ns=0, return_ns=30)
    log: Log = ["c/0", "c/1"]
    clients.read_to_end(0, [(0, "c/0")], call_ns=20)
    clients.read_to_end(0, [(0, "c/0"), (1, "c/1")], call_ns=40)
    assert clients.kinds(log) == []
    clients.read_to_end(0, [(0, "c/0")], call_ns=40)
    clients.read_to_end(1, [], call_ns=40)
    assert clients.kinds(log) == ["stale read", "stale read"]


def test_a_read_that_stops_short_of_its_range_is_found(clients: Clients) -> None:
    clients.append(True, 0, size=2)
    clients.read(0, [(0, "c/0")], 2)
    assert clients.kinds(["c/0", "c/1"]) == ["gap in a read"]


def test_an_entry_that_changed_after_it_was_read_is_found(clients: Clients) -> None:
    clients.append(None)
    clients.append(None)
    clients.read(0, [(0, "c/0")], 1)
    assert clients.kinds(["c/1"]) == ["changed"]


def test_a_read_of_what_the_log_does_not_reach_is_found(clients: Clients) -> None:
    clients.append(None)
    clients.read(0, [(0, "c/0")], 1)
    assert clients.kinds([]) == ["read beyond the log"]


def test_an_entry_that_nobody_appended_is_found(clients: Clients) -> None:
    clients.append(True, 0)
    assert clients.kinds(["c/0", "d/0"]) == ["appended by nobody"]


@pytest.mark.parametrize("other", [["c/0"], ["c/0", None], ["c/0", "c/1", None]])
def test_members_that_hold_different_logs_are_found(clients: Clients, other: Log) -> None:
    clients.append(True, 0)
    clients.append(None)
    assert clients.kinds(["c/0", "c/1"], ["c/0", "c/1"], other) == ["diverging members"]


def test_nothing_is_asked_of_what_members_have_dropped(clients: Clients) -> None:
    clients.append(True, 0, size=2)
    clients.append(None, size=3)
    clients.append(True, 5)
    clients.read(0, [(0, "c/0"), (1, "c/1"), (2, "c/2"), (3, "c/3"), (4, "c/4"), (5, "c/5")], 6)
    left: Log = [None, None, None, "c/3", "c/4", "c/5"]
    whole: Log = ["c/0", "c/1", "c/2", "c/3", "c/4", "c/5"]
    assert clients.kinds(left, whole, begin_index=3) == []
    assert clients.kinds(left, whole) != []


def test_what_is_left_is_asked_for_as_before(clients: Clients) -> None:
    clients.append(True, 0)
    clients.append(True, 4)
    clients.append(None, size=2)
    clients.read(2, [(3, "c/9")], 3)
    left: Log = [None, None, None, None, None]
    assert clients.kinds(left, begin_index=2) == ["lost", "changed"]
    torn: Log = [None, None, None, "c/3", "c/1", "c/2"]
    assert "torn" in clients.kinds(torn, begin_index=2)


def produced(
    value: int, count: int, index: int, *, ok: bool | None = True, parts: Sequence[tuple[int, int]] = ()
) -> Operation:
    """Of producer `p`: sequential calls, `value` of them being its place among them."""
    at = 10 * value
    return Operation(
        "p", "append_batch", at, at + 5, ok, value, count, index, parts=[*parts], in_session=True
    )


def kinds(operations: Sequence[Operation], log: Log, begin_index: int = 0) -> list[str]:
    return [violation.kind for violation in check(operations, {"n0": log}, begin_index)]


def test_a_producers_append_may_be_cut_by_a_crash_but_not_unknown_at_the_end() -> None:
    whole, cut = produced(0, 2, 0), produced(2, 2, 2, parts=[(2, 1), (4, 1)])
    log: Log = ["p/0", "p/1", "p/2", None, "p/3"]
    assert kinds([whole, cut], log) == []
    assert kinds([whole, cut, produced(4, 1, -1, ok=None)], log) == [
        "unknown in a session",
        "out of sequence",
    ]
    assert kinds([cut], log[2:], 0) == ["moved", "moved", "out of sequence"]


def test_a_producers_values_stand_in_the_order_of_their_numbers() -> None:
    operations = [produced(0, 1, 1), produced(1, 1, 0)]
    assert "out of sequence" in kinds(operations, ["p/1", "p/0"])


def test_where_the_first_entries_were_dropped_a_producers_rest_has_no_gap() -> None:
    operations = [produced(value, 1, value) for value in range(4)]
    assert kinds(operations, [None, None, "p/2", "p/3"], 2) == []
    assert kinds(operations, [None, None, "p/2"], 2) == ["lost", "out of sequence"]
    assert kinds(operations, [None, None, None, None], 4) == []


@pytest.mark.parametrize(("told", "is_true"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_last_sequence_lies_between_what_was_acknowledged_and_what_was_sent(
    told: int, is_true: bool
) -> None:
    sent = Operation("p", "append", 30, 60, True, 2, 1, 2, in_session=True)
    asked = Operation("p", LAST_SEQUENCE, 40, 50, True, told, in_session=True)
    found = kinds([produced(0, 2, 0), sent, asked], ["p/0", "p/1", "p/2"])
    assert found == ([] if is_true else ["wrong last sequence"])
