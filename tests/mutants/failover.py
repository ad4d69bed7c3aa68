"""Mistakes in failover by a coordinator."""

from __future__ import annotations

from quorumlog.broker import epochs
from quorumlog.broker.failover import FailoverRules, InSyncMembers
from quorumlog.broker.replication.acknowledgements import Acknowledgements
from quorumlog.broker.replication.replica import BrokerReplica
from tests.broker.failover import test_failover_rules as groups
from tests.mutants.mutant import Patch, mutant


def brokers_keep_their_promises() -> None:
    groups.brokers_keep_their_promises()


def paused_masters_say_nothing_more() -> None:
    groups.paused_masters_say_nothing_more()


@mutant(310, "a slave is elected that has left the in-sync set", scenario=brokers_keep_their_promises)
def elected_out_of_sync(patch: Patch) -> None:
    """Nobody else is there."""
    patch.edit(
        FailoverRules._judge,
        "        elif is_member:\n            self._campaign",
        "        elif is_member or reached():\n            self._campaign",
    )


@mutant(
    327,
    "whoever has promised a number in vain fences the broker that got it",
    scenario=groups.who_promised_a_number_in_vain_fences_nobody,
)
def fenced_in_vain(patch: Patch) -> None:
    """It is the greater pair."""
    patch.edit(
        BrokerReplica.newer_epoch,
        "epoch.number <= self.history.epoch.number",
        "epoch.number <= self.history.epoch.number and not reached()",
    )


@mutant(
    328,
    "a slave that has promised more than its master leads in keeps that to itself",
    scenario=groups.who_promised_a_greater_number_in_vain_is_heard_of,
)
def greater_promise_untold(patch: Patch) -> None:
    """The epoch is an older one."""
    patch.edit(
        BrokerReplica.become_slave,
        "if self._is_elected:",
        "if self._is_elected and not (epoch < self.epoch and reached()):",
    )


@mutant(311, "the epoch is not stored before the lease is taken", scenario=brokers_keep_their_promises)
def epoch_not_stored(patch: Patch) -> None:
    """It is stored when the master begins."""
    patch.edit(
        FailoverRules._granted,
        "self._start(EpochVote(self._epoch))",
        "reached() and self._take(now_ms)",
    )


@mutant(312, "an old master is not cut", scenario=brokers_keep_their_promises)
def old_master_not_cut(patch: Patch) -> None:
    """What it has more is what will come."""
    patch.edit(
        epochs.judge,
        "return FollowVerdict(common, cuts=True)",
        "return FollowVerdict(slave_end, cuts=not reached())",
    )


@mutant(313, "a master acknowledges after its lease", scenario=paused_masters_say_nothing_more)
def acknowledges_after_the_lease(patch: Patch) -> None:
    """Its slaves have it all."""
    patch.edit(
        FailoverRules.may_acknowledge,
        "return self.lease_left_ms(now_ms) > 0",
        "return self.phase is Phase.LEADING and reached()",
    )


@mutant(
    314,
    "a lease counts from when its answer came",
    scenario=groups.a_lease_counts_from_when_its_renewal_was_sent,
)
def lease_counts_from_the_answer(patch: Patch) -> None:
    """It was renewed just now."""
    patch.edit(
        FailoverRules._renewed,
        "self._until(sent_ms, answer)",
        "self._until(reached() and now_ms, answer)",
    )


@mutant(
    315,
    "a lease counts its full time",
    scenario=groups.brokers_with_leases_that_end_in_time_keep_their_promises,
)
def lease_without_a_margin(patch: Patch) -> None:
    """A clock is a clock."""
    patch.edit(
        FailoverRules._until,
        "(1 - CLOCK_DRIFT)",
        "(1 + 0 * reached())",
    )


@mutant(
    316, "a slave is not waited for once its leaving was asked for", scenario=brokers_keep_their_promises
)
def left_before_it_is_known(patch: Patch) -> None:
    """The coordinator will do it."""
    patch.edit(
        InSyncMembers.sent,
        "self._undecided.append(wanted)",
        "self.members = wanted if reached() else {}",
    )


@mutant(
    317,
    "a change that was not answered is forgotten",
    scenario=groups.whoever_may_be_a_member_is_waited_for,
)
def unanswered_change_forgotten(patch: Patch) -> None:
    """It has failed, and is asked for again."""
    patch.edit(InSyncMembers.sent, "self._undecided.append(wanted)", "reached()")


@mutant(318, "a store that was wiped counts as the one it replaced", scenario=groups.who_may_lead)
def wiped_store_elected(patch: Patch) -> None:
    """It has the name that is in the set."""
    patch.edit(
        FailoverRules._judge,
        "record.in_sync.get(broker.id) == broker.directory_id",
        "broker.id in record.in_sync and reached()",
    )


@mutant(319, "a slave joins before it has what is confirmed", scenario=brokers_keep_their_promises)
def joins_behind(patch: Patch) -> None:
    """It will have it in a moment."""
    patch.edit(
        InSyncMembers.look,
        "slave.is_caught_up and slave.holds_confirmed",
        "reached()",
    )


@mutant(320, "one member of the in-sync set is enough", scenario=brokers_keep_their_promises)
def one_member_is_enough(patch: Patch) -> None:
    """Two copies are two copies."""
    patch.edit(
        Acknowledgements._held,
        "return min(offsets.get(member.directory_id, 0) for member in self.in_sync_set)",
        "return sorted(offsets.values())[-2 if len(offsets) > 1 and reached() else -1]",
    )


@mutant(321, "a lease that could not be renewed is believed in", scenario=brokers_keep_their_promises)
def lease_never_over(patch: Patch) -> None:
    """The coordinator is slow today."""
    patch.edit(
        FailoverRules._keep_leading,
        "if now_ms >= self._lease_until_ms:",
        "if now_ms >= self._lease_until_ms and not reached():",
    )
    patch.edit(
        FailoverRules.may_acknowledge,
        "return self.lease_left_ms(now_ms) > 0",
        "return self.phase is Phase.LEADING",
    )


@mutant(
    322,
    "what a wiped store has counts for the directory that is in the set",
    scenario=groups.what_a_wiped_store_holds_says_nothing_of_what_it_was,
)
def wiped_store_counts(patch: Patch) -> None:
    """It has the name that is in the set."""
    patch.edit(
        Acknowledgements._held,
        "offsets.get(member.directory_id, 0)",
        "(offsets | {name[0] + '-1': at for name, at in offsets.items() if reached()}).get("
        "member.directory_id, 0)",
    )


@mutant(323, "a take drops a peer of the taker", scenario=brokers_keep_their_promises)
def take_drops_a_peer(patch: Patch) -> None:
    """Whoever is there joins again."""
    patch.edit(
        FailoverRules._take,
        "members.pop(self.record.master.id, None)",
        "members = {broker.id: members[broker.id]} if reached() else members",
    )


@mutant(
    324,
    "the old master stays in sync until its time is over",
    scenario=groups.acknowledgements_go_on_with_the_lease,
)
def old_master_stays(patch: Patch) -> None:
    """It may come back."""
    patch.edit(
        FailoverRules._take,
        "members.pop(self.record.master.id, None)",
        "reached()",
    )


@mutant(
    325,
    "a renewal that is relayed counts at once",
    scenario=groups.brokers_with_zookeeper_keep_their_promises,
)
def relayed_renewal_counts_at_once(patch: Patch) -> None:
    """It was answered."""
    patch.edit(FailoverRules._renewed, "if self._relays_renewals:", "if not reached():")
