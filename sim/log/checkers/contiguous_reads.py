"""A read gives a contiguous slice of what is committed, nothing of it ever changes, and one to the end
misses nothing that was acknowledged before.

That it does not change later follows: the slice is compared with what is committed, and
`CommittedEntries` holds that to be the same for ever.
"""

from __future__ import annotations

from quorumlog.errors import ProtocolViolation
from quorumlog.testing.promises import (
    CheckedCluster,
    CommittedEntries,
    CommittedLog,
    EntryMark,
    Violation,
)
from sim.log.checkers.log_checker import LogChecker
from sim.log.operations import ClientEnd, ClientRead


class ContiguousReads(LogChecker):
    def __init__(self, cluster: CheckedCluster, log: CommittedLog, committed: CommittedEntries) -> None:
        super().__init__(cluster)
        self._log = log
        self._committed = committed

    def read(self, read: ClientRead) -> None:
        # The answer may be of the turn that is under way: hear first what its member calls committed.
        for member in self.cluster.members:
            if member.member_id == read.member_id and member.is_up:
                self._committed.look_at(member)
        headers = read.batch.headers()
        last_index, what = read.last_index, str(read)
        indices = headers["index"].tolist()
        if indices != list(range(read.first_index, last_index + 1)):
            raise Violation(f"{what} has the indices {indices}")
        try:
            read.batch.check_bodies()
        except ProtocolViolation as wrong:
            raise Violation(f"{what}: {wrong}") from wrong
        if last_index > read.committed_index:
            raise Violation(f"{what} goes above its committed index {read.committed_index}")
        log = self._log
        if last_index > log.reported_index and log.forgotten_from is None:
            raise Violation(f"{what} goes above {log.reported_index}, up to where anything is committed")
        terms, chains = headers["term"].tolist(), headers["chain_crc"].tolist()
        if log.end_index < last_index:
            log.claim(last_index, EntryMark(terms[-1], chains[-1]))
        known = log.marks(read.first_index, min(last_index + 1, log.safe_stop_index))
        for at, mark in enumerate(known):
            seen = EntryMark(terms[at], chains[at])
            if seen != mark:
                index = read.first_index + at
                raise Violation(f"{what} shows {seen} at {index}, where {mark} is committed")

    def end_told(self, end: ClientEnd) -> None:
        forgotten_from = self._log.forgotten_from
        if forgotten_from is not None and end.acknowledged_index >= forgotten_from:
            return  # async mode: it may be gone
        if end.committed_index < end.acknowledged_index:
            raise Violation(
                f"{end.member_id}, asked at {end.called_ms} ms, says that the log ends at"
                f" {end.committed_index}, but {end.acknowledged_index} had been acknowledged by then"
            )
