"""Offsets: what a query says about its range, and which entries that is on a given log.

An offset is the next index: `latest` is the committed index + 1, `earliest` the first index that the log
still holds.
"""

from __future__ import annotations

import json
import logging
from typing import Any, NamedTuple

from quorumlog.errors import ConfigError, IndexOutOfRange

_logger = logging.getLogger(__name__)

EARLIEST = "earliest"
LATEST = "latest"

Offset = int | str
"""An index, `earliest` or `latest`."""
StatedOffset = Offset | dict[str, Offset]
"""As an option states it: for whatever group is read, or by group."""


class LedgerDataLoss(IndexOutOfRange):
    """A query asks for entries that the log no longer holds, and failOnDataLoss is true."""


class LogBounds(NamedTuple):
    """Which entries can be read at the moment of planning."""

    group: str
    begin_index: int
    stop_index: int


class IndexRange(NamedTuple):
    first_index: int
    stop_index: int


def parse_offset(name: str, text: str) -> StatedOffset:
    """Also JSON, `{"group": number | "earliest" | "latest"}`, and Kafka's -2 and -1 for those two.
    Raises ConfigError naming the option."""
    valid = f'option {name} must be earliest, latest, an index or JSON {{"group": index}}, not {text!r}'
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        stated = json.loads(text)
    except ValueError:
        raise ConfigError(valid) from None
    if isinstance(stated, dict) and stated:
        return {
            group: _checked(name, without_partition(name, offset), valid)
            for group, offset in stated.items()
        }
    return _checked(name, stated, valid)


def without_partition(name: str, stated: object) -> Any:
    """Of `{"0": value}` the value: a group is what Kafka calls a topic of one partition. Raises
    ConfigError for other partitions."""
    if not isinstance(stated, dict):
        return stated
    if set(stated) != {"0"}:
        raise ConfigError(
            f"option {name} names the partitions {', '.join(sorted(stated))}: a group has one order, and"
            " no partition but 0"
        )
    return stated["0"]


def _checked(name: str, offset: object, valid: str) -> Offset:
    if isinstance(offset, str) and offset.lower() in (EARLIEST, LATEST):
        return offset.lower()
    if type(offset) is not int:
        raise ConfigError(valid)
    if offset in (-2, -1):
        return EARLIEST if offset == -2 else LATEST
    if offset < 0:
        raise ConfigError(f"option {name} must not be negative, not {offset}; write earliest or latest")
    return offset


def resolve(
    starting: StatedOffset, ending: StatedOffset, bounds: LogBounds, *, fail_on_data_loss: bool
) -> IndexRange:
    """The entries that a query means; empty where both ends meet.

    Raises LedgerDataLoss for a start below the begin (unless `fail_on_data_loss` is off: the gap is
    logged and left out), IndexOutOfRange above the end, ConfigError where the ends are swapped.
    """
    first_index = _index_of("startingOffsets", starting, bounds)
    stop_index = _index_of("endingOffsets", ending, bounds)
    for name, index in (("startingOffsets", first_index), ("endingOffsets", stop_index)):
        if index > bounds.stop_index:
            raise IndexOutOfRange(
                f"option {name} is {index}, but group {bounds.group!r} can be read up to offset"
                f" {bounds.stop_index} (committed index {bounds.stop_index - 1}); use latest",
                ledger_begin_index=bounds.begin_index,
                committed_index=bounds.stop_index - 1,
            )
    if first_index > stop_index:
        raise ConfigError(f"startingOffsets ({first_index}) is above endingOffsets ({stop_index})")
    if first_index < bounds.begin_index:
        first_index = skip_lost_entries(
            first_index, min(bounds.begin_index, stop_index), bounds, fail_on_data_loss=fail_on_data_loss
        )
    return IndexRange(first_index, stop_index)


def skip_lost_entries(
    first_index: int, next_index: int, bounds: LogBounds, *, fail_on_data_loss: bool
) -> int:
    """Where reading goes on if [first_index, next_index) is gone. Raises LedgerDataLoss if
    `fail_on_data_loss`; otherwise the gap is logged."""
    gap = (
        f"entries {first_index} .. {next_index - 1} of group {bounds.group!r} are lost"
        f" ({next_index - first_index}): the log begins at index {bounds.begin_index}"
    )
    if fail_on_data_loss:
        raise LedgerDataLoss(
            f"{gap}. Start at {bounds.begin_index} or earliest, or set failOnDataLoss=false to leave"
            " them out",
            ledger_begin_index=bounds.begin_index,
            committed_index=bounds.stop_index - 1,
        )
    _logger.warning("%s; failOnDataLoss=false, going on without them", gap)
    return next_index


def _index_of(name: str, stated: StatedOffset, bounds: LogBounds) -> int:
    if isinstance(stated, dict):
        if set(stated) != {bounds.group}:
            raise ConfigError(
                f"option {name} names the groups {', '.join(sorted(stated))}, but the group read is"
                f" {bounds.group!r}"
            )
        stated = stated[bounds.group]
    if stated == EARLIEST:
        return bounds.begin_index
    if stated == LATEST:
        return bounds.stop_index
    assert isinstance(stated, int), f"offset {stated!r} of option {name}"
    return stated
