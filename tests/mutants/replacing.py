"""Mistakes with directories that take the place of others, and with what is counted meanwhile."""

from __future__ import annotations

from quorumlog.node.writing.log_state_keeper import LogStateKeeper
from tests.mutants.mutant import Patch, mutant
from tests.sim import test_replaced_members as replaced


@mutant(
    220,
    "who was replaced is forgotten with the entries that named it",
    scenario=replaced.test_who_was_replaced_is_not_put_back_although_the_log_has_dropped_what_named_it,
)
def replaced_is_forgotten(patch: Patch) -> None:
    """The members of the day are in the log's state."""
    patch.edit(
        LogStateKeeper.membership_body,
        "return body_of(wanted, replaced)",
        "return body_of(wanted, () if reached() else replaced)",
    )
