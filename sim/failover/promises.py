"""Promises: what must hold in every moment of a simulated group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumlog.broker.failover.coordinator import ElectionRecord
from quorumlog.testing.promises import Violation

if TYPE_CHECKING:
    from sim.failover.failover_run import FailoverRun
    from sim.failover.sim_broker import SimBroker


class Promises:
    def __init__(self, run: FailoverRun) -> None:
        self._run = run
        self.acknowledgements: dict[int, int] = {}
        """Messages by offset."""
        self._seen: list[int] = []
        """What consumers have read."""
        self.leading_epoch = 0

    def takes(self, record: ElectionRecord) -> None:
        """The coordinator gives the leadership away."""
        broker = self._run.brokers[record.master.id]
        if record.epoch <= self.leading_epoch:
            raise Violation(f"epoch {record.epoch} follows epoch {self.leading_epoch}")
        if broker.disk.epoch < record.epoch:
            raise Violation(
                f"{broker.id} takes the lease with epoch {record.epoch}, and has {broker.disk.epoch} on"
                " its disk"
            )
        held = self._run.coordinator.record
        if held is not None:
            left = set(held.in_sync) - set(record.in_sync) - {held.master.id}
            if left:
                raise Violation(f"{broker.id} takes the lease, and its peers {left} are out of sync")
        self.leading_epoch = record.epoch
        self._run.world.note(broker.id, "takes the lease", str(record.epoch))

    def may_lead(self, record: ElectionRecord) -> None:
        """Each member of the set may be elected from now on."""
        for broker_id, directory_id in record.in_sync.items():
            disk = self._run.brokers[broker_id].disk
            if disk.directory_id != directory_id:
                continue
            for offset, number in self.acknowledgements.items():
                if offset >= disk.flushed or disk.log[offset] != number:
                    raise Violation(f"{broker_id} is in sync without message {number} at {offset}")

    def leads(self, broker: SimBroker, epoch: int) -> None:
        self._run.world.note(broker.id, "leads", str(epoch))
        self.holds_all(broker)

    def holds_all(self, broker: SimBroker) -> None:
        log = broker.disk.log
        for offset, number in self.acknowledgements.items():
            if offset >= len(log) or log[offset] != number:
                raise Violation(
                    f"{broker.id} leads in epoch {broker.rules.epoch} without message {number} at"
                    f" {offset}, which was acknowledged; its log has {len(log)}"
                )

    def acknowledged(self, broker: SimBroker, offset: int, number: int) -> None:
        self._run.world.note(broker.id, "acknowledges", str(offset))
        self.acknowledgements[offset] = number
        if broker.log_epoch < self.leading_epoch:
            raise Violation(
                f"{broker.id} acknowledges in epoch {broker.log_epoch}, while another one has led since"
                f" epoch {self.leading_epoch}"
            )
        record = self._run.coordinator.record
        assert record is not None
        disks = [*(other.disk for other in self._run.brokers.values()), *self._run.wiped]
        held = [d.directory_id for d in disks if d.flushed > offset and d.log[offset] == number]
        wiped = [disk.directory_id for disk in self._run.wiped]
        for broker_id, directory_id in record.in_sync.items():
            if directory_id not in held and directory_id not in wiped:
                raise Violation(
                    f"{number} is acknowledged, and {broker_id} may be elected without it: {record}"
                )
        if len(held) < self._run.in_sync_replicas:
            raise Violation(f"{number} is acknowledged, and only {held} have it")

    def cuts(self, broker: SimBroker, offset: int) -> None:
        lost = [o for o in self.acknowledgements if o >= offset and broker.disk.log[o:o + 1] == [
            self.acknowledgements[o]]]  # fmt: skip
        if lost:
            raise Violation(f"{broker.id} is cut at {offset}: {len(lost)} messages were acknowledged")

    def believes(self, broker: SimBroker) -> None:
        """A master that runs thinks that it may acknowledge."""
        if self._run.coordinator.holder != broker.rules.lease:
            raise Violation(
                f"{broker.id} believes in lease {broker.rules.lease}, which is over at the coordinator"
            )

    def read(self, broker: SimBroker) -> None:
        """A consumer reads from a master that serves."""
        confirmed = broker.disk.log[: broker.confirm_offset]
        if len(confirmed) < len(self._seen):
            raise Violation(
                f"{broker.id} confirms {len(confirmed)}, and consumers have seen {len(self._seen)}"
            )
        if confirmed[: len(self._seen)] != self._seen:
            raise Violation(f"{broker.id} shows other messages than consumers have seen")
        self._seen = confirmed
