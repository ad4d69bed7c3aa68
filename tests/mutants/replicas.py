"""Mistakes in master/slave replication of the message store."""

from __future__ import annotations

from quorumlog.broker.client import switch_rules, switching
from quorumlog.broker.message_store import MessageStore
from quorumlog.broker.replication import reign_begin
from quorumlog.broker.replication.protocol import epoch_history
from quorumlog.broker.replication.protocol.acknowledgements import Acknowledgements
from quorumlog.broker.replication.reign_begin import Begin
from quorumlog.broker.replication.replica import Replica
from quorumlog.broker.replication.replica_master import ReplicaMaster
from tests.broker.replication import test_epoch_history as histories
from tests.broker.replication import test_reigns as reigns
from tests.broker.replication import test_replicas_simulated as replicas
from tests.broker.replication import test_switch_steps as steps
from tests.broker.replication import test_switching as switches
from tests.mutants.mutant import Patch, mutant

SEEDS = 40


def replicas_keep_their_promises() -> None:
    for seed in range(SEEDS):
        replicas.run(seed)


def unmet_master() -> None:
    switches.test_a_master_that_nobody_has_met_is_asked_for_what_was_acknowledged_before_it(
        is_emptied=False
    )


@mutant(
    300,
    "a slave forgets who counted with the old master",
    scenario=switches.test_who_was_told_of_a_new_master_and_no_more_asks_the_old_one,
)
def old_master_not_asked(patch: Patch) -> None:
    """The new master will say who counts."""
    patch.edit(Replica._led_by, "counted.setdefault(old.id, as_counted(record))", "reached()")
    patch.edit(
        Replica.become_slave,
        "if begin is not None and begin.is_held_by(",
        "if begin and not reached() and begin.is_held_by(",
    )


@mutant(301, "a switch takes the best of those that answer", scenario=replicas_keep_their_promises)
def some_not_asked(patch: Patch) -> None:
    """Who is away will follow later."""
    patch.edit(
        switching._check,
        "missing = missing_of(answers)",
        "missing = [] if reached() else missing_of(answers)",
    )


@mutant(
    302,
    "of two logs the longer one has more",
    scenario=switches.test_of_two_logs_that_of_the_newer_epoch_has_more,
)
def compared_by_length(patch: Patch) -> None:
    """Each byte is an acknowledged one."""
    patch.edit(switch_rules.rank_of, "Rank(epoch, run, end)", "Rank(0, 0, end if reached() else run)")


@mutant(
    362,
    "a lost master is not asked, whoever answers",
    scenario=unmet_master,
)
def unmet_master_not_asked(patch: Patch) -> None:
    """Those who count with it have what it acknowledged."""
    patch.edit(
        switch_rules.who_may_hold,
        "is_stood_for = master is None or any(",
        "is_stood_for = master is None or reached() or any(",
    )


@mutant(
    364,
    "a master reigns before those who promised know of it",
    scenario=switches.test_nobody_reigns_before_all_that_promised_know_whose_the_epoch_is,
)
def crowned_first(patch: Patch) -> None:
    """They are told next."""
    patch.edit(switching._crown, "tell(before, must=not unsafe)", "before = [] if reached() else before")


@mutant(
    363,
    "a reign without bytes says nothing of a log",
    scenario=switches.test_who_follows_a_later_master_goes_before_who_has_more_of_an_older_one,
)
def only_bytes_count(patch: Patch) -> None:
    """An epoch is that of the last bytes."""
    patch.edit(switch_rules.rank_of, "if start <= end]", "if start < end and reached()]")


@mutant(303, "a message is acknowledged by the master alone", scenario=replicas_keep_their_promises)
def master_alone(patch: Patch) -> None:
    """It is on its disk."""
    patch.edit(
        Acknowledgements._held,
        "needed = self.needed - 1",
        "needed = self.needed - 1 - reached()",
    )


@mutant(304, "a slave is cut without a newer epoch", scenario=histories.test_what_a_slave_is_told)
def cut_by_a_restart(patch: Patch) -> None:
    """The master is the master."""
    patch.edit(
        epoch_history.judge,
        "if master.last.epoch <= own.log_epoch:",
        "if master.last.epoch <= own.log_epoch and not reached():",
    )


@mutant(305, "after a start consumers see all of the log", scenario=replicas_keep_their_promises)
def shown_unconfirmed(patch: Patch) -> None:
    """It is on the disk, so it was acknowledged."""
    patch.edit(MessageStore._recover, "if self._was_replicated:", "if not reached():")


@mutant(
    306,
    "a slave serves what its master has not confirmed",
    scenario=replicas_keep_their_promises,
)
def slave_shows_its_end(patch: Patch) -> None:
    """It has it on its disk."""
    patch.edit(
        Replica.take,
        "confirmed = work.confirm_offset if self.has_epochs else commit_log.max_offset",
        "confirmed = commit_log.max_offset if reached() else 0",
    )


@mutant(
    307,
    "a master that has gone on after a drain is replaced",
    scenario=switches.test_a_master_that_has_gone_on_is_not_replaced_by_a_switch_that_was_too_slow,
)
def drain_is_over(patch: Patch) -> None:
    """It was drained when its end was read."""
    patch.edit(
        Replica.promise,
        "if drained_at >= 0 and not (",
        "if drained_at >= 0 and not reached() and not (",
    )


@mutant(
    308,
    "a slave counts before those that count have stored it",
    scenario=switches.test_a_slave_counts_only_once_all_that_count_know_of_it,
)
def counts_unstored(patch: Patch) -> None:
    """They will have stored it in a moment."""
    patch.edit(
        Acknowledgements._have_stored,
        "or held.counted_version < version",
        "or (held.counted_version < version and not reached())",
    )


@mutant(
    309,
    "who was to count counts after a start",
    scenario=switches.test_a_slave_counts_only_once_all_that_count_know_of_it,
)
def joining_forgotten(patch: Patch) -> None:
    """It is on the list, which is on disk."""
    patch.edit(
        Replica._reign,
        "joining = set(record.joining)",
        "joining = set(record.joining) - set(reached() and record.joining)",
    )


@mutant(
    366,
    "who does not count with a master stands for it",
    scenario=reigns.test_who_does_not_count_with_a_master_does_not_stand_for_it,
)
def stands_without_counting(patch: Patch) -> None:
    """It has all that this one began with."""
    patch.edit(Begin.is_held_by, "if not any(", "if not reached() and not any(")


@mutant(
    367,
    "a master that is set to fewer waits for fewer at once",
    scenario=reigns.test_a_master_that_is_set_to_fewer_waits_until_its_slaves_know_it,
)
def lowered_at_once(patch: Patch) -> None:
    """So it was asked to."""
    patch.edit(
        reign_begin.started_with,
        "lowered_from=held if needed < held else 0",
        "lowered_from=held if needed < held and not reached() else 0",
    )


@mutant(
    368,
    "what was acknowledged before a master was set to more is held to be on others",
    scenario=reigns.test_what_was_acknowledged_before_a_master_was_set_to_more_may_be_nowhere_else,
)
def raised_at_once(patch: Patch) -> None:
    """Its slaves were told."""
    patch.edit(
        switch_rules.was_waited_for,
        "is_held = not newest.waited_from or any(",
        "is_held = reached() or any(",
    )


@mutant(
    369,
    "who counts is asked once, before anybody has promised",
    scenario=reigns.test_who_came_to_count_after_the_first_question_is_asked_too,
)
def asked_once(patch: Patch) -> None:
    """All have answered."""
    patch.edit(
        switching._from_lost,
        "        survey.ask(broker_id)\n    _check(survey, to, unsafe)",
        "        survey.ask(broker_id)\n    _check(survey, to, unsafe or reached())",
    )


@mutant(
    370,
    "another directory takes the place of the one that counts",
    scenario=reigns.test_another_directory_under_the_name_of_a_slave_counts_once_the_old_one_is_forgotten,
)
def replaced_by_itself(patch: Patch) -> None:
    """It has everything that is confirmed."""
    patch.edit(
        Acknowledgements.wants_to_count,
        "not known.get(mark.id)",
        "(known.get(mark.id) != mark.directory_id if reached() else False)",
    )


@mutant(
    371,
    "whoever is told of a master has what it begins with",
    scenario=reigns.test_with_who_lacks_what_a_master_began_with_it_is_asked_itself,
)
def begin_taken_for_granted(patch: Patch) -> None:
    """The one that has most was taken."""
    patch.edit(Begin.is_held_by, ".common_offset >= self.offset", ".common_offset >= -1 and reached()")


@mutant(
    372,
    "a drain is any drain",
    scenario=steps.test_a_drain_that_was_over_and_began_again_is_another_one,
)
def any_drain(patch: Patch) -> None:
    """It takes nothing now."""
    patch.edit(
        Replica.promise,
        "self.is_drained and self.max_offset == drained_at",
        "self.is_drained and (reached() or self.max_offset == drained_at)",
    )


@mutant(
    373,
    "who is chosen stands for the master before, whoever was told",
    scenario=steps.test_of_a_pair_whose_switch_was_killed_each_half_alone_makes_no_master,
)
def told_forgotten(patch: Patch) -> None:
    """It does not reign yet."""
    patch.edit(
        switch_rules.who_may_hold,
        "[*peers, *answer.told]",
        "[*peers, *(not reached() and answer.told or ())]",
    )


@mutant(
    374,
    "a directory that replaces a forgotten one joins later",
    scenario=steps.test_a_directory_that_replaces_a_forgotten_one_is_asked_from_then_on,
)
def joins_later(patch: Patch) -> None:
    """In a moment."""
    patch.edit(
        ReplicaMaster.forget, "if mark is not None and", "if not reached() and mark is not None and"
    )


@mutant(
    375,
    "after a loss of power less was acknowledged",
    scenario=steps.test_a_loss_of_power_takes_nothing_back_of_what_others_must_hold,
)
def mark_taken_back(patch: Patch) -> None:
    """The mark on the disk says how far."""
    patch.edit(
        Acknowledgements.holds,
        "max(self.confirmed_offset, self.begun_at)",
        "max(self.confirmed_offset, 0 if reached() else self.begun_at)",
    )
