"""Same machines: members whose state machines have applied up to the same entry, and left out the same
ones, save the same bytes; none has applied what is not on its own disk; a snapshot holds what they are
at its entry, whatever was applied while it was written; and a result is that of the command that asked
for it."""

from __future__ import annotations

from contextlib import closing

from quorumlog.entry import AppendReceipt, Durability, Replica
from quorumlog.store.files.snapshot_file import LeftOut
from quorumlog.testing.checkers.checker import Checker, Violation
from quorumlog.testing.checkers.view import CheckedCluster, CheckedMember
from quorumlog.testing.machines import DIGEST_NAME, DigestWriter, result_of
from quorumlog.testing.operations import ClientAnswer, ClientAppend

_Key = tuple[str, int, int, tuple[LeftOut, ...]]
"""(machine, index, term, what it leaves out up to there)."""


class SameMachines(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._seen: dict[tuple[Replica, str], int] = {}
        """Index at which it was looked at last."""
        self._digests: dict[_Key, tuple[str, Replica]] = {}
        """What it saves there, and whose was the first."""
        self._saved: dict[tuple[Replica, str], int] = {}
        """Entry of the snapshot that was looked at last."""

    def turned(self, member: CheckedMember) -> None:
        node = member.node
        saved = {status.name: status.snapshot_index for status in node.machines.status()}
        for name, applied, runner in node.machines.at_rest():
            if self._seen.get((member.replica, name)) == applied.index:
                continue
            self._seen[member.replica, name] = applied.index
            # A snapshot is of what was committed, and may outlive entries that its disk has lost.
            durable_index = max(node.store.durable.index, saved[name])
            if node.directory.durability is Durability.SYNC and applied.index > durable_index:
                raise Violation(
                    f"{name} of {member.replica} has applied entry {applied.index}, and its disk has"
                    f" entries up to {durable_index} only"
                )
            writer = DigestWriter()
            runner.write_to(writer)
            left_out = runner.left_out_up_to(applied.index)
            self._compare(member.replica, (name, applied.index, applied.term, left_out), writer.digest)
            self.cluster.trace.count("machines: compared")
        for status in node.machines.status():
            self._look_at_snapshot(member, status.name, status.snapshot_index)

    def _look_at_snapshot(self, member: CheckedMember, name: str, index: int) -> None:
        """At the newest; it may have come from another member."""
        if index < 0 or self._saved.get((member.replica, name)) == index:
            return
        self._saved[member.replica, name] = index
        with closing(member.node.directory.snapshots.open(name, index)) as snapshot:
            writer = DigestWriter()
            writer.write(snapshot.read())
            key = (name, index, snapshot.head.point[1], snapshot.head.left_out)
            self._compare(member.replica, key, writer.digest)
        self.cluster.trace.count("machines: a snapshot compared")

    def _compare(self, replica: Replica, key: _Key, digest: str) -> None:
        known, first = self._digests.setdefault(key, (digest, replica))
        if known != digest:
            name, index, term, _ = key
            raise Violation(
                f"{name} of {replica} is at entry {index} of term {term} what that of {first} is not"
            )

    def appended(self, append: ClientAppend) -> None:
        receipt = append.outcome
        if append.machine != DIGEST_NAME or not isinstance(receipt, AppendReceipt):
            return
        refused = dict(receipt.failures)
        for place, body in enumerate(append.bodies):
            index = receipt.first_index + place
            expected = result_of(index, body)
            if index in self.cluster.operations.stepped_over and place in refused:
                expected = None
            if receipt.results[place] != expected or (expected is None) != (place in refused):
                raise Violation(
                    f"append {append.number} at {receipt.first_index} has the results of others:"
                    f" {receipt}"
                )
        self.cluster.trace.count("machines: results")

    def machine_answered(self, answer: ClientAnswer) -> None:
        if self.cluster.profile.is_async:
            return  # what was acknowledged may be gone
        if answer.applied_index < answer.acknowledged_index:
            raise Violation(
                f"{answer.member_id} answered from what it had applied up to {answer.applied_index},"
                f" when {answer.acknowledged_index} had been acknowledged before the question"
            )
