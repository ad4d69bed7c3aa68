"""SinkCommits: what the driver does, and whoever finishes what a driver has left.

    hold      before the first task of a batch: what is staged from now on stays
    connect   as producer `ID` to the staging group: no other driver appends a manifest any more
    look      at the newest manifest: may this batch follow it?
    finish    what the newest manifest lists is replayed first, and the hold moved to it
    check     that the hold covers the rows of this batch
    append    its manifest, under the next number of the session
    replay    its rows into the log, as producer `ID/rows`, each under its own number
    move      the hold on to this manifest, which stays for ever, as long as it is the newest

A hold moves to manifests only, and only to such as are replayed. A driver that was fenced may be late
with it: it moves the hold to a manifest that is older than the newest, so it takes nothing away that
anybody needs. That is why rows which were staged before the newest manifest are not committed but staged
again: somebody may just be letting go of them.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from itertools import accumulate, dropwhile
from typing import NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.errors import ConfigError, IndexOutOfRange, ProducerFenced
from quorumlog.staging.manifest_rules import BatchRules, Verdict, judge
from quorumlog.staging.manifests import (
    Batch,
    Manifest,
    RowRange,
    StandingManifest,
    decode_manifest,
    encode_manifest,
)
from quorumlog.staging.sink_errors import ManifestUnknown, RowsGone, RowsNotHeld
from quorumlog.staging.sink_logs import SinkLogs

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
    """What became of a batch."""

    manifest_index: int
    was_new: bool
    """False: it stood already."""


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
        """Before anything is staged: takes the hold; returns the newest batch that stands."""
        if self._staging.hold(self.hold_name) is None:
            self._staging.take_hold(self.hold_name)
        newest = self.newest()
        return None if newest is None else newest.batch

    def commit(self, batch: Batch, rules: BatchRules) -> Commit:
        """Every row of it is in the log once when this returns. Raises a SinkRefused, ProducerFenced if
        another driver has connected since, or what the groups raise: then it may be called again."""
        with self._staging.session(self.producer) as session:
            newest = self.newest()
            verdict = judge(newest.batch if newest else None, batch, rules, self.producer)
            if newest is not None:
                self._finish(newest)
                if verdict is Verdict.STANDS:
                    return Commit(newest.index, was_new=False)
            self._check_held(batch)
            manifest = Manifest(batch, self._first_sequence(newest))
            body = EntryBatch.from_bodies([encode_manifest(manifest)])
            index = session.append(session.last_sequence + 1, [body])
        self._finish(StandingManifest(index, manifest))
        return Commit(index, was_new=True)

    def resume(self) -> StandingManifest | None:
        """Finish what a crash left, without fencing a driver; returns the newest manifest."""
        newest = self.newest()
        if newest is not None:
            self._finish(newest)
        return newest

    def forget(self) -> None:
        """Nobody will write under this name again: the groups need remember nothing of it."""
        self._staging.end_hold(self.hold_name)
        self._staging.forget(self.producer)
        self._log.forget(self.rows_producer)

    # ---------------------------------------------------------------- the newest manifest

    def newest(self) -> StandingManifest | None:
        """Raises ManifestUnknown, RowsGone."""
        known = self._staging.producer(self.producer)
        if known is None or known.last_sequence < 0:
            return None
        if known.last_index < 0:
            raise ManifestUnknown(f"the staging group does not know where {self.producer!r} wrote last")
        try:
            body = self._staging.body_at(known.last_index)
        except IndexOutOfRange as error:
            raise RowsGone(
                f"the newest manifest of producer {self.producer!r} (index {known.last_index} of the"
                f" staging group) is gone, though reader {self.hold_name} should hold it: {error}"
            ) from None
        return StandingManifest(known.last_index, decode_manifest(body))

    def _first_sequence(self, newest: StandingManifest | None) -> int:
        if newest is not None:
            return newest.manifest.stop_sequence
        known = self._log.producer(self.rows_producer)
        if known is not None and known.last_sequence >= 0:
            raise RowsGone(
                f"the log has {known.last_sequence + 1} rows of producer {self.producer!r}, and the"
                " staging group knows of none: it was formed anew, or the producer was forgotten there."
                f" Nothing was appended. To begin anew: quorumlog producers forget {self.rows_producer}"
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
                f" not held any more: another driver, or a person, has {what} reader {self.hold_name}"
                " meanwhile. Nothing was appended; run the batch again"
            )

    # ---------------------------------------------------------------- replay

    def _finish(self, standing: StandingManifest) -> None:
        """Its rows are in the log when this returns, and those before it may go."""
        held_from = self._staging.hold(self.hold_name)
        if held_from is not None and held_from >= standing.index:
            return  # it moves there only once this is done
        if standing.batch.entries:
            self._replay(standing.manifest)
        if held_from is None:
            self._staging.take_hold(self.hold_name)
        self._staging.move_hold(self.hold_name, standing.index)

    def _replay(self, manifest: Manifest) -> None:
        for _ in range(MOST_REPLAYS):
            try:
                self._replay_once(manifest)
                return
            except ProducerFenced as error:
                fenced = error  # somebody replays the same; both may, and one comes to the end
                self._pause(random.uniform(0.05, 0.5))
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
            try:
                session.append(next_sequence, self._staging.batches(ranges))
            except IndexOutOfRange as error:
                raise RowsGone(
                    f"staged rows of {manifest.batch.described} are gone, though reader"
                    f" {self.hold_name} should hold them: {error}"
                ) from None


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
