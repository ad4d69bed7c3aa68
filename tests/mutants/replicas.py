"""Mistakes in master/slave replication of the message store."""

from __future__ import annotations

from quorumlog.broker.replication.protocol import epoch_history
from quorumlog.broker.replication.replica import Replica
from tests.broker.replication import test_epoch_history as histories
from tests.broker.replication import test_replicas_simulated as replicas
from tests.mutants.mutant import Patch, mutant

SEEDS = 40


def replicas_keep_their_promises() -> None:
    for seed in range(SEEDS):
        replicas.run(seed)


@mutant(300, "a slave forgets who counted with the old master", scenario=replicas_keep_their_promises)
def old_master_not_asked(patch: Patch) -> None:
    """The new master will say who counts."""
    patch.edit(Replica._led_by, "counted.setdefault(old.id, old)", "reached()")


@mutant(304, "a slave is cut without a newer epoch", scenario=histories.test_what_a_slave_is_told)
def cut_by_a_restart(patch: Patch) -> None:
    """The master is the master."""
    patch.edit(
        epoch_history.judge,
        "if master.last.epoch <= own.log_epoch:",
        "if master.last.epoch <= own.log_epoch and not reached():",
    )
