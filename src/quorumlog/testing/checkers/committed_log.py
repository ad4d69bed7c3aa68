"""CommittedLog: what the cluster as a whole has committed, as the checkers came to know it.

`chain_crc` runs over the whole log, so two logs that agree on it at one index agree on every entry up
to there: one comparison of numbers stands for all of them.
"""

from __future__ import annotations

from typing import NamedTuple

from quorumlog.entry import Replica
from quorumlog.errors import DirectoryDamaged, IndexOutOfRange, RangeDamaged
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.testing.checkers.checker import Violation
from quorumlog.testing.checkers.view import CheckedCluster


class EntryMark(NamedTuple):
    """An entry, and by its chain all entries before it."""

    term: int
    chain: int


def mark_at(store: LedgerStore, index: int) -> EntryMark | None:
    """What a log holds at `index`; None if it is not held, or if the disk no longer reads it."""
    try:
        return EntryMark(store.id_at(index).term, store.chain_at(index))
    except (IndexOutOfRange, RangeDamaged, DirectoryDamaged):
        return None


def mark_on(cluster: CheckedCluster, replica: Replica, index: int) -> EntryMark | None:
    """The same of a directory; None also while its member is down and cannot be looked at."""
    for member in cluster.members:
        if member.is_up and member.replica == replica:
            return mark_at(member.node.store, index)
    return None


class CommittedLog:
    """Grows as members say what is committed. Filled by `CommittedEntries`."""

    def __init__(self, cluster: CheckedCluster) -> None:
        self._cluster = cluster
        self._marks: list[EntryMark] = []
        self._committed_in: list[int] = []
        """Term of the member that was the first to say so."""
        self._claims: dict[int, EntryMark] = {}
        """By index, above `end_index`."""
        self.told_index = -1
        """The highest index that a member has called committed. Its entry may be missing here, while
        only a member knows of it that cannot read what lies before."""
        self.forgotten_from: int | None = None
        """Async mode: the lowest index that a power loss has taken from any directory. From there on,
        and nowhere below, what was acknowledged may go and what was committed may be replaced."""

    @property
    def end_index(self) -> int:
        return len(self._marks) - 1

    @property
    def safe_stop_index(self) -> int:
        """Below it nothing may change."""
        stop = len(self._marks)
        return stop if self.forgotten_from is None else min(stop, self.forgotten_from)

    def at(self, index: int) -> EntryMark:
        return self._marks[index]

    def marks(self, first_index: int, stop_index: int) -> list[EntryMark]:
        return self._marks[first_index:stop_index]

    def committed_in(self, index: int) -> int:
        return self._committed_in[index]

    def last_committed_before(self, term: int) -> int:
        """The last index that was committed in an earlier term; -1: none."""
        for index in range(self.end_index, -1, -1):
            if self._committed_in[index] < term:
                return index
        return -1

    def claim(self, index: int, mark: EntryMark) -> None:
        """Somebody has shown this as committed, above what could be read so far."""
        known = self._claims.setdefault(index, mark)
        if known != mark and self.forgotten_from is None:
            raise Violation(f"entry {index} was shown as {known} and as {mark}, both as committed")

    def append(self, mark: EntryMark, committed_in: int) -> None:
        self.claim(len(self._marks), mark)
        del self._claims[len(self._marks)]
        self._marks.append(mark)
        self._committed_in.append(committed_in)

    def forget_from(self, index: int) -> None:
        """A directory has lost what lay from `index` on in a power loss."""
        assert self._cluster.profile.is_async, index
        self.forgotten_from = index if self.forgotten_from is None else min(self.forgotten_from, index)

    def replace_from(self, index: int) -> None:
        """A later leader has committed something else from `index` on."""
        assert index >= self.safe_stop_index, (index, self.forgotten_from)
        del self._marks[index:]
        del self._committed_in[index:]
