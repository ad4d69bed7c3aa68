"""Whatever disks have forgotten, a read gives what clients have appended, and gives it as it was.

Which entries are committed may change where a majority has forgotten them. Even so a read is a
contiguous slice of some log: every body is one that a client sent and that was not refused, whole, and
always at the index and in the term that its leader gave it.
"""

from __future__ import annotations

from quorumlog.entry import EntryId, EntryKind
from quorumlog.errors import ProtocolViolation
from quorumlog.testing.operations import ClientAppend
from quorumlog.testing.promises import CheckedCluster, Violation
from sim.log.checkers.log_checker import LogChecker
from sim.log.operations import ClientRead


class ServedEntries(LogChecker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._owners: dict[bytes, ClientAppend] = {}
        self._appends_known = 0
        self._places: dict[bytes, EntryId] = {}
        """Of every body that was served."""

    def appended(self, append: ClientAppend) -> None:
        served = next((body for body in append.bodies if body in self._places), None)
        if append.is_refused and served is not None:
            raise Violation(
                f"append {append.number} was refused ({append.outcome!r}); served of it was"
                f" {self._places[served]}"
            )

    def read(self, read: ClientRead) -> None:
        batch = read.batch
        headers = batch.headers()
        what = str(read)
        if read.last_index > read.committed_index:
            raise Violation(f"{what} goes above its committed index {read.committed_index}")
        try:
            batch.check_bodies()
            if headers["index"][0] != read.first_index:
                raise ProtocolViolation(f"it begins with {headers['index'][0]}")
            if batch.count > 1:
                rest, chain = batch.slice(1, batch.count), int(headers["chain_crc"][0])
                rest.check_sequence(read.first_index + 1, chain)
        except ProtocolViolation as wrong:
            raise Violation(f"{what}: {wrong}") from wrong
        self._learn_appends()
        terms, kinds = headers["term"].tolist(), headers["magic"].tolist()
        for at, body in enumerate(batch.bodies()):
            if kinds[at] == EntryKind.NORMAL:
                self._check(bytes(body), EntryId(read.first_index + at, terms[at]), what)

    def _learn_appends(self) -> None:
        appends = self.cluster.operations.appends
        for append in appends[self._appends_known :]:
            self._owners.update(dict.fromkeys(append.bodies, append))
        self._appends_known = len(appends)

    def _check(self, body: bytes, place: EntryId, what: str) -> None:
        owner = self._owners.get(body)
        if owner is None:
            raise Violation(f"{what} shows at {place} what nobody has appended: {body[:40]!r}")
        if owner.is_refused:
            raise Violation(
                f"{what} shows at {place} an entry of append {owner.number}, which was refused:"
                f" {owner.outcome!r}"
            )
        known = self._places.setdefault(body, place)
        if known != place:
            raise Violation(
                f"{what} shows an entry of append {owner.number} at {place}; it was at {known} before"
            )
