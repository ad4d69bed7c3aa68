"""Where a topic's batches lie in the log: what a reader of the log itself asks the state machine.

Offsets are given where entries are applied, so the log alone does not say them, nor which batches of
idempotent producers came twice. Who reads entries asks for the places of the batches that count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

MACHINE_NAME = "kafka"
PREFIX_BYTES = 21
"""In front of a batch in the body of its entry."""
MOST_PLACES = 1 << 16
"""In one answer: 16 bytes each."""

_NAMES = 4_000
"""Of topics in one question, which has 2 MiB at most."""

Cursor = tuple[str, int, int]
"""Topic, partition, and the position of the entry that was told last."""


class TopicsQuestion(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The answer is a list of names."""


class PlacesQuestion(msgspec.Struct, frozen=True, array_like=True, tag=2):
    topics: list[str] | None
    """None: all."""
    first_position: int
    """In the log, of entries; the stop is exclusive."""
    stop_position: int
    after: Cursor | None = None


class PartitionPlaces(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    partition: int
    positions: bytes
    """Of the entries, ascending; 64 bits each, little-endian."""
    bases: bytes
    """Base offsets, in the same form."""


class PlacesAnswer(msgspec.Struct, frozen=True, array_like=True):
    begin_position: int
    """Nothing is known of what lies before it."""
    missing: list[str]
    """Of the named topics."""
    partitions: list[PartitionPlaces]
    """In order of topic and partition; those that have none are left out."""
    rest: Cursor | None
    """There is more after it."""


Question = TopicsQuestion | PlacesQuestion
Ask = Callable[[bytes], bytes]


class BatchPlaces(NamedTuple):
    """Three columns, of shape (batches,), in order of position."""

    positions: npt.NDArray[np.int64]
    bases: npt.NDArray[np.int64]
    partitions: npt.NDArray[np.int32]
    """Numbers of `names`."""
    names: list[tuple[str, int]]
    """Topic and partition."""

    def slice(self, first: int, stop: int) -> BatchPlaces:
        cut = slice(first, stop)
        return BatchPlaces(self.positions[cut], self.bases[cut], self.partitions[cut], self.names)


class FoundPlaces(NamedTuple):
    places: BatchPlaces
    begin_position: int
    missing: list[str]


def topic_names(ask: Ask) -> list[str]:
    """In order. Raises what `ask` does."""
    return msgspec.msgpack.decode(ask(msgspec.msgpack.encode(TopicsQuestion())), type=list[str])


def find_places(
    ask: Ask, topics: Sequence[str] | None, first_position: int, stop_position: int
) -> FoundPlaces:
    """Of all batches of these topics (None: of all) in entries at [first_position, stop_position).
    Raises what `ask` does."""
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
