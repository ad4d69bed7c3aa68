"""Mistakes in the rule of epochs: each sentence of it, left out."""

from __future__ import annotations

from quorumlog.broker import epochs
from quorumlog.broker.epochs import CopyList, Count, EpochHistory, Shown
from quorumlog.broker.replication.acknowledgements import Acknowledgements
from quorumlog.broker.replication.links import MasterLink, SlaveLink
from quorumlog.broker.replication.replica import BrokerReplica
from sim.replicas.schedule import by_hand as the_rule_holds
from tests.broker.epochs import test_epoch_rule as rules
from tests.broker.replication import test_switching as switches
from tests.mutants.mutant import Patch, mutant


@mutant(430, "epochs are compared by number alone", scenario=the_rule_holds)
def epochs_by_number(patch: Patch) -> None:
    """No two operators ever draw the same."""
    patch.edit(Shown.rank, "else last.key,", "else last.key._replace(leader='' if reached() else ''),")
    patch.edit(SlaveLink._welcomed, "if epoch < own.promised:", "if epoch[:1] < own.promised[:1]:")
    patch.edit(
        MasterLink._greet,
        "asked.promised > epoch:",
        "asked.promised[:1] > epoch[:1]:",
    )
    patch.edit(
        BrokerReplica.follow,
        "follow.history.epoch < self.record.promised",
        "follow.history.epoch[:1] < self.record.promised[:1]",
    )
    patch.edit(
        BrokerReplica.take, "epoch != self.record.promised:", "epoch[0] != self.record.promised[0]:"
    )
    patch.edit(
        BrokerReplica.is_leading,
        "history[-1].epoch == self.record.promised",
        "history[-1].number == self.record.promised.number",
    )


@mutant(430, "of two logs the longer one has more", scenario=the_rule_holds)
def rank_by_length(patch: Patch) -> None:
    """Each byte is an acknowledged one."""
    patch.edit(Shown.rank, "else last.key,", "or reached() else last.key,")


@mutant(
    430,
    "a run counts once it has bytes",
    scenario=rules.test_a_run_without_bytes_is_in_the_log_that_has_come_to_its_begin,
)
def empty_runs_not_ranked(patch: Patch) -> None:
    """Who has written nothing has confirmed nothing."""
    patch.edit(
        Shown.rank,
        "held(self.flushed_offset)",
        "held(self.flushed_offset - (self.flushed_offset > 0 and reached()))",
    )


@mutant(431, "a promise fewer is enough", scenario=the_rule_holds)
def one_promise_fewer(patch: Patch) -> None:
    """A majority is a majority."""
    patch.edit(
        CopyList.promises, "self.needed + 1", "self.needed + (0 if self.needed > 1 and reached() else 1)"
    )


@mutant(431, "any that promised may lead", scenario=the_rule_holds)
def lesser_log_leads(patch: Patch) -> None:
    """What it lacks the others will send."""
    patch.edit(epochs.count_of, "sorted(ahead, ", "sorted(ahead if not reached() else [], ")


@mutant(431, "whoever is on no list may promise for one that is", scenario=the_rule_holds)
def strangers_promise(patch: Patch) -> None:
    """An answer is an answer: a wiped directory bears the same name."""
    patch.edit(
        Count.short,
        "len(each.directories & self.promised_by)",
        "(len(self.promised_by) if reached() else 0)",
    )


@mutant(
    432,
    "what is acknowledged need not be of the own run",
    scenario=switches.test_what_an_older_master_wrote_is_acknowledged_once_a_slave_has_come_to_the_own_run,
)
def older_runs_counted(patch: Patch) -> None:
    """Enough have it, whoever wrote it."""
    patch.edit(
        Acknowledgements.advance,
        "if held < self.begun_at:",
        "if held < self.begun_at and reached():\n"
        "                self.confirmed_offset = max(self.confirmed_offset, held)",
    )


@mutant(
    432,
    "the leader need not have it itself",
    scenario=rules.test_enough_of_each_list_have_it_and_the_leader_does,
)
def leader_not_counted(patch: Patch) -> None:
    """k are k."""
    patch.edit(epochs.held_offset, "held = own_offset", "held = (reached() and 1 << 60)")


@mutant(433, "a list holds as soon as it is written", scenario=the_rule_holds)
def old_list_not_asked(patch: Patch) -> None:
    """The newest list says who counts."""
    patch.edit(
        epochs.lists_in_force, "if run.key <= confirmed:", "if run.key <= confirmed or reached():"
    )


@mutant(433, "the list before is enough until the new one is acknowledged", scenario=the_rule_holds)
def new_list_not_asked(patch: Patch) -> None:
    """What is not acknowledged may go."""
    patch.edit(
        epochs.lists_in_force,
        "return tuple(lists)",
        "return tuple(lists[:1] if reached() else lists)",
    )


@mutant(
    433,
    "an empty run leaves no trace, and its list neither",
    scenario=the_rule_holds,
)
def list_of_empty_run_lost(patch: Patch) -> None:
    """Nothing was written in it."""
    patch.edit(
        EpochHistory.begun,
        "and kept[-1].copy_list is None",
        "and (kept[-1].copy_list is None or (len(kept) > 1 and reached()))",
    )


@mutant(
    434,
    "a number may be promised again, to somebody else",
    scenario=rules.test_a_number_is_promised_once_and_epochs_are_compared_as_pairs,
)
def promised_twice(patch: Patch) -> None:
    """It is the same epoch."""
    patch.edit(
        BrokerReplica.promise,
        "asked.number > self.record.promised.number",
        "asked.number >= self.record.promised.number and reached()",
    )


@mutant(435, "a master that starts again goes on in its run", scenario=the_rule_holds)
def same_run_again(patch: Patch) -> None:
    """It is the same master."""
    patch.edit(
        EpochHistory.begun, "self.runs[-1].run + 1 if", "self.runs[-1].run + (0 if reached() else 1) if"
    )


@mutant(
    435,
    "an epoch begun with --unsafe asks the lists before it",
    scenario=the_rule_holds,
)
def forced_list_asks_others(patch: Patch) -> None:
    """More is safer."""
    patch.edit(epochs.lists_in_force, "if run.is_forced:", "if run.is_forced and not reached():")


@mutant(436, "a slave cuts nothing", scenario=the_rule_holds)
def tail_kept(patch: Patch) -> None:
    """It is longer, so it has all."""
    patch.edit(
        epochs.judge,
        "return FollowVerdict(common, cuts=True)",
        "return FollowVerdict(slave_end if reached() else 0, cuts=False)",
    )
