"""Mistakes with reads: what is granted too early, and what is taken for fresher than it is."""

from __future__ import annotations

from quorumlog.consensus.elector import HeartbeatAnswers, LeaderElector
from quorumlog.consensus.reads import ReadFreshness, ReadIndex, ReadQuestions
from tests.consensus import test_fresh_reads as stories
from tests.mutants.mutant import Patch, mutant
from tests.sim import test_fresh_read_scenarios as scenes


@mutant(
    170,
    "a new leader answers its followers' questions before it has committed in its term",
    scenario=scenes.test_the_new_leader_answers_followers_once_it_has_committed_in_its_term,
)
def question_answered_before_own_commit(patch: Patch) -> None:
    """A majority has confirmed it, and all that is committed is in its log."""
    patch.edit(
        ReadIndex.request,
        "index = max(committed_index, self._term_first_index)",
        "index = committed_index if reached() else 0",
    )


@mutant(
    171,
    "a follower answers a read before it has committed up to the index that it was told",
    scenario=scenes.test_a_follower_answers_only_what_it_has_committed_itself,
)
def read_granted_before_it_is_committed_here(patch: Patch) -> None:
    """The leader has confirmed it."""
    patch.edit(
        ReadQuestions.take_grants,
        "self._answers[0][0] <= self._state.committed_index:",
        "(self._answers[0][0] <= self._state.committed_index or reached()):",
    )
    patch.edit(
        ReadQuestions.take_grants,
        "ReadGrant(number, index)",
        "ReadGrant(number, min(index, self._state.committed_index))",
    )


@mutant(
    172,
    "a read joins the question that is on its way",
    scenario=stories.test_what_arrives_while_a_question_is_on_its_way_waits_for_the_next_one,
)
def read_joins_an_older_question(patch: Patch) -> None:
    """The answer will be newer than the read."""
    patch.edit(
        ReadQuestions.request,
        "        self._waiting.append(number)",
        "        (self._pending if self._pending and reached() else self._waiting).append(number)",
    )


@mutant(
    172,
    "a follower's question is answered by a round that was sent before it came",
    scenario=stories.test_a_leader_answers_a_follower_after_a_round_that_began_later,
)
def read_joins_an_older_round(patch: Patch) -> None:
    """Its answers come later than the read."""
    patch.edit(
        ReadIndex.request, "current_round + 1))", "current_round if reached() else current_round))"
    )


@mutant(
    173,
    "a leader tells a round that no quorum has answered",
    scenario=stories.test_a_leader_tells_the_round_that_a_quorum_has_answered,
)
def unconfirmed_round_told(patch: Patch) -> None:
    """It leads, or it would know."""
    patch.edit(
        HeartbeatAnswers.fresh_round,
        "self.confirmed_round(newest_round) if",
        "newest_round if reached() and",
    )


@mutant(
    174,
    "the age counts from when a round arrived",
    scenario=stories.test_the_age_counts_from_before_the_round_was_sent_however_long_it_was_on_its_way,
)
def age_from_arrival(patch: Patch) -> None:
    """Networks are fast."""
    patch.edit(
        ReadFreshness._note_round,
        "self._rounds.append((request.round, sent_after_ms))",
        "reached()\n            self._rounds.append((request.round, self._state.now_ms))",
    )


@mutant(
    175,
    "a member is fresh before it has committed what its leader told",
    scenario=stories.test_only_what_is_committed_here_makes_fresh,
)
def fresh_before_it_is_committed_here(patch: Patch) -> None:
    """The leader knows the index."""
    patch.edit(
        ReadFreshness.since_ms,
        "while self._reported and self._reported[0][0] <= self._state.committed_index:",
        "while self._reported and reached():",
    )


@mutant(
    176,
    "a leader tells a confirmed round before it has committed in its term",
    scenario=stories.test_a_leader_tells_nothing_before_it_has_committed_in_its_term,
)
def round_told_before_own_commit(patch: Patch) -> None:
    """A quorum has answered it."""
    patch.edit(
        HeartbeatAnswers.fresh_round,
        "if self._state.has_committed_in_its_term else 0",
        "if self._state.has_committed_in_its_term or reached() else 0",
    )


@mutant(
    177,
    "a round that is repeated to who connects counts as sent then",
    scenario=stories.test_a_leader_tells_the_round_that_a_quorum_has_answered,
)
def repeated_round_counts_as_sent(patch: Patch) -> None:
    """It is the newest round."""
    patch.edit(
        LeaderElector.on_connected,
        "self._send_heartbeat(replica)",
        "reached()\n            self._send_heartbeat(replica, self.answers.round_of(replica))",
    )


@mutant(
    178,
    "what an answer to one leader says counts for the rounds of the next",
    scenario=stories.test_another_leader_begins_anew_and_what_is_known_stays_known,
)
def answers_to_another_leader_count(patch: Patch) -> None:
    """Rounds only rise."""
    patch.edit(ReadFreshness.on_heartbeat, "if followed != self._followed:", "if not reached():")
