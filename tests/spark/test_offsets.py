from __future__ import annotations

import logging

import pytest

from quorumlog.errors import ConfigError, IndexOutOfRange
from quorumlog.spark.options import (
    IndexRange,
    LedgerDataLoss,
    LogBounds,
    Offset,
    StatedBound,
    parse_offset,
    resolve,
)

BOUNDS = LogBounds("orders", 100, 500)


def resolved(starting: Offset, ending: Offset, *, fail: bool = True) -> IndexRange:
    return resolve(starting, ending, BOUNDS, fail_on_data_loss=fail)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("earliest", "earliest"),
        ("Latest", "latest"),
        ("17", 17),
        ('{"orders": 17}', {"orders": 17}),
        ('{"orders": "EARLIEST"}', {"orders": "earliest"}),
        (str(2**62), 2**62),
    ],
)
def test_what_an_offset_may_look_like(text: str, offset: StatedBound) -> None:
    assert parse_offset("startingOffsets", text) == offset


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "1.5",
        "true",
        "[1]",
        "{}",
        '{"g": null}',
        '{"g": true}',
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_what_it_may_not(text: str) -> None:
    with pytest.raises(ConfigError, match="option endingOffsets must be earliest, latest, an index"):
        parse_offset("endingOffsets", text)


@pytest.mark.parametrize(
    ("starting", "ending", "expected"),
    [
        ("earliest", "latest", (100, 500)),
        (100, 500, (100, 500)),
        (200, 300, (200, 300)),
        (500, "latest", (500, 500)),
        ("earliest", "earliest", (100, 100)),
        ("latest", "latest", (500, 500)),
    ],
)
def test_offsets_become_a_range(starting: Offset, ending: Offset, expected: tuple[int, int]) -> None:
    assert resolved(starting, ending) == expected


def test_an_empty_log_is_an_empty_range() -> None:
    empty = resolve("earliest", "latest", LogBounds("g", 0, 0), fail_on_data_loss=True)
    assert empty == IndexRange(0, 0)


def test_a_start_below_the_begin_is_data_loss() -> None:
    with pytest.raises(LedgerDataLoss, match=r"entries 40 .. 99 of group 'orders' are lost") as caught:
        resolved(40, "latest")
    assert caught.value.ledger_begin_index == 100
    assert "failOnDataLoss=false" in str(caught.value)


def test_without_fail_on_data_loss_the_gap_is_logged_and_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert resolved(40, "latest", fail=False) == (100, 500)
    assert "entries 40 .. 99 of group 'orders' are lost" in caplog.text
    assert resolved(0, 50, fail=False) == (50, 50)


@pytest.mark.parametrize(("starting", "ending"), [(501, "latest"), ("earliest", 501)])
def test_beyond_the_committed_index_is_refused(starting: Offset, ending: Offset) -> None:
    with pytest.raises(IndexOutOfRange, match=r"is 501, .* up to offset 500 \(committed index 499\)"):
        resolved(starting, ending, fail=False)


def test_swapped_ends_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"startingOffsets \(300\) is above endingOffsets \(200\)"):
        resolved(300, 200)
