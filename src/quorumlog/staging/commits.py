"""SinkCommits: the driver's side, also for a process that finishes a driver's work.

    hold      before the first task of a batch: rows staged from now on are kept
    connect   as producer `ID` to the staging group: no other driver appends a manifest any more
    look      at the newest manifest: may this batch follow it?
    finish    the rows of the newest manifest are replayed first, and the hold moved to it
    check     that the hold covers the rows of this batch
    append    its manifest, under the next number of the session
    replay    its rows into the log, as producer `ID/rows`, each under its own number
    move      the hold to this manifest, which stays as long as it is the newest

A hold moves to manifests only, and only to such as are replayed. A driver that was fenced may be late
with it: it moves the hold to a manifest that is older than the newest, so no needed row is released.
That is why rows staged before the newest manifest are not committed but staged again: another process
may just be releasing them.
"""

from __future__ import annotations

import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, dropwhile
from typing import NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.client import LedgerClient
from quorumlog.errors import ConfigError, IndexOutOfRange, LedgerError, OutcomeUnknown, ProducerFenced
from quorumlog.staging.client_logs import LogSession, SinkLogs
from quorumlog.staging.manifests import (
    Batch,
    BatchRules,
    Manifest,
    ManifestUnknown,
    NewestManifest,
    RowRange,
    RowsGone,
    RowsNotHeld,
    Verdict,
    decode_manifest,
    encode_manifest,
    joined,
    judge,
)

# ----------------------------------------------------------------
# What a task does: it appends its rows to the staging group and notes where they lie.
#
# An append whose outcome is unknown is made again: what it may have left there is in no manifest, and
# goes by retention.


WINDOW = 4
"""Batches on their way."""
MOST_FAILURES = 5
"""In a row; the client itself has tried each for its time-out."""


def stage(
    log: LedgerClient, batches: Iterable[EntryBatch], timeout_ms: int | None = None
) -> tuple[RowRange, ...]:
    """Where the entries of `batches` lie, in order. Raises a LedgerError once nothing helps."""
    source = iter(batches)
    pending: deque[EntryBatch] = deque()
    ranges: list[RowRange] = []
    failures = 0
    while True:
        try:
            items = _again_and_on(pending, source)
            for receipt in log.append_stream(items, window=WINDOW, timeout_ms=timeout_ms):
                pending.popleft()
                ranges += [RowRange(part.first_index, part.count) for part in receipt.parts]
                failures = 0
            assert not pending, f"{len(pending)} batches without a receipt"
            return joined(ranges)
        except LedgerError as error:
            failures += 1
            may_pass = isinstance(error, OutcomeUnknown) or error.retriable
            if not may_pass or failures >= MOST_FAILURES:
                raise


def _again_and_on(pending: deque[EntryBatch], source: Iterator[EntryBatch]) -> Iterator[EntryBatch]:
    """What has no receipt yet, then what comes. What is taken from the source stays in `pending`."""
    yield from list(pending)
    for batch in source:
        pending.append(batch)
        yield batch


PRODUCER_ID = r"[A-Za-z0-9._-]{1,48}"
HOLD_PREFIX = "sink."
ROWS_SUFFIX = "/rows"
MOST_REPLAYS = 20
"""That others may break off by replaying the same."""


def checked_sink_id(producer: str) -> str:
    """Raises ConfigError."""
    if not re.fullmatch(PRODUCER_ID, producer):
        raise ConfigError(
            "producerId must have 1 to 48 letters, digits, dots, dashes and underscores, unlike"
            f" {producer!r}: a reader of the cluster is named after it"
        )
    return producer


class Commit(NamedTuple):
    """The outcome of a batch."""

    manifest_index: int
    was_new: bool
    """False: it was committed already."""


class Resumed(NamedTuple):
    newest_manifest: NewestManifest
    was_finished: bool
    """All of its rows were in the log already."""


class SinkCommits:
    def __init__(
        self, logs: SinkLogs, producer: str, *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """Raises ConfigError for a producer id that cannot be one of a sink."""
        self.producer = checked_sink_id(producer)
        self.rows_producer = producer + ROWS_SUFFIX
        self.hold_name = HOLD_PREFIX + producer
        self._log, self._staging = logs
        self._pause = pause

    def begin(self) -> Batch | None:
        """Before anything is staged: takes the hold; returns the newest committed batch."""
        if self._staging.hold(self.hold_name) is None:
            self._staging.take_hold(self.hold_name)
        newest = self.newest()
        return None if newest is None else newest.batch

    def commit(self, batch: Batch, rules: BatchRules) -> Commit:
        """Every row of it is in the log once when this returns. Raises a SinkRefused, ProducerFenced if
        another driver has connected since, or errors of the groups: then it may be called again."""
        with self._staging.session(self.producer) as session:
            newest = self.newest()
            verdict = judge(newest.batch if newest else None, batch, rules, self.producer)
            if newest is not None:
                self._finish(newest)
                if verdict is Verdict.COMMITTED:
                    return Commit(newest.index, was_new=False)
            return self._commit(session, newest, batch)

    def _commit(self, session: LogSession, newest: NewestManifest | None, batch: Batch) -> Commit:
        self._check_held(batch)
        manifest = Manifest(batch, self._first_sequence(newest))
        body = EntryBatch.from_bodies([encode_manifest(manifest)])
        index = session.append(session.last_sequence + 1, [body])
        self._finish(NewestManifest(index, manifest))
        return Commit(index, was_new=True)

    def resume(self) -> Resumed | None:
        """Finish the work left by a crash, without fencing a driver. None: no batch was ever
        committed."""
        newest = self.newest()
        if newest is None:
            return None
        was_finished = self._is_finished(newest)
        self._finish(newest)
        return Resumed(newest, was_finished)

    def forget(self) -> None:
        """This name will not be used again: the groups may forget it."""
        self._staging.end_hold(self.hold_name)
        self._staging.forget(self.producer)
        self._log.forget(self.rows_producer)

    def abandon(self) -> None:
        """This name will not be used, and if nothing was written under it, no hold is needed."""
        if self.newest() is None:
            self._staging.end_hold(self.hold_name)

    # ---------------------------------------------------------------- the newest manifest

    def newest(self) -> NewestManifest | None:
        """Raises ManifestUnknown, RowsGone."""
        last_index, gone = -1, None
        while True:
            known = self._staging.producer(self.producer)
            if known is None or known.last_sequence < 0:
                return None
            if gone is not None and known.last_index == last_index:
                raise RowsGone(
                    f"the newest manifest of producer {self.producer!r} (index {last_index} of the"
                    f" staging group) is gone, though reader {self.hold_name} should hold it: {gone}"
                )
            last_index = known.last_index
            if last_index < 0:
                raise ManifestUnknown(f"the staging group forgot where {self.producer!r} wrote last")
            try:
                return NewestManifest(last_index, decode_manifest(self._staging.body_at(last_index)))
            except IndexOutOfRange as error:
                gone = error  # it may have got a successor since

    def _first_sequence(self, newest: NewestManifest | None) -> int:
        if newest is not None:
            return newest.manifest.stop_sequence
        known = self._log.producer(self.rows_producer)
        if known is not None and known.last_sequence >= 0:
            if self.newest() is not None:
                raise ProducerFenced(f"another driver has connected as {self.producer!r} since")
            raise RowsGone(
                f"the log has {known.last_sequence + 1} rows of producer {self.producer!r}, and the"
                " staging group knows of none: it was formed anew, or the producer was forgotten there."
                f" Nothing was appended. To begin anew: quorumlog producers forget {self.rows_producer}"
                " --group GROUP, the log's own"
            )
        return 0

    def _check_held(self, batch: Batch) -> None:
        first_index = batch.first_index
        if first_index is None:
            return
        held_from = self._staging.hold(self.hold_name)
        if held_from is None or held_from > first_index:
            what = "ended" if held_from is None else f"moved on to {held_from}"
            raise RowsNotHeld(
                f"the rows of {batch.described}, from index {first_index} of the staging group on, are"
                f" not held any more: another driver, or an operator, has {what} reader {self.hold_name}"
                " meanwhile. Nothing was appended; run the batch again"
            )

    # ---------------------------------------------------------------- replay

    def _finish(self, newest_manifest: NewestManifest) -> None:
        """Its rows are in the log when this returns, and those before it may go."""
        if self._is_finished(newest_manifest):
            return
        if newest_manifest.batch.entries:
            self._replay(newest_manifest)
        self._staging.move_hold(self.hold_name, newest_manifest.index)

    def _is_finished(self, newest_manifest: NewestManifest) -> bool:
        """The hold moves there only once it is."""
        held_from = self._staging.hold(self.hold_name)
        return held_from is not None and held_from >= newest_manifest.index

    def _replay(self, newest_manifest: NewestManifest) -> None:
        for _ in range(MOST_REPLAYS):
            try:
                self._replay_once(newest_manifest.manifest)
                return
            except ProducerFenced as error:
                fenced = error  # somebody replays the same; both may, and one comes to the end
                self._pause(random.uniform(0.05, 0.5))
            except IndexOutOfRange as error:
                if self._is_finished(newest_manifest):
                    return  # somebody has, and let go of the rows
                raise RowsGone(
                    f"staged rows of {newest_manifest.batch.described} are gone, though reader"
                    f" {self.hold_name} should hold them: {error}"
                ) from None
        raise fenced

    def _replay_once(self, manifest: Manifest) -> None:
        with self._log.session(self.rows_producer) as session:
            next_sequence = session.last_sequence + 1
            if next_sequence < manifest.first_sequence:
                raise RowsGone(
                    f"the log has {next_sequence} rows of producer {self.producer!r}, and"
                    f" {manifest.batch.described} begins with row {manifest.first_sequence}: the log is"
                    " an older copy, or was formed anew, beside a staging group that was not"
                )
            if next_sequence >= manifest.stop_sequence:
                return
            ranges = behind(manifest.batch.ranges, next_sequence - manifest.first_sequence)
            batches = self._staging.batches(ranges)
            session.append(next_sequence, batches, manifest.batch.machine)


def behind(ranges: tuple[RowRange, ...], skipped: int) -> tuple[RowRange, ...]:
    """Without the first `skipped` entries."""
    stops = accumulate(each.count for each in ranges)
    left = list(dropwhile(lambda pair: pair[1] <= skipped, zip(ranges, stops, strict=True)))
    if not left:
        return ()
    (first, stop), *others = left
    kept = stop - skipped
    begun = RowRange(first.stop_index - min(kept, first.count), min(kept, first.count))
    return (begun, *(each for each, _ in others))
