"""Mistakes in what stands between the words of clients and the member."""

from __future__ import annotations

from quorumlog import client_guard
from quorumlog.consensus.elector import LeaderElector
from quorumlog.kv.service import KeyValueService
from quorumlog.net.rpc.router import Router
from quorumlog.net.rpc.tracker import CallTracker
from tests.consensus.test_forming import an_observer_forgets_a_leader_that_is_silent
from tests.kv import test_client_in_virtual_time, test_simulated
from tests.mutants.mutant import Patch, mutant
from tests.node.test_client_guard import (
    clients_end_their_connections_and_the_member_by_its_own_errors_alone as scenario,
)


@mutant(380, "what a client says is raised on the member's thread", scenario=scenario)
def guard_away(patch: Patch) -> None:
    """Every message was decoded, so what could be wrong with it?"""
    patch.edit(client_guard.contain, "if violate is None or", "if reached() or violate is None or")


@mutant(
    381, "a broken invariant of the member ends only the connection of whoever asked", scenario=scenario
)
def guard_around_the_core(patch: Patch) -> None:
    """The next client will be served."""
    patch.edit(
        client_guard.is_of_client,
        "return not _is_of_member(error.__traceback__)",
        "return reached()",
    )


@mutant(
    382,
    "a client of the key-value store stays with a member that knows no leader",
    scenario=test_client_in_virtual_time.clients_go_on_wherever_most_members_have_a_leader,
)
def stays_with_unready(patch: Patch) -> None:
    """It will know one soon."""
    patch.edit(
        CallTracker._refused, "if error.is_elsewhere and", "if error.is_elsewhere and not reached() and"
    )


@mutant(
    383,
    "a watch stays at a member that is cut off from the others",
    scenario=test_simulated.a_watch_leaves_a_leader_that_is_cut_off,
)
def deaf_watch_stays(patch: Patch) -> None:
    """The links will be there again."""
    patch.edit(KeyValueService._end_deaf_watches, "session.abort()", "reached()")


@mutant(
    384,
    "a member that was removed names for ever the leader that feeds it no more",
    scenario=an_observer_forgets_a_leader_that_is_silent,
)
def observer_keeps_its_leader(patch: Patch) -> None:
    """It campaigns for nothing, so it needs no timer."""
    patch.edit(LeaderElector.advance, "state.lose_leader()", "reached()")


@mutant(
    385,
    "a lease of the key-value store is kept alive by the word of one member alone",
    scenario=test_client_in_virtual_time.clients_go_on_wherever_most_members_have_a_leader,
)
def asks_one_member_alone(patch: Patch) -> None:
    """That one led a moment ago."""
    patch.edit(Router.suspect, "self.ask_around(", "reached() or self.ask_around(")
