"""The directory of a stopped member, read a piece ahead."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

from quorumlog.batch import EntryBatch
from quorumlog.config import DEFAULT_GROUP
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.log_state.log_state import Resets
from quorumlog.spark.options import LOCAL, LedgerOptions, LogBounds
from quorumlog.spark.partitions import EntryPoint, LedgerPartition, RangeCheck, Readers
from quorumlog.store.directory_reader import DirectoryReader, StoredMarks
from quorumlog.store.disk import OsDisk

T = TypeVar("T")


def prefetched(items: Generator[T], depth: int) -> Generator[T]:
    """The same items; up to `depth` wait behind the one that is being read. `depth` 0: no thread."""
    if depth == 0:
        yield from items
        return
    with closing(items), ThreadPoolExecutor(1, "quorumlog-prefetch") as thread:
        ahead = deque(thread.submit(next, items, None) for _ in range(depth + 1))
        try:
            while (item := ahead.popleft().result()) is not None:
                ahead.append(thread.submit(next, items, None))
                yield item
        finally:
            for future in ahead:
                future.cancel()


# ----------------------------------------------------------------
# Entries of a stopped member's data directory, ours or a Java DLedger member's.
#
# It is opened as at a start beside the driver, and again in each task, which need not look once more for
# damage after what was synced; nothing in it changes.


_logger = logging.getLogger(__name__)


class DirectorySource:
    """The first call raises ConfigError or StoreFailure if the directory cannot be used."""

    def __init__(self, options: LedgerOptions) -> None:
        self._options = options
        self._path = options.path
        self._scanned_index = -1
        self._opened: DirectoryReader | None = None

    @property
    def _reader(self) -> DirectoryReader:
        if self._opened is None:
            self._opened = DirectoryReader(OsDisk(), self._path, scanned_index=self._scanned_index)
        return self._opened

    def bounds(self, reached: int = 0) -> LogBounds:
        """Up to the committed index of the checkpoint, or to the end of the log for `local`.

        Raises DirectoryDamaged if a start would refuse the directory, ConfigError for another group.
        """
        reader = self._reader
        group = self._group()
        for damage in reader.damage:
            refusal = reader.refusal(damage)
            if damage is not reader.missing or self._options.fail_on_data_loss:
                hint = f"{refusal}; run: quorumlog verify {self._path}"
                raise DirectoryDamaged(
                    hint, path=refusal.path, position=refusal.position, index=refusal.index
                )
            _logger.warning("%s; failOnDataLoss=false, continuing without them", refusal)
        begin_index = max(reader.ledger_begin_index, 0)
        if self._options.read_consistency == LOCAL:
            if reader.in_use:
                raise ConfigError(
                    f"{self._path} is in use by a running member, which may still cut the end of its"
                    " log: stop it, read with option servers, or leave out readConsistency=local"
                )
            return LogBounds(group, begin_index, reader.ledger_end_index + 1)
        if reader.readable_index < reader.ledger_end_index:
            _logger.warning(
                "%s: reading up to the committed index %d of its checkpoint; the log ends at %d"
                " (readConsistency=local reads on to there)",
                self._path,
                reader.readable_index,
                reader.ledger_end_index,
            )
        return LogBounds(group, begin_index, max(reader.readable_index + 1, begin_index))

    def readers(self) -> Readers:
        return Readers(scanned_index=self._reader.ledger_end_index)

    def points_of(self, indices: Sequence[int]) -> list[EntryPoint]:
        headers = map(self._reader.header_at, indices)
        return [EntryPoint(header.pos, header.chain_crc) for header in headers]

    def time_ms_at(self, index: int) -> int:
        return StoredMarks(OsDisk(), self._reader).time_ms_at(index)

    def clock_resets(self) -> Resets:
        return StoredMarks(OsDisk(), self._reader).clock_resets

    def batches(self, check: RangeCheck, *, heads: bool = False) -> Generator[EntryBatch]:
        """Raises DirectoryDamaged at the first entry that is not as it was written; bodies are checked
        unless `verifyCrc` is off."""
        check.is_chained = self._reader.checked
        with closing(prefetched(self._read(check, heads), self._options.batches_ahead)) as batches:
            yield from batches

    def follow(self, partition: LedgerPartition) -> None:
        self._scanned_index = partition.scanned_index

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a directory is not read as a stream")

    chain_before = cluster_id = begin_reader = commit_reader = note_skipped = _refuse

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _read(self, check: RangeCheck, heads: bool) -> Generator[EntryBatch]:
        batches = self._reader.batches(
            check.next_index,
            check.partition.stop_index,
            batch_bytes=self._options.batch_bytes,
            check_bodies=self._options.verify_crc and not heads,
        )
        for batch in batches:
            check.accept(batch, self._path)
            yield batch

    def _group(self) -> str:
        configured, found = self._options.group, self._reader.group
        if configured and found and configured != found:
            raise ConfigError(f"option group is {configured!r}, but {self._path} is of group {found!r}")
        return found or configured or DEFAULT_GROUP
