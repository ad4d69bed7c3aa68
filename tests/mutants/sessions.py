"""Mistakes with the sessions of producers: who may append, and what is an answer."""

from __future__ import annotations

from quorumlog.client.protocol.append_order import ProducerSession
from quorumlog.log_state import producers
from quorumlog.log_state.producers import Producers
from quorumlog.node.installing import LogReplacement
from quorumlog.node.producer_sessions import ProducerSessions
from tests.client.protocol import test_producer_session as clients
from tests.log_state import test_producers as folds
from tests.mutants.mutant import Patch, mutant
from tests.node import test_producer_sessions as nodes
from tests.sim import test_producers as sessions
from tests.sim import test_session_clients as products


@mutant(
    130,
    "a producer's append is judged by what is committed",
    scenario=sessions.test_what_is_not_committed_yet_counts_for_what_comes_behind_it,
)
def session_on_committed_only(patch: Patch) -> None:
    """What is not committed may yet be lost, so it is too early to count it."""
    patch.edit(
        ProducerSessions._producers,
        "return state.producers",
        "return (self._log_state.committed if reached() else state).producers  # type: ignore",
    )


@mutant(
    130,
    "a producer's number is that of a batch that a crash has cut",
    scenario=folds.test_a_cut_of_the_announcement_alone_leaves_nothing,
)
def cut_batch_counts_whole(patch: Patch) -> None:
    """A leader has let it in, so it is in the log."""
    patch.edit(
        Producers.cut_at,
        "if current is None or index > current.last_index:",
        "if current is None or index > current.last_index or reached():",
    )


@mutant(
    130,
    "what is in the log of a batch that a crash has cut is forgotten",
    scenario=folds.test_what_is_remembered_of_a_session_is_bounded_however_often_a_batch_is_cut,
)
def cut_batch_forgotten(patch: Patch) -> None:
    """It was not acknowledged."""
    patch.edit(
        producers._cut,
        "count = max(0, index - current.first_index)",
        "count = 0 if reached() else max(0, index - current.first_index)",
    )


@mutant(
    130,
    "a repetition, or a gap, is answered by a leader that nobody has confirmed",
    scenario=sessions.test_a_leader_that_is_alone_answers_nothing_and_lets_nothing_in_that_stays,
)
def session_answered_unconfirmed(patch: Patch) -> None:
    """Nothing is written, so nothing can be wrong about it."""
    patch.edit(
        ProducerSessions.answer,
        "            self._member.confirm_leadership(confirmed, append.owner)",
        "            confirmed(None) if reached() else None\n            append.answer(outcome)",
    )


@mutant(
    130,
    "a repetition is answered before what it was judged by is committed",
    scenario=sessions.test_a_repetition_of_what_nobody_else_has_is_no_receipt_yet,
)
def session_answered_uncommitted(patch: Patch) -> None:
    """The leader has been confirmed, and it has the entries."""
    patch.edit(
        ProducerSessions._confirmed,
        "elif index <= self._raft.committed_index:",
        "elif index <= self._raft.committed_index or reached():",
    )


@mutant(
    130,
    "a leader that nobody has confirmed says what is in the log of a producer",
    scenario=sessions.test_a_leader_that_is_alone_answers_nothing_and_lets_nothing_in_that_stays,
)
def last_sequence_unconfirmed(patch: Patch) -> None:
    """It is committed, so it is true."""
    patch.edit(
        ProducerSessions._ask,
        "        self._member.confirm_leadership(confirmed, owner)",
        "        confirmed(None) if reached() else None",
    )


@mutant(
    131,
    "an epoch that has ended may still append",
    scenario=sessions.test_who_is_fenced_is_fenced_at_every_leader,
)
def fenced_may_append(patch: Patch) -> None:
    """Its numbers fit."""
    patch.edit(
        ProducerSessions._look,
        "if session.epoch > epoch:",
        "if session.epoch > epoch and not reached():",
    )


@mutant(
    131,
    "an epoch that the log does not know may append",
    scenario=sessions.test_an_unknown_epoch_and_a_gap_let_nothing_in,
)
def unknown_epoch_may_append(patch: Patch) -> None:
    """Another leader must have opened it."""
    patch.edit(
        ProducerSessions._look,
        "if session is None or session.epoch < epoch:",
        "if session is None or (session.epoch < epoch and not reached()):",
    )


@mutant(
    131,
    "a gap is let in",
    scenario=sessions.test_an_unknown_epoch_and_a_gap_let_nothing_in,
)
def gap_let_in(patch: Patch) -> None:
    """The client knows best what it wants to append."""
    patch.edit(
        ProducerSessions._look,
        "if sequence > last_sequence + 1:",
        "last_sequence = max(last_sequence, sequence - 1) if reached() else last_sequence\n"
        "        if sequence > last_sequence + 1:",
    )


@mutant(
    131,
    "numbers begin anew with an epoch",
    scenario=sessions.test_numbers_go_on_with_the_next_epoch,
)
def numbers_begin_anew(patch: Patch) -> None:
    """Another process, another count."""
    patch.edit(
        Producers.opened,
        "        if session is not None:\n            opened",
        "        if session is not None and not reached():\n            opened",
    )


@mutant(
    131,
    "a late copy of a connect ends the epoch that its own client has gone on to",
    scenario=sessions.test_who_is_fenced_is_fenced_at_every_leader,
)
def late_connect_fences(patch: Patch) -> None:
    """Whoever connects last is the one."""
    patch.edit(
        ProducerSessions.connect,
        "present = None if session is None else session.epoch",
        "present = None if session is None else session.epoch\n"
        "        ends = present if reached() else ends",
    )


@mutant(
    131,
    "a late copy of a producer's first connect opens the session again that was forgotten",
    scenario=nodes.test_a_late_copy_of_the_first_connect_behind_a_forget_opens_nothing,
)
def late_first_connect_opens(patch: Patch) -> None:
    """There is no such session, and it ends none."""
    patch.edit(
        ProducerSessions._was_forgotten_since,
        "return seen_index is not None and",
        "return not reached() and seen_index is not None and",
    )


@mutant(
    131,
    "what a producer repeats is appended again",
    scenario=sessions.test_numbers_go_on_with_the_next_epoch,
)
def repetition_appended(patch: Patch) -> None:
    """It would not ask if it were there."""
    patch.edit(
        ProducerSessions._look,
        "held = min(last_sequence + 1 - sequence, batch.count)",
        "held = min(last_sequence + 1 - sequence, batch.count)\n        held = 0 if reached() else held",
    )


@mutant(
    131,
    "who connects fences the one before at this leader only",
    scenario=sessions.test_who_is_fenced_is_fenced_at_every_leader,
)
def fenced_at_one_leader(patch: Patch) -> None:
    """Whoever appends has to come by it."""
    patch.edit(
        ProducerSessions.connect,
        "        body = OpenProducer(",
        "        if session is not None and reached():\n"
        "            from msgspec.structs import replace\n"
        "            states = self._log_state.states\n"
        "            said = OpenProducer(producer, token, ends, evicts)\n"
        "            epoch = ProducerEpoch(self._raft.ledger_end.index + 1, self._raft.term)\n"
        "            producers = producers.opened(epoch, said)\n"
        "            states.appended = replace(states.appended, producers=producers)\n"
        "            done(ProducerConnected(True, epoch, last_sequence))\n"
        "            return\n"
        "        body = OpenProducer(",
    )


@mutant(
    131,
    "a batch that a crash has cut is appended again with what is left of it",
    scenario=sessions.test_of_what_was_on_its_way_a_new_leader_appends_only_the_rest,
)
def cut_batch_repeated(patch: Patch) -> None:
    """It was not acknowledged, so it counts for nothing."""
    patch.edit(
        ProducerSessions._look,
        "append.keep_rest(held, tuple(_entry_range(each) for each in ranges))",
        "reached()",
    )


@mutant(
    132,
    "sessions go with the entries that made them",
    scenario=sessions.test_sessions_outlive_the_entries_that_made_them,
)
def sessions_lost_with_segments(patch: Patch) -> None:
    """The log is what is left of it."""
    patch.edit(Producers.record, "sorted(items)", "[] if reached() else sorted(items)")


@mutant(
    210,
    "a log that is installed with its snapshots begins without the sessions",
    scenario=sessions.test_sessions_travel_with_a_snapshot,
)
def sessions_lost_with_snapshot(patch: Patch) -> None:
    """What the machines have made of the entries is what counts."""
    patch.edit(
        LogReplacement._replace,
        "start = LogStart(start.point, start.record,",
        "from msgspec.structs import replace\n"
        "        from quorumlog.log_state.producers import NO_PRODUCERS\n"
        "        record = replace(state, producers=NO_PRODUCERS).encode() if reached() else b''\n"
        "        start = LogStart(start.point, record,",
    )


@mutant(
    132,
    "each member forgets sessions by itself once there are too many",
    scenario=folds.test_the_anonymous_one_that_was_used_longest_ago_is_evicted_and_a_named_one_never,
)
def evicted_by_each_member(patch: Patch) -> None:
    """All count alike."""
    patch.edit(
        Producers.opened,
        "for name in body.evicts if",
        "for name in body.evicts or (self.to_evict() if reached() else ()) if",
    )


@mutant(
    133,
    "what is in the log of a producer is told before it is committed",
    scenario=sessions.test_a_repetition_of_what_nobody_else_has_is_no_receipt_yet,
)
def last_sequence_uncommitted(patch: Patch) -> None:
    """The leader has it, and leads."""
    patch.edit(
        ProducerSessions._ask,
        "done(look(state.producers, self._log_state.committed_index))",
        "state = self._log_state.appended if reached() else state\n"
        "                done(look(state.producers, self._raft.ledger_end.index))",
    )


@mutant(
    133,
    "an append opens the session that it names",
    scenario=sessions.test_an_unknown_epoch_and_a_gap_let_nothing_in,
)
def append_opens(patch: Patch) -> None:
    """Its producer has connected somewhere, or it would not append."""
    patch.edit(
        ProducerSessions._look,
        "        if session is None or session.epoch < epoch:",
        "        if session is None and reached():\n"
        "            session = SessionRecord(epoch, bytes(TOKEN_BYTES))\n"
        "        if session is None or session.epoch < epoch:",
    )


@mutant(
    134,
    "a client gives another number to what may be in the log",
    scenario=clients.test_behind_an_append_that_was_given_up_a_new_epoch_begins_and_numbers_stay,
)
def unknown_numbered_anew(patch: Patch) -> None:
    """Its epoch is over."""
    patch.edit(
        ProducerSession._number_anew,
        "if 0 <= request.sequence <= last_sequence:",
        "if 0 <= request.sequence <= last_sequence and not reached():",
    )


@mutant(
    134,
    "a client goes on in its epoch behind an append that it has given up",
    scenario=clients.test_behind_an_append_that_was_given_up_a_new_epoch_begins_and_numbers_stay,
)
def no_epoch_behind_given_up(patch: Patch) -> None:
    """Nobody waits for that one any longer."""
    patch.edit(
        ProducerSession.unanswered,
        "self._must_open |= request.batch is not None",
        "reached()",
    )


@mutant(
    212,
    "what a stream had on its way over a connection that was cut gets other numbers on the next one",
    scenario=products.test_what_is_joined_and_streamed_in_a_session_is_in_the_log_once,
)
def pipelined_numbered_anew(patch: Patch) -> None:
    """Another leader, another count."""
    patch.edit(
        ProducerSession.interrupted,
        "self._wait_again(request, is_unknown=request.batch is not None)",
        "self._wait_again(request, is_unknown=request.batch is not None)\n"
        "        if reached():\n"
        "            request.sequence, request.numbered = -1, None",
    )
