"""Positions of a topic's batches in the log: queries of the state machine by readers of the log.

Offsets are assigned when entries are applied, so the log alone has neither offsets nor which batches of
idempotent producers are duplicates. A reader of entries asks for the positions of the valid batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

MACHINE_NAME = "kafka"
PREFIX_BYTES = 21
"""Bytes before a batch in the body of its entry."""
MOST_PLACES = 1 << 16
"""Most batches in one answer; 16 bytes each."""

_NAMES = 4_000
"""Bytes of topic names in one question, which has 2 MiB at most."""

Cursor = tuple[str, int, int]
"""(topic, partition, position of the entry returned last)."""


class TopicsQuestion(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The answer is a list of names."""


class PlacesQuestion(msgspec.Struct, frozen=True, array_like=True, tag=2):
    topics: list[str] | None
    """None: all topics."""
    first_position: int
    """Positions of entries in the log; the stop is exclusive."""
    stop_position: int
    after: Cursor | None = None


class PartitionPlaces(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    partition: int
    positions: bytes
    """Positions of the entries, ascending; 64 bits each, little-endian."""
    bases: bytes
    """Base offsets, in the same format."""


class PlacesAnswer(msgspec.Struct, frozen=True, array_like=True):
    begin_position: int
    """Batches before this position are unknown."""
    missing: list[str]
    """Named topics that do not exist."""
    partitions: list[PartitionPlaces]
    """In order of topic and partition; partitions without batches are omitted."""
    rest: Cursor | None
    """The next question begins after this; None: there are no more."""


Question = TopicsQuestion | PlacesQuestion
Ask = Callable[[bytes], bytes]


class BatchPlaces(NamedTuple):
    """Three columns, of shape (batches,), in order of position."""

    positions: npt.NDArray[np.int64]
    bases: npt.NDArray[np.int64]
    partitions: npt.NDArray[np.int32]
    """Indices into `names`."""
    names: list[tuple[str, int]]
    """(topic, partition)."""

    def slice(self, first: int, stop: int) -> BatchPlaces:
        cut = slice(first, stop)
        return BatchPlaces(self.positions[cut], self.bases[cut], self.partitions[cut], self.names)


class FoundPlaces(NamedTuple):
    places: BatchPlaces
    begin_position: int
    missing: list[str]


def topic_names(ask: Ask) -> list[str]:
    """Sorted. Raises the errors of `ask`."""
    return msgspec.msgpack.decode(ask(msgspec.msgpack.encode(TopicsQuestion())), type=list[str])


def find_places(
    ask: Ask, topics: Sequence[str] | None, first_position: int, stop_position: int
) -> FoundPlaces:
    """The batches of these topics (None: all) in entries at [first_position, stop_position). Raises
    the errors of `ask`."""
    names: list[tuple[str, int]] = []
    positions, bases, numbers = [_NONE], [_NONE], [_NONE]
    begin_position = 0
    missing: list[str] = []
    pieces = (
        [None] if topics is None else [topics[at : at + _NAMES] for at in range(0, len(topics), _NAMES)]
    )
    for piece in pieces:
        after: Cursor | None = None
        while True:
            named = None if piece is None else [*piece]
            question = PlacesQuestion(named, first_position, stop_position, after)
            answer = msgspec.msgpack.decode(ask(msgspec.msgpack.encode(question)), type=PlacesAnswer)
            begin_position = max(begin_position, answer.begin_position)
            for each in answer.partitions:
                if not names or names[-1] != (each.topic, each.partition):
                    names.append((each.topic, each.partition))
                positions.append(np.frombuffer(each.positions, "<i8"))
                bases.append(np.frombuffer(each.bases, "<i8"))
                numbers.append(np.full(len(positions[-1]), len(names) - 1))
            after = answer.rest
            if after is None:
                missing += answer.missing
                break
    column = np.concatenate(positions)
    order = np.argsort(column, kind="stable")
    return FoundPlaces(
        BatchPlaces(
            column[order],
            np.concatenate(bases)[order],
            np.concatenate(numbers)[order].astype(np.int32),
            names,
        ),
        begin_position,
        missing,
    )


_NONE = np.zeros(0, np.int64)
