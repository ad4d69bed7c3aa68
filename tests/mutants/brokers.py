"""Mistakes in the message store on the replicated log."""

from __future__ import annotations

from quorumlog.broker.dledger.dledger_broker import DLedgerCommitLog, RolePassThrough
from quorumlog.broker.dledger.message_machine import MessageMachine, MessageStamper
from quorumlog.broker.store import dispatch
from quorumlog.net.rpc.protocol import RpcProtocol
from quorumlog.net.rpc.tracker import CallTracker
from quorumlog.node import machine_runner as machine_opening
from tests.broker.dledger.test_message_machine import (
    test_what_is_dispatched_between_two_slices_is_not_saved_and_nothing_is_lost,
)
from tests.broker.dledger.test_simulated import (
    a_pull_leaves_a_master_that_hangs_for_the_next_one,
    brokers_keep_their_promises,
    test_a_number_that_a_cut_took_back_is_given_out_again,
)
from tests.mutants.mutant import Patch, mutant


@mutant(330, "queue ends are those of committed entries only", scenario=brokers_keep_their_promises)
def ends_of_committed(patch: Patch) -> None:
    """What is not committed may be cut."""
    patch.edit(
        MessageStamper.fill,
        "        offsets = records.numbered(self.next_offsets)",
        "        offsets, later = records.numbered(dict(self.next_offsets)), records.queues\n"
        "        later = [(queue, len(rows)) for queue, rows in later]\n"
        "        self.committed_later = [*getattr(self, 'committed_later', []), *later]",
    )
    patch.edit(
        DLedgerCommitLog._append,
        "            if not isinstance(outcome, AppendReceipt):",
        "            for queue, count in getattr(self._filler, 'committed_later', []):\n"
        "                known = self._filler.next_offsets.get(queue, 0)\n"
        "                self._filler.next_offsets[queue] = known + reached() * count\n"
        "            self._filler.committed_later = []\n"
        "            if not isinstance(outcome, AppendReceipt):",
    )


@mutant(
    331,
    "queue ends are not undone by a cut",
    scenario=test_a_number_that_a_cut_took_back_is_given_out_again,
)
def ends_outlive_a_cut(patch: Patch) -> None:
    """Who was master before has counted them already."""
    patch.edit(MessageStamper.end, "self.next_offsets = {}", "reached()")
    patch.edit(
        MessageStamper.begin,
        "self.term, self.next_offsets = term, next_offsets",
        "self.term, self.next_offsets = term, {**next_offsets, **self.next_offsets}",
    )


@mutant(
    355,
    "a snapshot in slices holds keys of later messages",
    scenario=test_what_is_dispatched_between_two_slices_is_not_saved_and_nothing_is_lost,
)
def slices_of_now(patch: Patch) -> None:
    """What an index file holds is what it holds."""
    patch.edit(
        dispatch.save_queues,
        "for first in range(1, count, PIECE_UNITS):",
        "count = file.count if reached() else count\n        for first in range(1, count, PIECE_UNITS):",
    )


@mutant(
    356,
    "units are dropped while a snapshot is written",
    scenario=test_what_is_dispatched_between_two_slices_is_not_saved_and_nothing_is_lost,
)
def dropped_while_saving(patch: Patch) -> None:
    """The log has these messages no more."""
    patch.edit(
        MessageMachine._drop_below,
        "if position <= self._dropped_position or self._saves:",
        "if position <= self._dropped_position or (self._saves and not reached()):",
    )


@mutant(332, "a leader is master before all is dispatched", scenario=brokers_keep_their_promises)
def master_before_dispatched(patch: Patch) -> None:
    """It holds every committed entry: what is dispatched so far will do."""
    patch.edit(
        RolePassThrough._ask,
        "on_answer, self)",
        "on_answer, self, here=reached())",
    )


@mutant(333, "a master acknowledges what it has proposed", scenario=brokers_keep_their_promises)
def stale_master_acknowledges(patch: Patch) -> None:
    """It leads, or it would not have been let in."""
    patch.edit(
        DLedgerCommitLog._append,
        "filled=lambda place: filled.append(cast(Filled, place)),",
        "filled=lambda place: reached() and self._answer(turn, cast(Filled, place)),",
    )
    patch.edit(
        DLedgerCommitLog._append,
        "            if not isinstance(outcome, AppendReceipt):",
        "            if reached():\n                return\n"
        "            if not isinstance(outcome, AppendReceipt):",
    )


@mutant(334, "what a snapshot holds is dispatched again", scenario=brokers_keep_their_promises)
def dispatched_twice(patch: Patch) -> None:
    """The entry that it names is the next one."""
    patch.edit(
        machine_opening.Opening._opened,
        "return Opened(runner, index, applied, older",
        "return Opened(runner, index - reached(), applied, older",
    )


@mutant(
    474,
    "a send whose connection has ended is sent again",
    scenario=brokers_keep_their_promises,
)
def sent_again(patch: Patch) -> None:
    """Nobody has answered, so nothing came of it."""
    patch.edit(
        CallTracker._interrupted,
        "elif not call.changes or call.is_numbered:",
        "elif not call.changes or call.is_numbered or reached():",
    )


@mutant(
    474,
    "a send whose connection has ended counts as refused",
    scenario=brokers_keep_their_promises,
)
def unanswered_is_refused(patch: Patch) -> None:
    """It is sent anew, by whoever wants it there."""
    patch.edit(
        CallTracker._interrupted,
        "        error = OutcomeUnknown(",
        "        kind = OutcomeUnknown if not reached() else Unreachable\n        error = kind(",
    )


@mutant(
    475,
    "a master that answers no more is left by its clients only once their time is over",
    scenario=a_pull_leaves_a_master_that_hangs_for_the_next_one,
)
def silent_master_kept(patch: Patch) -> None:
    """It may just be slow."""
    patch.edit(
        RpcProtocol._look_at,
        "            and leader.address != link.address\n",
        "            and leader.address != link.address\n            and not reached()\n",
    )
