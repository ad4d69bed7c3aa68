"""What clients were told about their appends is true of the final log.

An acknowledged append is there once, at the indices of its receipt; a refused one nowhere; of an
unknown one any prefix, once (architecture, section 4); of what lies below the begin of that log
nothing is asked, though an append may lie on both sides of it. What had returned before another append
was called lies below it. Async mode may lose what a power loss has taken, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt, EntryKind
from quorumlog.errors import LedgerError, ProtocolViolation, StoreFailure
from quorumlog.testing.operations import PRODUCED, READ_BYTES, ClientAppend
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker, CommittedLog, Violation


@dataclass(frozen=True, slots=True)
class Found:
    index: int
    term: int
    body: bytes


def final_entries(cluster: CheckedCluster, kind: EntryKind = EntryKind.NORMAL) -> Iterator[Found]:
    """The entries of this kind of the longest committed log."""
    member = _longest(cluster)
    index = member.node.store.begin.index + 1
    while index <= member.node.committed_index:
        batch = _read(member, index)
        headers = batch.headers()
        terms, kinds = headers["term"].tolist(), headers["magic"].tolist()
        for at, body in enumerate(batch.bodies()):
            if kinds[at] == kind:
                yield Found(index + at, terms[at], bytes(body))
        index += batch.count


def first_index_of_final(cluster: CheckedCluster) -> int:
    return _longest(cluster).node.store.begin.index + 1


def _longest(cluster: CheckedCluster) -> CheckedMember:
    """Of those that have committed farthest the one that has most of it left."""
    up = [member for member in cluster.members if member.is_up]
    if not up:
        raise Violation("no member is up after the faults have stopped")
    return max(up, key=lambda m: (m.node.committed_index, -m.node.store.begin.index))


def _read(member: CheckedMember, first_index: int) -> EntryBatch:
    store, stop_index = member.node.store, member.node.committed_index + 1
    try:
        batch = store.read(store.range_of(first_index, stop_index, READ_BYTES))
        batch.check_bodies()
    except (LedgerError, StoreFailure, ProtocolViolation) as error:
        raise Violation(
            f"{member.replica} cannot read its committed entries from {first_index} on: {error}"
        ) from error
    return batch


class AcknowledgedAppends(Checker):
    def __init__(self, cluster: CheckedCluster, log: CommittedLog) -> None:
        super().__init__(cluster)
        self._log = log
        self._begin_index = 0
        """Of the first entry that is left of the final log."""

    def appended(self, append: ClientAppend) -> None:
        receipt = append.outcome
        if not isinstance(receipt, AppendReceipt):
            return
        if receipt.count != len(append.bodies):
            raise Violation(f"{_named(append)}, but it has {len(append.bodies)} bodies")
        if receipt.last_index > self._log.reported_index and self._log.forgotten_from is None:
            raise Violation(
                f"{_named(append)}, but entries are committed up to {self._log.reported_index} only"
            )

    def made_whole(self) -> None:
        self._begin_index = first_index_of_final(self.cluster)
        owners = {body: append for append in self.cluster.operations.appends for body in append.bodies}
        found: dict[int, list[Found]] = {}
        for entry in final_entries(self.cluster):
            owner = owners.get(entry.body)
            if owner is None and entry.body.startswith(PRODUCED):
                continue
            if owner is None:
                raise Violation(
                    f"entry {entry.index} of term {entry.term} was appended by nobody: {entry}"
                )
            found.setdefault(owner.number, []).append(entry)
        for append in self.cluster.operations.appends:
            self._check_one(append, found.get(append.number, []))
        self._check_order(found)

    def _check_one(self, append: ClientAppend, found: list[Found]) -> None:
        bodies = tuple(entry.body for entry in found)
        indices = [entry.index for entry in found]
        where = f"the final log holds {len(found)} of its {len(append.bodies)} bodies, at {indices}"
        if append.is_refused and found:
            raise Violation(f"{_named(append)}, but {where}")
        skipped = 0
        if found and indices[0] == self._begin_index and bodies[0] in append.bodies:
            skipped = append.bodies.index(bodies[0])
        if bodies != append.bodies[skipped : skipped + len(bodies)]:
            raise Violation(f"{_named(append)}: {where}, which is no prefix of it")
        if found and indices != list(range(indices[0], indices[0] + len(indices))):
            raise Violation(f"{_named(append)}: {where}, which is not contiguous")
        terms = sorted({entry.term for entry in found})
        if len(terms) > 1:
            raise Violation(f"{_named(append)}: {where}, of terms {terms}")
        receipt = append.outcome
        if not isinstance(receipt, AppendReceipt):
            return
        if found and (indices[0] - skipped, terms[0]) != (receipt.first_index, receipt.term):
            raise Violation(f"{_named(append)}: {where}, of term {terms[0]}")
        missing_index = max(receipt.first_index, self._begin_index) + len(found)
        if missing_index > receipt.last_index:
            return
        self.cluster.trace.count("async: an acknowledged append is lost")
        forgotten_from = self._log.forgotten_from
        if forgotten_from is None or missing_index < forgotten_from:
            raise Violation(
                f"{_named(append)}, but {where}; entries from {missing_index} on are lost (a power loss"
                f" explains it from: {forgotten_from})"
            )

    def _check_order(self, found: dict[int, list[Found]]) -> None:
        """By the real time of calls and answers; only an acknowledgement says that it is over."""
        in_log = [append for append in self.cluster.operations.appends if found.get(append.number)]
        acknowledged = sorted(
            (append for append in in_log if append.is_committed), key=lambda append: append.returned_ms
        )
        at = 0
        highest: ClientAppend | None = None
        for later in sorted(in_log, key=lambda append: append.called_ms):
            while at < len(acknowledged) and acknowledged[at].returned_ms < later.called_ms:
                earlier = acknowledged[at]
                if highest is None or found[earlier.number][-1].index > found[highest.number][-1].index:
                    highest = earlier
                at += 1
            if highest is not None and found[highest.number][-1].index > found[later.number][0].index:
                raise Violation(
                    f"{_named(later)}, called at {later.called_ms} ms, lies at"
                    f" {found[later.number][0].index}, below {_named(highest)}, which had returned at"
                    f" {highest.returned_ms} ms and ends at {found[highest.number][-1].index}"
                )


def _named(append: ClientAppend) -> str:
    outcome = "no answer" if append.outcome is None else repr(append.outcome)
    return f"append {append.number} to {append.asked_member_id} ({outcome})"
