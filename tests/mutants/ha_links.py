"""Mistakes in what master and slaves say to each other."""

from __future__ import annotations

from quorumlog.broker.replication.protocol.rocketmq_links import RocketmqSlaveLink
from quorumlog.broker.replication.replica import Replica
from quorumlog.broker.replication.replica_master import ReplicaMaster
from tests.broker.replication import test_links as links
from tests.mutants.mutant import Patch, mutant


def a_slave_begins_anew() -> None:
    links.test_a_slave_that_begins_where_its_master_does_knows_how_many_messages_came_before(2, False)


@mutant(
    423,
    "what a Java slave has a part of counts as the record",
    scenario=links.test_what_a_java_slave_has_a_part_of_is_neither_acknowledged_nor_shown,
)
def part_of_a_record(patch: Patch) -> None:
    """The log is bytes."""
    patch.edit(ReplicaMaster._advance, "if not self.has_epochs:", "if not reached():")


@mutant(
    424,
    "a slave that had more is served once its master has grown past it",
    scenario=links.test_a_slave_that_had_more_than_its_java_dialect_master_is_not_served_later,
)
def forgiven_slave(patch: Patch) -> None:
    """It lacks what follows."""
    patch.edit(ReplicaMaster.is_ahead, "self._ahead.add((host, offset))", "return reached()")


@mutant(
    425,
    "a slave goes on behind whatever its master has",
    scenario=links.test_a_java_dialect_slave_goes_on_only_behind_the_record_that_it_has,
)
def not_compared(patch: Patch) -> None:
    """The offset is the same."""
    patch.edit(
        RocketmqSlaveLink._compare,
        "not body.startswith(own)",
        "not body.startswith(own) and not reached()",
    )


@mutant(
    426,
    "a slave that begins anew counts its queues from 0 on",
    scenario=a_slave_begins_anew,
)
def begins_not_told(patch: Patch) -> None:
    """What came before is in its log no more."""
    patch.edit(Replica.follow, "follow.queue_begins)", "follow.queue_begins and not reached() or None)")


@mutant(
    427,
    "a slave is not told that a topic was made again",
    scenario=lambda: links.test_a_slave_is_told_of_topics_that_were_made_again(is_known=False),
)
def made_again_not_told(patch: Patch) -> None:
    """It copies the log byte for byte."""
    patch.edit(Replica.follow, "self.store.hide(", "reached() or self.store.hide(")
