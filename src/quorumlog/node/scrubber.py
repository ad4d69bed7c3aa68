"""Scrubber: reads the whole log again, slowly, so that damage is found while others can still heal it.

One pass reads every durable entry as a push to a follower far behind would, and checks header, chain and
body. Then it rests: an idle member is to be idle. The place where a pass stands is not kept; after a
restart the next one begins anew.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.batch import EntryBatch
from quorumlog.errors import (
    DirectoryDamaged,
    IndexOutOfRange,
    LedgerError,
    RangeDamaged,
    StoreFailure,
)
from quorumlog.node.ports import World
from quorumlog.node.push_sender import read_sound
from quorumlog.store.ledger_store import LedgerStore, LogRange

NEVER = float("inf")
STEP_BYTES = 256 * 1024
"""Read at a time: small enough that a client's read behind it does not notice."""
FIRST_PASS_AFTER_MS = 60_000
"""A start has better things to do, and so has whoever waits for it."""
PAUSE_MS = 24 * 3600 * 1000


class Scrubber:
    def __init__(
        self,
        bytes_per_second: int,
        store: LedgerStore,
        world: World,
        on_damage: Callable[[DirectoryDamaged, int], None],
        now_ms: float,
    ) -> None:
        """`bytes_per_second` 0: off. `on_damage(damage, stop_index)` as in `PushSender`."""
        self._bytes_per_second = bytes_per_second
        self._store = store
        self._world = world
        self._on_damage = on_damage
        self._next_index = -1
        """Of the pass under way; -1 while it rests."""
        self._stop_index = -1
        self._is_reading = False
        self._next_step_ms = now_ms + FIRST_PASS_AFTER_MS if bytes_per_second else NEVER

    def tick(self, now_ms: float) -> None:
        """Begin the next step if it is due."""
        if self._is_reading or now_ms < self._next_step_ms:
            return
        if self._next_index < 0:
            self._next_index = self._store.begin.index + 1
            self._stop_index = self._store.durable.index + 1
        log_range = self._next_range()
        if log_range is None:
            self._next_index = -1
            self._next_step_ms = now_ms + PAUSE_MS
            return
        self._next_index = log_range.stop_index
        self._next_step_ms = now_ms + log_range.size_bytes * 1000 / self._bytes_per_second
        self._is_reading = True
        self._world.read_later(
            lambda: read_sound(self._store, log_range), lambda result: self._read(log_range, result)
        )

    def _next_range(self) -> LogRange | None:
        """What is read next, round what is damaged; None at the end of the pass."""
        while self._next_index < self._stop_index:
            try:
                return self._store.range_of(self._next_index, self._stop_index, STEP_BYTES)
            except IndexOutOfRange:
                return None  # the log was cut below where the pass was to end
            except RangeDamaged:
                self._next_index = next(
                    q.stop_index for q in self._store.quarantined if q.holds(self._next_index)
                )
            except DirectoryDamaged as damage:
                self._on_damage(damage, damage.index + 1)
                self._next_index = max(self._next_index, damage.index) + 1
        return None

    def _read(self, log_range: LogRange, result: EntryBatch | StoreFailure | LedgerError) -> None:
        self._is_reading = False
        if isinstance(result, DirectoryDamaged):
            self._on_damage(result, log_range.stop_index)
        elif isinstance(result, StoreFailure):
            raise result

    def next_wakeup_ms(self) -> float:
        return NEVER if self._is_reading else self._next_step_ms
