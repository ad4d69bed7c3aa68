"""What producers append is in the log once, in the order of its numbers, without a gap.

It lies where its receipts say, however often they are asked for. Nothing of a process lies after what
the next one has appended.
"""

from __future__ import annotations

from quorumlog.testing.operations import PRODUCED, ProducedBatch
from quorumlog.testing.promises import CheckedCluster, Checker, CommittedLog, Violation
from sim.log.checkers.acknowledged_appends import Found, final_entries


class ExactlyOnce(Checker):
    def __init__(self, cluster: CheckedCluster, log: CommittedLog) -> None:
        super().__init__(cluster)
        self._log = log

    def made_whole(self) -> None:
        operations = self.cluster.operations
        if not operations.produced or self._log.forgotten_from is not None:
            return
        entries = {e.index: e for e in final_entries(self.cluster) if e.body.startswith(PRODUCED)}
        by_name: dict[str, list[tuple[int, int, Found]]] = {}
        for entry in entries.values():
            _, producer_name, life, number = entry.body.split(b":")
            by_name.setdefault(producer_name.decode(), []).append((int(life), int(number), entry))
        begin_index = max(m.node.store.begin.index for m in self.cluster.members if m.is_up)
        for name, found in by_name.items():
            first = 0 if begin_index < 0 else found[0][1]  # the first ones may have been dropped
            for expected, (_, sequence, entry) in enumerate(found, first):
                if sequence != expected:
                    raise Violation(
                        f"producer {name}: sequence {sequence} at {entry.index}, {expected} was to come"
                    )
            lives = [each for each, _, _ in found]
            if lives != sorted(lives):
                raise Violation(f"producer {name}: a process that was fenced has appended: {lives}")
        for batch in operations.produced:
            self._check(batch, entries, begin_index)
        for receipt in operations.reported_sequences:
            newest = by_name.get(receipt.producer)
            if newest is None and begin_index >= 0:
                continue
            if receipt.sequence >= 0 and (newest is None or receipt.sequence > newest[-1][1]):
                raise Violation(
                    f"producer {receipt.producer}: {receipt.sequence} was told to be in the log"
                )
        self.cluster.trace.count("exactly once: checked")

    def _check(self, batch: ProducedBatch, entries: dict[int, Found], begin_index: int) -> None:
        for receipt in batch.receipts:
            if receipt.first_index <= begin_index:
                continue
            if receipt.parts != batch.receipts[0].parts:
                raise Violation(f"{batch}: two receipts that differ")
            places = [(at, part.term) for part in receipt.parts for at in part.indices]
            at_places = [entries.get(at) for at, _ in places]
            bodies = [None if entry is None else entry.body for entry in at_places]
            if bodies != list(batch.bodies):
                raise Violation(f"{batch}: at the places of its receipt are {bodies}")
            terms = [None if entry is None else entry.term for entry in at_places]
            if terms != [term for _, term in places]:
                raise Violation(f"{batch}: the terms there are {terms}")
