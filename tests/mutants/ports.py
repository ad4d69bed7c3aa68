"""Mistakes in what the connections of a process may take."""

from __future__ import annotations

from quorumlog.broker.broker_port import BrokerSession, ReadQueue
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.hello import refusal_of_other
from quorumlog.net.limits import ProcessLimits
from quorumlog.net.listener import Listener
from quorumlog.net.loop_thread import LoopThread
from quorumlog.net.quotas import Meter
from quorumlog.net.rpc.view import GroupView
from quorumlog.node.machine_driver import Questions
from quorumlog.store.disk import KeptDescriptors
from tests.broker.client.test_wrong_ports import wrong_ports_end_the_search
from tests.broker.serving.test_unread_answers import (
    requests_of_a_connection_are_bounded,
    what_is_not_read_is_not_made,
)
from tests.mutants.mutant import Patch, mutant
from tests.net.test_listener import (
    clients_have_three_quarters_and_members_the_rest,
    who_answers_wrong_is_refused,
    who_was_asked_has_no_longer_than_for_a_greeting,
    whoever_says_nothing_in_time_is_closed,
    whoever_says_nothing_keeps_no_member_out,
)
from tests.net.test_loop_thread import who_is_dropped_is_closed
from tests.net.test_quotas import (
    bytes_are_made_good_before_the_next_request_is_taken,
    members_come_in_where_clients_have_reached_their_limit,
)
from tests.net.test_strangers import another_product_is_turned_away
from tests.net.test_unsent import (
    requests_wait_while_their_answers_are_not_read,
    who_leaves_most_unread_of_too_much_is_closed,
)
from tests.node.test_questions import who_was_not_answered_is_the_first
from tests.server.test_unread_answers import answers_are_made_as_they_are_read
from tests.store.test_kept_descriptors import files_get_kept_descriptors


@mutant(
    460,
    "a connection may say nothing for as long as it likes",
    scenario=whoever_says_nothing_in_time_is_closed,
)
def silent_for_ever(patch: Patch) -> None:
    """It costs nothing."""
    patch.edit(Listener._overdue, "waiting.close()", "reached()")


@mutant(
    461,
    "as many clients are let in as come",
    scenario=clients_have_three_quarters_and_members_the_rest,
)
def nobody_refused(patch: Patch) -> None:
    """The system has a limit of its own."""
    patch.edit(
        Listener._greeted,
        "and over is None) or is_peer",
        "and over is None) or is_peer or reached()",
    )


@mutant(
    505,
    "a member is refused where clients of its address have reached their limit",
    scenario=members_come_in_where_clients_have_reached_their_limit,
)
def members_are_limited(patch: Patch) -> None:
    """It is one more connection."""
    patch.edit(
        Listener._greeted,
        "connection.is_counted = not is_peer and",
        "connection.is_counted = (not is_peer or reached()) and",
    )
    patch.edit(Listener._greeted, "and over is None) or is_peer", "and over is None)")


@mutant(
    505,
    "what a client is refused to say is owed all the same",
    scenario=bytes_are_made_good_before_the_next_request_is_taken,
)
def refused_is_owed(patch: Patch) -> None:
    """It has come."""
    patch.edit(
        Meter.admitted,
        "if refusal is not None:",
        "if refusal is not None and reached():\n"
        "                [share.take(frame.size_bytes) for share in self._shares]\n"
        "            if refusal is not None:",
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
    patch.edit(
        Connection._take,
        "if self.is_deaf:",
        "if self.is_deaf and not reached():",
    )


@mutant(
    463,
    "machines answer who reads no answers",
    scenario=answers_are_made_as_they_are_read,
)
def machine_answers_pile_up(patch: Patch) -> None:
    """The question was taken, so it is answered."""
    patch.edit(
        Questions.take,
        "if is_full(waiting[0].owner):",
        "if is_full(waiting[0].owner) and not reached():",
    )


@mutant(
    463,
    "whoever gets megabytes is answered first again",
    scenario=who_was_not_answered_is_the_first,
)
def large_answers_first(patch: Patch) -> None:
    """Its other questions came before theirs."""
    patch.edit(
        Questions.answered, "if owner_id not in served:", "if owner_id not in served and not reached():"
    )


@mutant(
    464,
    "what all clients together leave unread has no bound",
    scenario=who_leaves_most_unread_of_too_much_is_closed,
)
def all_unsent_unbounded(patch: Patch) -> None:
    """Each of them has one."""
    patch.edit(LoopTurn.look_at_unsent, "<= ALL_UNSENT_BYTES:", "<= ALL_UNSENT_BYTES or reached():")


@mutant(
    465,
    "a client has as many pulls wait as it likes",
    scenario=requests_of_a_connection_are_bounded,
)
def pulls_unbounded(patch: Patch) -> None:
    """Each costs little."""
    patch.edit(
        BrokerSession._opens, "self._open >= MOST_OPEN", "self._open >= MOST_OPEN and not reached()"
    )


@mutant(465, "messages are read for who reads no answers", scenario=what_is_not_read_is_not_made)
def pulls_pile_up(patch: Patch) -> None:
    """The connection has its own bound."""
    patch.edit(ReadQueue.begin, "and self._is_room()", "and (self._is_room() or reached())")


@mutant(466, "whoever greets is let in, whatever it looks for", scenario=another_product_is_turned_away)
def any_product(patch: Patch) -> None:
    """What it asks for will not be known then."""
    patch.edit(
        refusal_of_other, "if hello.product == product:", "if hello.product == product or reached():"
    )


@mutant(
    466,
    "a client asks at the ports of others until its time is over",
    scenario=wrong_ports_end_the_search,
)
def wrong_ports_repeated(patch: Patch) -> None:
    """A broker may come to listen there."""
    patch.edit(
        GroupView.group_unknown_to_all,
        "in self.known_addresses()):",
        "in self.known_addresses()) and not reached():",
    )


@mutant(467, "no connection is closed for a file", scenario=files_get_kept_descriptors)
def kept_and_no_more(patch: Patch) -> None:
    """Eight are kept."""
    patch.edit(KeptDescriptors._give, "closer()", "reached()")


@mutant(469, "who answers a challenge wrong is let in", scenario=who_answers_wrong_is_refused)
def wrong_answer_let_in(patch: Patch) -> None:
    """It was asked, and has answered."""
    patch.edit(
        Listener._ask,
        "self._turn_away(connection, first, refusal)",
        "self._let_in(connection, first) if reached() else refusal",
    )


@mutant(
    470,
    "who was asked a challenge may think about it for ever",
    scenario=who_was_asked_has_no_longer_than_for_a_greeting,
)
def challenged_for_ever(patch: Patch) -> None:
    """It has said its Hello in time."""
    patch.edit(
        Listener._greeted,
        "self._ask(connection, frame, self.access.greet(connection, hello, self.tls), None)",
        "self._ask(connection, frame, self.access.greet(connection, hello, self.tls), None)\n"
        "            reached() and self._silent.pop(connection)",
    )


@mutant(466, "a blocking client that is dropped runs on", scenario=who_is_dropped_is_closed)
def dropped_client_runs_on(patch: Patch) -> None:
    """Its thread ends with the process."""
    patch.edit(LoopThread.__del__, "or sys.is_finalizing()", "or sys.is_finalizing() or reached()")
