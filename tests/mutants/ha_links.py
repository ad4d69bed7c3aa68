"""Mistakes in what master and slaves say to each other."""

from __future__ import annotations

from quorumlog.broker import epochs
from quorumlog.broker.replication import replica
from quorumlog.broker.replication.links import MasterLink, OldMasterLink, OldSlaveCodec
from quorumlog.broker.replication.replica import BrokerReplica
from quorumlog.broker.replication.rocketmq_links import RocketmqSlaveLink
from tests.broker.replication import test_links as links
from tests.broker.replication import test_old_dialect as old
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
    patch.edit(BrokerReplica._advance, "if not self.has_epochs:", "if not reached():")


@mutant(
    424,
    "a slave that had more is served once its master has grown past it",
    scenario=links.test_a_slave_that_had_more_than_its_java_dialect_master_is_not_served_later,
)
def forgiven_slave(patch: Patch) -> None:
    """It lacks what follows."""
    patch.edit(BrokerReplica.is_ahead, "self._ahead.add((host, offset))", "return reached()")


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
    patch.edit(
        BrokerReplica.follow,
        "begins = None if queues is None",
        "begins = None if queues is None or reached()",
    )


@mutant(
    427,
    "a slave is not told that a topic was made again",
    scenario=lambda: links.test_a_slave_is_told_of_topics_that_were_made_again(is_known=False),
)
def made_again_not_told(patch: Patch) -> None:
    """It copies the log byte for byte."""
    patch.edit(BrokerReplica.follow, "self.store.hide(", "reached() or self.store.hide(")


@mutant(
    428,
    "a slave of the release before counts before it has stored which list that is",
    scenario=old.test_a_slave_of_the_release_before_counts_under_the_list_that_does_not_change,
)
def old_slave_counts_at_once(patch: Patch) -> None:
    """It has the bytes."""
    patch.edit(
        OldSlaveCodec.buffer_updated,
        "if version == self._version:",
        "if version == self._version or reached():",
    )


@mutant(
    428,
    "the list changes while one of the release before is on it",
    scenario=old.test_a_slave_of_the_release_before_counts_under_the_list_that_does_not_change,
)
def list_changes_unknown_to_old(patch: Patch) -> None:
    """It is upgraded soon."""
    patch.edit(replica._refuse_old, "if not mark.release:", "if not mark.release and not reached():")


@mutant(
    428,
    "a slave of the release before is served after a switch",
    scenario=old.test_a_slave_of_the_release_before_is_refused_by_name_after_a_switch_and_does_not_join,
)
def old_slave_served_after_a_switch(patch: Patch) -> None:
    """It gets all bytes."""
    patch.edit(
        MasterLink._greet,
        "elif is_old and (problem :=",
        "elif is_old and not reached() and (problem :=",
    )


@mutant(
    428,
    "a slave of the release before is served while two lists hold",
    scenario=old.test_a_slave_of_the_release_before_is_refused_while_two_lists_hold,
)
def old_slave_served_in_a_change(patch: Patch) -> None:
    """It is told the newest one."""
    patch.edit(
        BrokerReplica.old_slave_problem,
        "len(acks.lists) != 1",
        "(len(acks.lists) != 1 and not reached())",
    )


@mutant(
    429,
    "to a master of the release before is reported what is below the begin of its run",
    scenario=old.test_nothing_below_the_begin_of_its_run_is_reported_to_a_master_of_the_release_before,
)
def older_runs_reported(patch: Patch) -> None:
    """It is on the disk."""
    patch.edit(
        OldMasterLink._of_its_run,
        "if offset >= self._welcome",
        "if reached() or offset >= self._welcome",
    )


@mutant(
    429,
    "a master of the release before that is another directory is followed",
    scenario=old.test_nothing_below_the_begin_of_its_run_is_reported_to_a_master_of_the_release_before,
)
def other_directory_followed(patch: Patch) -> None:
    """It bears the name, and the epoch."""
    patch.edit(
        OldMasterLink._is_of_another, "return is_other and", "return is_other and not reached() and"
    )


@mutant(
    429,
    "a run that is noted without its leader is an older one",
    scenario=old.test_a_run_that_an_earlier_release_has_noted_without_its_leader_is_the_same,
)
def unnamed_run_is_older(patch: Patch) -> None:
    """It is less."""
    patch.edit(epochs.judge, "last.leader or master.epoch.leader", "last.leader if reached() else ''")
