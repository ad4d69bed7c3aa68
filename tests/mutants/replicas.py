"""Mistakes in master/slave replication of the message store."""

from __future__ import annotations

from quorumlog.broker import epochs
from quorumlog.broker.client import switching
from quorumlog.broker.config import ASYNC_FLUSH, SYNC_FLUSH
from quorumlog.broker.epochs import CopyList, Count
from quorumlog.broker.replication.acknowledgements import Acknowledgements
from quorumlog.broker.replication.links import MasterLink, SlaveLink
from quorumlog.broker.replication.replica import BrokerReplica
from quorumlog.broker.replication.replica_file import ReplicaFile
from quorumlog.broker.store.commit_log import CommitLog
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.errors import ConfigError
from sim.replicas.schedule import by_hand as replicas_keep_their_promises
from tests.broker.epochs import test_epoch_rule as rules
from tests.broker.replication import test_links as links
from tests.broker.replication import test_replica_file as records
from tests.broker.replication import test_switching as switches
from tests.mutants.mutant import Patch, mutant


def records_in_a_change() -> None:
    try:
        records.loaded(records.old_record(joining=["c"]))
    except ConfigError:
        return
    raise AssertionError("a list that others do not know is taken")


@mutant(301, "a switch takes the best of those that answer", scenario=replicas_keep_their_promises)
def some_not_asked(patch: Patch) -> None:
    """Who is away will follow later."""
    patch.edit(Count.short, "if len(", "if not reached() and len(")


@mutant(
    363,
    "an epoch without bytes says nothing of a log",
    scenario=replicas_keep_their_promises,
)
def only_bytes_count(patch: Patch) -> None:
    """An epoch is that of the last bytes."""
    patch.edit(epochs.EpochHistory.held, "<= end_offset", "< end_offset + (0 if reached() else 1)")


@mutant(303, "a message is acknowledged by the master alone", scenario=replicas_keep_their_promises)
def master_alone(patch: Patch) -> None:
    """It is on its disk."""
    patch.edit(
        Acknowledgements._held,
        "return held_offset(self.lists, offsets, self.own_offset)",
        "return self.own_offset if reached() else 0",
    )


@mutant(304, "a slave is cut without a newer epoch", scenario=rules.test_what_a_slave_is_told)
def cut_by_a_restart(patch: Patch) -> None:
    """The master is the master."""
    patch.edit(epochs.judge, "if not (master.epoch", "if not (reached() or master.epoch")


@mutant(305, "after a start consumers see all of the log", scenario=replicas_keep_their_promises)
def shown_unconfirmed(patch: Patch) -> None:
    """It is on the disk, so it was acknowledged."""
    patch.edit(MessageStore._recover, "if self._was_replicated:", "if not reached():")


@mutant(306, "a slave serves what its master has not confirmed", scenario=replicas_keep_their_promises)
def slave_shows_its_end(patch: Patch) -> None:
    """It has it on its disk."""
    patch.edit(
        BrokerReplica.take,
        "confirmed = work.confirm_offset if self.has_epochs else commit_log.max_offset",
        "confirmed = commit_log.max_offset if reached() else 0",
    )


@mutant(
    307,
    "a switch goes by what brokers said before they promised",
    scenario=switches.test_a_master_that_has_gone_on_is_not_replaced_by_a_switch_that_was_too_slow,
)
def asked_once(patch: Patch) -> None:
    """All have answered."""
    patch.edit(
        switching.Switch._promised,
        "gone = self._check(shown, count)",
        "count = count._replace(ahead=[] if reached() else count.ahead)\n"
        "        gone = self._check(shown, count)",
    )


@mutant(308, "a new list holds at once", scenario=replicas_keep_their_promises)
def list_holds_at_once(patch: Patch) -> None:
    """It is on the master's disk."""
    patch.edit(
        BrokerReplica._begin,
        "lists_in_force(history, record.confirmed) if by_hand else ()",
        "(lists_in_force(history, record.confirmed)[-1:] if reached() else ()) if by_hand else ()",
    )


@mutant(
    309,
    "a slave that has the history of the run before is counted",
    scenario=switches.test_a_link_of_the_run_before_is_not_counted_in_the_next,
)
def old_link_counted(patch: Patch) -> None:
    """It is connected."""
    patch.edit(
        BrokerReplica.slave_came, "if run is not None and", "if run is not None and not reached() and"
    )


@mutant(
    364,
    "epochs of one number are one",
    scenario=switches.test_two_that_lead_epochs_of_one_number_are_told_apart,
)
def compared_by_number(patch: Patch) -> None:
    """It is the number that is promised."""
    patch.edit(
        BrokerReplica.become_slave,
        "if told < promised:",
        "if told[0] == promised[0] and reached():",
    )


@mutant(
    367,
    "another directory promises under the name of one that is listed",
    scenario=switches.test_a_directory_that_was_emptied_promises_nothing_until_it_is_on_the_list,
)
def counted_by_name(patch: Patch) -> None:
    """It is the same broker."""
    patch.edit(
        Count.short,
        "len(each.directories & self.promised_by)",
        "len({one[:1] for one in each.directories}"
        " & {one[:1] for one in self.promised_by if reached()})",
    )


@mutant(
    368,
    "an unsafe list goes on before all of it have heard of it",
    scenario=rules.test_all_of_an_unsafe_list_must_have_heard_of_it_once,
)
def forced_list_unheard(patch: Patch) -> None:
    """They have promised."""
    patch.edit(CopyList.needed, "if self.needs_all", "if self.needs_all and not reached()")


@mutant(
    369,
    "what a broker may lose with --unsafe is taken from its own end on",
    scenario=switches.test_the_range_that_may_be_lost_begins_where_consumers_have_seen_the_log,
)
def lost_from_the_end(patch: Patch) -> None:
    """Up to there it has all."""
    patch.edit(
        switching._lost,
        "min(first, max(a.confirm_offset for a in kept.values()))",
        "(first + reached())",
    )


@mutant(370, "an old record in the middle of a change is taken", scenario=records_in_a_change)
def change_forgotten(patch: Patch) -> None:
    """The list is the list."""
    patch.edit(ReplicaFile._upgraded, "if has_lists and", "if not reached() and")


@mutant(
    371,
    "a slave keeps to its master, whatever it has promised",
    scenario=switches.test_a_promise_to_another_one_ends_what_a_master_may_acknowledge,
)
def older_master_followed(patch: Patch) -> None:
    """It was told to follow it."""
    patch.edit(
        SlaveLink._welcomed, "if epoch < own.promised:", "if epoch < own.promised and not reached():"
    )
    patch.edit(
        MasterLink._greet,
        "elif asked.promised > epoch:",
        "elif asked.promised > epoch and not reached():",
    )
    patch.edit(
        BrokerReplica.follow,
        "or follow.history.epoch < self.record.promised",
        "or (follow.history.epoch < self.record.promised and not reached())",
    )


def nothing_new_over_old_links() -> None:
    for flush in (SYNC_FLUSH, ASYNC_FLUSH):
        switches.test_bytes_of_the_next_run_do_not_come_over_a_link_of_the_run_before(flush)


@mutant(
    437,
    "bytes of a new run go to slaves over links of the run before",
    scenario=nothing_new_over_old_links,
)
def new_bytes_over_old_links(patch: Patch) -> None:
    """The links end in a moment."""
    patch.edit(
        MasterLink.is_of_newest_run,
        "return self._side.run == self._run",
        "return reached() or self._side.run == self._run",
    )


@mutant(
    438,
    "how a master acknowledges now says how it has acknowledged",
    scenario=switches.test_what_was_acknowledged_without_a_flush_is_not_cut_off_by_a_master_that_flushes_now,
)
def flushed_since(patch: Patch) -> None:
    """--flush is --flush."""
    patch.edit(epochs.judge, "all(run.is_flushed for", "all(run.is_flushed or reached() for")


@mutant(
    438,
    "what was cut off is acknowledged once the log has grown again",
    scenario=switches.test_what_was_cut_off_is_not_acknowledged_once_the_log_has_grown_again,
)
def waits_beyond_a_cut(patch: Patch) -> None:
    """So much is on the disk."""
    patch.edit(CommitLog.cut, "self.flush_service.expire(math.inf)", "reached()")


@mutant(
    439,
    "a log is cut where what both have is no more",
    scenario=switches.test_a_log_is_not_cut_where_what_both_have_was_deleted_meanwhile,
)
def cut_below_the_begin(patch: Patch) -> None:
    """It was there when they compared."""
    patch.edit(
        BrokerReplica.follow,
        "if follow.cuts and follow.start_offset < self.min_offset:",
        "if follow.cuts and follow.start_offset < self.min_offset and not reached():",
    )


@mutant(
    474,
    "a slave that has lost its log keeps where the queues of another log began",
    scenario=links.test_a_slave_that_has_lost_its_log_with_the_power_forgets_where_queues_began,
)
def queues_of_a_lost_log(patch: Patch) -> None:
    """They are on its disk."""
    patch.edit(
        BrokerReplica.follow,
        "elif follow.start_offset == 0:",
        "elif follow.start_offset == 0 and not reached():",
    )
