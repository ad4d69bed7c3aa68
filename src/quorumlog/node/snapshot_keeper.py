"""SnapshotKeeper: when a machine is saved, and which of its snapshots are verified or deleted.

A snapshot is verified once it was read again from the disk, whole, outside the loop and in pieces. The
log may begin after the second newest verified one: a flipped bit in the newest loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from quorumlog.config import StoreConfig
from quorumlog.entry import SnapshotId
from quorumlog.figures import now
from quorumlog.node.machine_runner import Opened
from quorumlog.node.ports import Host, raise_failure
from quorumlog.store.disk import disk_work
from quorumlog.store.snapshots import (
    SnapshotDamaged,
    SnapshotFileReader,
    SnapshotFiles,
    SnapshotsUnavailable,
)

PIECE_BYTES = 4 << 20
"""Read so much at once: other reads wait for it."""
RETRY_MS = 10_000
"""After a save that failed, most likely for lack of space; then twice as long, and so on."""
MOST_RETRY_MS = 320_000
"""Each try takes the space that appends would need, for as long as it lasts."""


class SnapshotKeeper:
    def __init__(
        self,
        name: str,
        files: SnapshotFiles,
        host: Host,
        config: StoreConfig,
        may_delete: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_delete`: False while the machine is to be made anew from an older one."""
        self._may_delete = may_delete
        self._name = name
        self._files = files
        self._host = host
        self._config = config
        self._saves = False
        self.indices: list[int] = []
        """Ascending; what lies on the disk and may be good."""
        self._verified: dict[int, SnapshotId] = {}
        self._pinned: dict[int, float] = {}
        """Until when those stay that other members are getting."""
        self._useless: list[int] = []
        self._entries = 0
        self._bytes = 0
        """Applied since the newest."""
        self._log_bytes = 0
        """Of the log after it."""
        self._saving_index = -1
        """Of the one that is on its way; -1: none is."""
        self._is_looking = False
        self.going: list[int] = []
        """On their way out: they may still lie there, also once it was forgotten what does."""
        self._life = 0
        """Counts how often it was forgotten what lies there."""
        self._retry_ms = -math.inf
        self._wait_ms = RETRY_MS
        self.problem = ""

    def opened(self, opened: Opened) -> None:
        self._saves = opened.runner.saves
        self.indices, self._useless = list(opened.snapshots), list(opened.useless)
        self._verified = {} if opened.loaded is None else {opened.loaded.index: opened.loaded}
        self._entries = self._bytes = 0
        self._log_bytes = opened.log_bytes
        self._saving_index = -1
        self.problem = "; ".join(f"a snapshot is passed over: {each}" for each in opened.damaged)
        self._verify()

    def forget(self) -> None:
        """Snapshots on disk may be of another log: they count once the machine is open again."""
        self._life += 1
        self.indices, self._useless, self._verified, self._pinned = [], [], {}, {}
        self._entries = self._bytes = self._log_bytes = 0
        self._saving_index = -1

    def applied(self, entries: int, size_bytes: int, log_bytes: int) -> None:
        """`log_bytes`: of the range of the log that has these entries."""
        self._entries += entries
        self._bytes += size_bytes
        self._log_bytes += log_bytes

    def is_due(self, now_ms: float) -> bool:
        config = self._config
        return (
            self._saves
            and not self.going  # it might be of an entry whose useless one is still there
            and (
                self._entries >= config.snapshot_entries
                or self._bytes >= config.snapshot_bytes
                or self._log_bytes >= config.snapshot_log_bytes
            )
            and now_ms >= self._retry_ms
        )

    def begins(self, index: int) -> None:
        """A save has begun: entries applied from now on count towards the next."""
        self._entries = self._bytes = self._log_bytes = 0
        self._saving_index = index

    def saved(self, index: int, problem: str, now_ms: float) -> None:
        self._saving_index = -1
        if problem:
            self._retry_ms = now_ms + self._wait_ms
            self._wait_ms = min(2 * self._wait_ms, MOST_RETRY_MS)
            self._entries = self._config.snapshot_entries
            self.problem = (
                f"no snapshot of {self._name} could be saved{now(f'at entry {index}')}: {problem}"
            )
            return
        self.problem, self._wait_ms = "", RETRY_MS
        if index not in self.indices:
            self.indices = sorted({*self.indices, index})
        self._useless = [each for each in self._useless if each != index]
        self._verified.pop(index, None)
        self._verify()

    @property
    def newest_index(self) -> int:
        return self.indices[-1] if self.indices else -1

    @property
    def bound(self) -> int | None:
        """The log may begin right after this entry, and not further on; None: no two are verified."""
        verified = sorted(self._verified)
        return min([verified[-2], *self._pinned]) if len(verified) > 1 else None

    # ---------------------------------------------------------------- for other members

    @property
    def newest_good(self) -> SnapshotId | None:
        return self._verified[max(self._verified)] if self._verified else None

    def hasten(self, least_index: int) -> None:
        """A snapshot of this entry or a later one is needed, and none is verified. One being written or
        verified is waited for."""
        is_on_its_way = self._saving_index >= least_index
        if not is_on_its_way and (not self.indices or self.indices[-1] in self._verified):
            self._entries = self._config.snapshot_entries

    def holds(self, wanted: SnapshotId) -> bool:
        return self._verified.get(wanted.index) == wanted

    def pin(self, wanted: SnapshotId, until_ms: float) -> bool:
        """Keep this snapshot, and do not let the log proceed without it; False: it is not here."""
        if not self.holds(wanted):
            return False
        self._pinned[wanted.index] = until_ms
        return True

    def unpin(self, now_ms: float) -> None:
        if self._pinned:
            self._pinned = {index: until for index, until in self._pinned.items() if until > now_ms}

    # ---------------------------------------------------------------- verifying

    def _verify(self) -> None:
        """The two newest are looked at, one after the other."""
        unverified = [each for each in self.indices[-2:] if each not in self._verified]
        if self._is_looking or not unverified:
            return
        self._is_looking = True
        self._look(unverified[-1], None)

    def _look(self, index: int, reader: SnapshotFileReader | None) -> None:
        life = self._life

        def look() -> SnapshotFileReader | SnapshotId | SnapshotDamaged | SnapshotsUnavailable:
            opened = reader
            try:
                if opened is None:
                    opened = self._files.open(self._name, index)
                if opened.skip(PIECE_BYTES):
                    return opened
                opened.close()
                return opened.id
            except (SnapshotDamaged, SnapshotsUnavailable) as problem:
                if opened is not None:
                    opened.close()
                return problem

        def looked(result: object) -> None:
            raise_failure(result)
            if isinstance(result, SnapshotFileReader):
                self._look(index, result)
                return
            self._is_looking = False
            if life != self._life:
                self._verify()
                return
            if isinstance(result, SnapshotsUnavailable):
                self.problem = str(result)  # looked at once more with the next one that is saved
                return
            if index in self.indices and isinstance(result, SnapshotId):
                self._verified[index] = result
                self._delete_old()
            elif index in self.indices:
                self.problem = f"a snapshot is passed over: {result}"
                self.indices.remove(index)
                self._useless.append(index)
                self._entries = self._config.snapshot_entries  # another one takes its place
            self._verify()

        self._host.read_later(look, looked)

    def _delete_old(self) -> None:
        """Whatever is no longer needed once the newest is known to be good."""
        if self.indices[-1] not in self._verified or not self._may_delete():
            return
        kept = {*self.indices[-self._config.snapshots_kept :], *self._pinned}
        old = [index for index in self.indices if index not in kept]
        self.indices = [index for index in self.indices if index in kept]
        self._verified = {index: found for index, found in self._verified.items() if index in kept}
        gone = [index for index in (*old, *self._useless) if index != self._saving_index]
        self._useless = [index for index in self._useless if index == self._saving_index]
        if gone:
            self.going += gone
            self._host.read_later(partial(self._delete, gone), partial(self._deleted, gone))

    def _deleted(self, indices: list[int], result: object) -> None:
        for index in indices:
            self.going.remove(index)
        raise_failure(result)

    def _delete(self, indices: list[int]) -> None:
        """Outside the loop."""
        with disk_work(self._files.folder, "emptied"):
            self._files.delete(self._name, indices)
