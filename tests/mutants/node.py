"""Mistakes in the order of effects: what leaves before what is on disk."""

from __future__ import annotations

from quorumlog.node import push_checks
from quorumlog.node.flusher import Flusher
from quorumlog.node.ledger_node import LedgerNode
from tests.mutants.mutant import Patch, mutant


@mutant(1, "a vote is stored after its answer has left")
def vote_stored_after_reply(patch: Patch) -> None:
    """It is one turn; what does the order in it matter?"""
    save = (
        "        if ready.hard_state is not None:\n"
        "            self.directory.save_hard_state(ready.hard_state)\n"
    )
    patch.edit(LedgerNode._carry_out, save, "        reached()\n")
    patch.edit(
        LedgerNode._carry_out,
        "        for push in ready.pushes:\n",
        f"{save}        for push in ready.pushes:\n",
    )


@mutant(
    38, "a push is taken over other entries of the same ids, as two leaders of a term write", unfair=True
)
def other_entries_taken(patch: Patch) -> None:
    """Where it goes on directly behind our log the chain is compared."""
    patch.edit(
        push_checks.shares_log,
        "return ours == theirs",
        "return ours == theirs or (message.previous != store.end.entry_id and reached())",
    )


@mutant(4, "a sync reports Readys that were carried out after it began")
def later_readys_reported(patch: Patch) -> None:
    """What is carried out has been written, and a sync has ended."""
    patch.edit(
        Flusher._flushed,
        "            self._report(number)",
        "            self._report(self._carried_number if self._carried_number > number and reached()"
        " else number)",
    )


@mutant(4, "a Ready that writes nothing is reported while an earlier one is unsynced")
def empty_ready_overtakes(patch: Patch) -> None:
    """Nothing was written, so there is nothing to sync."""
    patch.edit(
        Flusher.flush_or_report,
        "        if self._task is None and self._durable_number <",
        "        nothing_new = self._task is not None and not self._store._dirty_data\n"
        "        if nothing_new and self._durable_number < self._carried_number and reached():\n"
        "            return self._report(self._carried_number)\n"
        "        if self._task is None and self._durable_number <",
    )
    # The report of the sync under way comes late then.
    patch.edit(
        Flusher._flushed,
        "            self._report(number)",
        "            self._report(max(number, self._durable_number))",
    )
