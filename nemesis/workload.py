"""Workload: what one sequential client calls next, and what goes into the history about it.

It makes no call itself, so that the workers of both clients do the same things.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nemesis.history import (
    LAST_SEQUENCE,
    READ,
    READ_TO_END,
    HistoryWriter,
    Operation,
    decode_body,
    encode_body,
    value_name,
)
from quorumlog import Entry
from quorumlog.entry import EntryRange

APPEND = "append"
APPEND_BATCH = "append_batch"
APPEND_STREAM = "append_stream"
_VERBS = {APPEND: 10, APPEND_BATCH: 5, APPEND_STREAM: 1, READ: 6}
"""How often each is drawn, relative to the others."""
_MAX_BATCH = 20
_STREAM_BATCHES = 10
_CANCELLED = 0.02
"""So many appends of tasks are given up in the middle of the call."""
_PATIENCE_S = 0.01
"""Of such a task, at most: about as long as an append takes."""
_READ_BACK = 2000
"""A read begins at most so far behind the newest entry that its worker knows of."""


class Batch(NamedTuple):
    value: int
    """Number of the first."""
    bodies: list[bytes]
    call_ns: int


class Range(NamedTuple):
    """To be read: known to be committed, so every entry of it must come."""

    first_index: int
    stop_index: int | None
    """None: to the end, so everything must come that was acknowledged before the call."""
    from_member: str | None
    call_ns: int


class Workload:
    def __init__(
        self,
        name: str,
        history: HistoryWriter,
        member_ids: tuple[str, ...],
        pause_s: float,
        seed: int,
        *,
        in_session: bool = False,
    ) -> None:
        """`pause_s`: between two calls, in the mean. `in_session`: it appends as a producer."""
        self.in_session = in_session
        self.random = random.Random(f"{seed}/{name}")
        self.name = name
        self._history = history
        self._member_ids = member_ids
        self._pause_s = pause_s
        self._next_value = 0
        self._newest_index = -1
        """Highest index acknowledged to this worker."""

    # ---------------------------------------------------------------- what to do next

    def next_verb(self) -> str:
        """A read only once there is something to read."""
        verbs = _VERBS if self._newest_index >= 0 else {APPEND: 1}
        return self.random.choices(list(verbs), list(verbs.values()))[0]

    def next_pause_s(self) -> float:
        return self.random.expovariate(1 / self._pause_s) if self._pause_s else 0.0

    def next_patience_s(self) -> float | None:
        """Of a task with its next append; None: as long as the client has."""
        is_short = self.random.random() < _CANCELLED
        return self.random.uniform(0, _PATIENCE_S) if is_short else None

    def next_batch(self, verb: str) -> Batch:
        """Bodies mostly short, some of kilobytes. The call begins now."""
        low, high = {APPEND: (1, 1), APPEND_BATCH: (2, _MAX_BATCH), APPEND_STREAM: (1, _MAX_BATCH)}[verb]
        count = self.random.randint(low, high)
        value = self._next_value
        self._next_value += count
        padding_bytes = min(int(self.random.paretovariate(1.0) * 20), 50_000 // count)
        bodies = [
            encode_body(value_name(self.name, number), padding_bytes)
            for number in range(value, value + count)
        ]
        return Batch(value, bodies, time.monotonic_ns())

    def next_stream(self) -> StreamWork:
        return StreamWork(self)

    def next_range(self) -> Range:
        newest = self._newest_index
        if self.random.random() < 0.25:
            return Range(max(0, newest - _MAX_BATCH), None, None, time.monotonic_ns())
        first = max(0, newest - self.random.randrange(_READ_BACK))
        stop = min(first + self.random.randint(1, 2 * _MAX_BATCH), newest + 1)
        # Rarely from one by name: if that one is down, its reader waits out the whole time-out.
        named = self.random.choice(self._member_ids)
        (from_member,) = self.random.choices([None, "any", named], [5, 4, 1])
        return Range(first, stop, from_member, time.monotonic_ns())

    # ---------------------------------------------------------------- what became of it

    def appended(
        self,
        verb: str,
        batch: Batch,
        ok: bool | None,
        *,
        parts: Sequence[EntryRange] = (),
        tries: int = 1,
    ) -> None:
        """`parts`: where it lies."""
        self._history.record(
            Operation(
                self.name,
                verb,
                batch.call_ns,
                time.monotonic_ns(),
                ok,
                batch.value,
                len(batch.bodies),
                parts[0].first_index if parts else -1,
                parts=[(each.first_index, each.count) for each in parts] if len(parts) > 1 else [],
                in_session=self.in_session,
                tries=tries,
            )
        )
        if parts:
            self._newest_index = max(self._newest_index, parts[-1].indices[-1])

    def was_told_last(self, last_sequence: int, call_ns: int) -> None:
        """What the log holds of this producer."""
        self._history.record(
            Operation(
                self.name,
                LAST_SEQUENCE,
                call_ns,
                time.monotonic_ns(),
                True,
                last_sequence,
                in_session=True,
            )
        )

    def was_read(self, asked: Range, found: list[Entry] | None) -> None:
        """None: it failed."""
        stop_index = asked.stop_index
        if stop_index is None:
            stop_index = found[-1].index + 1 if found else asked.first_index
        self._history.record(
            Operation(
                self.name,
                READ if asked.stop_index is not None else READ_TO_END,
                asked.call_ns,
                time.monotonic_ns(),
                found is not None,
                count=stop_index - asked.first_index,
                index=asked.first_index,
                entries=[(entry.index, decode_body(entry.body)) for entry in found or ()],
            )
        )


class StreamWork:
    """One `append_stream`, which has several batches under way."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._sent: deque[Batch] = deque()
        """Without an outcome yet, in order."""

    def batches(self) -> Iterator[list[bytes]]:
        for _ in range(_STREAM_BATCHES):
            batch = self._workload.next_batch(APPEND_STREAM)
            self._sent.append(batch)
            yield batch.bodies

    def acknowledged(self, parts: Sequence[EntryRange]) -> None:
        """The oldest that has no outcome yet."""
        self._workload.appended(APPEND_STREAM, self._sent.popleft(), True, parts=parts)

    def left(self) -> Iterator[Batch]:
        """Those that have no outcome yet, which somebody else appends."""
        while self._sent:
            yield self._sent.popleft()

    def failed(self, unwritten_records: int) -> None:
        # Which batch became what is known only if no record is committed or unknown.
        all_refused = unwritten_records == sum(len(batch.bodies) for batch in self._sent)
        for batch in self._sent:
            self._workload.appended(APPEND_STREAM, batch, False if all_refused else None)
