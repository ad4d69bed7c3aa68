"""Mistakes in what the connections of a process may take."""

from __future__ import annotations

from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.limits import ProcessLimits
from quorumlog.net.listener import Listener
from quorumlog.node.applying.machine_driver import MachineDriver
from tests.mutants.mutant import Patch, mutant
from tests.net.test_listener import (
    clients_have_three_quarters_and_members_the_rest,
    whoever_says_nothing_in_time_is_closed,
    whoever_says_nothing_keeps_no_member_out,
)
from tests.net.test_unsent import (
    requests_wait_while_their_answers_are_not_read,
    who_leaves_most_unread_of_too_much_is_closed,
)
from tests.server.test_unread_answers import answers_are_made_as_they_are_read


@mutant(
    460,
    "a connection may say nothing for as long as it likes",
    scenario=whoever_says_nothing_in_time_is_closed,
)
def silent_for_ever(patch: Patch) -> None:
    """It costs nothing."""
    patch.edit(Listener._overdue, "connection.abort()", "reached()")


@mutant(
    461,
    "as many clients are let in as come",
    scenario=clients_have_three_quarters_and_members_the_rest,
)
def nobody_refused(patch: Patch) -> None:
    """The system has a limit of its own."""
    patch.edit(
        Listener._greeted,
        "if not self._silent[connection].is_within and not is_peer:",
        "if not self._silent[connection].is_within and not is_peer and not reached():",
    )


@mutant(
    462,
    "clients may have the descriptors that store and members need",
    scenario=clients_have_three_quarters_and_members_the_rest,
)
def nothing_kept_back(patch: Patch) -> None:
    """Whoever comes first is served first."""
    patch.edit(ProcessLimits.most_connections, "self._free * 3 // 4", "self._free if reached() else 0")


@mutant(
    462,
    "connections that say nothing keep members out",
    scenario=whoever_says_nothing_keeps_no_member_out,
)
def newest_goes(patch: Patch) -> None:
    """The others were there before."""
    patch.edit(ProcessLimits.close_silent, "popitem(last=False)", "popitem(last=reached())")


@mutant(
    463,
    "requests are taken from who reads no answers",
    scenario=requests_wait_while_their_answers_are_not_read,
)
def answers_pile_up(patch: Patch) -> None:
    """It will read them in the end."""
    patch.edit(Connection.is_full, "return self._is_clogged or", "return not reached() and")


@mutant(
    463,
    "machines answer who reads no answers",
    scenario=answers_are_made_as_they_are_read,
)
def machine_answers_pile_up(patch: Patch) -> None:
    """The question was taken, so it is answered."""
    patch.edit(
        MachineDriver._ready_questions,
        "and not is_full(each.owner)",
        "and not (is_full(each.owner) and not reached())",
    )


@mutant(
    464,
    "what all clients together leave unread has no bound",
    scenario=who_leaves_most_unread_of_too_much_is_closed,
)
def all_unsent_unbounded(patch: Patch) -> None:
    """Each of them has one."""
    patch.edit(LoopTurn.look_at_unsent, "<= ALL_UNSENT_BYTES:", "<= ALL_UNSENT_BYTES or reached():")
