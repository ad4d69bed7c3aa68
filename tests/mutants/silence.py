"""Mistakes with silent followers: what is sent again, what still counts, who goes on leading."""

from __future__ import annotations

from quorumlog.consensus.dispatcher import EntryDispatcher, PushWindow
from quorumlog.consensus.elector import LeaderElector
from quorumlog.consensus.replication import DataProgress, Replication
from quorumlog.node.sending import PushSender
from quorumlog.server.peers.peer_link import PeerLink
from tests.consensus import test_silence as cores
from tests.mutants.mutant import Patch, mutant
from tests.server import test_moving_data as peer_links
from tests.sim import test_link_scenarios as links


@mutant(
    40,
    "silence has everything sent again",
    scenario=links.test_a_slow_disk_gets_no_push_twice,
)
def silence_sends_all_again(patch: Patch) -> None:
    """What is not answered in time is lost."""
    patch.edit(
        EntryDispatcher._look_into_silence,
        "        self._window.back_off()\n"
        "        if self._unanswered >= ASKED_IN_VAIN:\n"
        "            self._again = range(self.held_index + 1, self._window.pushes[0][0] + 1)\n",
        "        reached()\n        self._rewind()\n",
    )


@mutant(
    40,
    "silence is looked into as often the tenth time as the first",
    scenario=cores.test_without_any_answer_the_first_push_goes_again_and_each_time_later,
)
def silence_without_back_off(patch: Patch) -> None:
    """The next try may be the one that arrives."""
    patch.edit(
        EntryDispatcher._look_into_silence,
        "        self._window.back_off()\n",
        "        reached()\n",
    )


@mutant(
    40,
    "any acknowledgement makes the wait short again",
    scenario=cores.test_a_wait_stays_as_long_as_it_became_until_a_push_was_timed,
)
def any_answer_ends_patience(patch: Patch) -> None:
    """Whoever answers is there."""
    patch.edit(
        PushWindow.acknowledge,
        "        while self.pushes and",
        "        reached()\n        self.forget_silence()\n        while self.pushes and",
    )


@mutant(
    40,
    "an outage is taken for the time that an answer takes",
    scenario=cores.test_an_outage_says_nothing_about_the_time_that_an_answer_takes,
)
def outage_is_timed(patch: Patch) -> None:
    """The entry left then, and is acknowledged now."""
    patch.edit(
        PushWindow.drop_from,
        "        if self._timed is not None and self._timed[0] >= index:\n",
        "        if self._timed is not None and self._timed[0] >= index and not reached():\n",
    )


@mutant(
    40,
    "what was lost goes again with all that was sent behind it",
    scenario=cores.test_of_a_window_only_what_was_lost_goes_again,
)
def window_goes_again(patch: Patch) -> None:
    """What comes before the lost one is all that the follower can have."""
    patch.edit(
        EntryDispatcher._on_commit_response,
        "min(response.first_index, self._write_index)",
        "self._write_index if reached() else 0",
    )


@mutant(
    40,
    "an answer to an older question has what is on its way sent again",
    scenario=cores.test_an_answer_counts_unless_something_went_again_since_it_was_asked_for,
)
def older_answer_counts(patch: Patch) -> None:
    """Whoever says that something is missing lacks it."""
    patch.edit(
        EntryDispatcher._on_commit_response,
        "if response.number >= self._arrival_question:",
        "if response.number >= self._arrival_question or reached():",
    )


@mutant(
    40,
    "only the answer to the newest question counts",
    scenario=cores.test_an_answer_counts_unless_something_went_again_since_it_was_asked_for,
)
def newest_answer_counts(patch: Patch) -> None:
    """It knows most. But on a long way there is always a newer question."""
    patch.edit(
        EntryDispatcher._on_commit_response,
        "if response.number >= self._arrival_question:",
        "if response.number == self._next_question - 1 or not reached():",
    )


@mutant(
    40,
    "what goes again takes room in the window once more",
    scenario=cores.test_what_goes_again_takes_no_more_room,
)
def resend_fills_window(patch: Patch) -> None:
    """It is on its way twice."""
    patch.edit(
        EntryDispatcher.on_pushed,
        "            self._wait_for_answer()\n            return True\n",
        "            self._wait_for_answer()\n"
        "            reached()\n"
        "            self._window.add(last_index, size_bytes, self._state.now_ms)\n"
        "            return True\n",
    )


@mutant(
    40,
    "a push on a slow link is taken for lost although its bytes move",
    scenario=links.test_the_slowest_link_carries_no_push_twice,
)
def moving_bytes_are_silence(patch: Patch) -> None:
    """Only an answer says that somebody is there."""
    patch.edit(EntryDispatcher.on_bytes_moved, "        self._unanswered = 0", "        reached()")


@mutant(
    40,
    "nothing is asked for as long as bytes move",
    scenario=links.test_a_push_that_a_follower_drops_goes_again_while_newer_ones_arrive,
)
def moving_bytes_put_questions_off(patch: Patch) -> None:
    """What is not answered is on a slow way. But a push that the follower has dropped is on none, and
    with a small steady load it takes hours until there is room for no newer one."""
    patch.edit(
        EntryDispatcher.on_bytes_moved,
        "        self._unanswered = 0",
        "        reached()\n        if self._window.pushes:\n            self._wait_for_answer()",
    )


@mutant(
    40,
    "a push that its connection has no room for counts as sent",
    scenario=links.test_a_connection_without_room_is_told_to_the_leader_which_sends_that_push_later,
)
def push_into_full_link_counts(patch: Patch) -> None:
    """The resend will see to it."""
    patch.edit(
        PushSender._send,
        "if self._host.send(Envelope(order.to, message)):",
        "if self._host.send(Envelope(order.to, message)) or reached():",
    )


@mutant(
    40,
    "a connection that had no room is left alone for as long as what went before is acknowledged",
    scenario=links.test_a_full_link_is_used_to_nine_tenths_while_what_went_before_is_acknowledged,
)
def answers_prolong_a_pause(patch: Patch) -> None:
    """It has enough to do."""
    patch.edit(
        EntryDispatcher.tick,
        "if now_ms < self._paused_until_ms:",
        "if now_ms < self._paused_until_ms or (now_ms < self._resend_at_ms and reached()):",
    )


@mutant(
    40,
    "a repair's bytes behind a push count as if the push moved",
    scenario=peer_links.test_bytes_that_move_behind_the_newest_push_say_nothing_of_it,
)
def repair_starves_push(patch: Patch) -> None:
    """They are on the same connection, so it works. But a push that was lost in front of them is not
    sent again while they pass."""
    patch.edit(
        PeerLink.has_moved,
        "min(acknowledged_bytes, self._pushed_bytes)",
        "acknowledged_bytes if reached() else 0",
    )


@mutant(
    41,
    "a mark stays where it was although COMPARE shows that the disk was set back",
    scenario=cores.test_a_mark_falls_to_what_compare_shows,
)
def mark_outlives_its_disk(patch: Patch) -> None:
    """A mark only rises."""
    patch.edit(
        Replication._on_held_at_most,
        "        if self.acks",
        "        reached()\n        if False and self.acks",
    )


@mutant(
    42,
    "a leader goes on for ever although its entries arrive nowhere",
    scenario=links.test_a_leader_whose_large_frames_arrive_nowhere_makes_way_for_another,
)
def unheard_leader_stays(patch: Patch) -> None:
    """A majority answers its heartbeats."""
    patch.edit(DataProgress.gives_up, "        return True", "        return not reached()")


@mutant(
    42,
    "a leader whose entries arrive nowhere asks for votes as soon as it has stepped down",
    scenario=links.test_a_leader_whose_large_frames_arrive_nowhere_makes_way_for_another,
)
def unheard_leader_comes_back(patch: Patch) -> None:
    """The longest log should lead."""
    patch.edit(
        LeaderElector.step_down_unheard,
        "        self._leaves_it_until_ms = self._state.now_ms + 3 * self._config.election_timeout_ms\n",
        "        reached()\n",
    )


@mutant(
    42,
    "a leader steps down because its links are slow",
    scenario=links.test_a_slow_link_deposes_nobody,
)
def slow_leader_steps_down(patch: Patch) -> None:
    """No mark has risen for so long."""
    patch.edit(
        Replication.on_bytes_moved,
        "                self.progress.note(dispatcher.to)",
        "                reached()",
    )


@mutant(
    42,
    "bytes that a machine takes are progress although entries wait there for a disk that hangs",
    scenario=links.test_a_small_steady_load_hides_no_disks_that_hang,
)
def taken_bytes_are_progress(patch: Patch) -> None:
    """It takes what it is sent, so its link is merely slow."""
    patch.edit(
        Replication.on_bytes_moved,
        "if dispatcher.arrived_index <= dispatcher.held_index:",
        "if dispatcher.arrived_index <= dispatcher.held_index or reached():",
    )
