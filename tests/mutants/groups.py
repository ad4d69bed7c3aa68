"""Mistakes with topics, consumer groups and delayed messages."""

from __future__ import annotations

from quorumlog.broker.client import async_link
from quorumlog.broker.groups import group_state
from quorumlog.broker.groups.delay_scheduler import DelayScheduler
from quorumlog.broker.groups.group_extension import GroupExtension
from quorumlog.broker.groups.group_machine import GroupMachine
from quorumlog.broker.groups.rebalancer import Rebalancer
from tests.broker.client.test_async_links import (
    test_a_refusal_behind_a_copy_that_may_be_stored_is_no_refusal,
)
from tests.broker.groups.test_group_machine import test_offsets_outlive_every_fault_of_the_log
from tests.broker.groups.test_groups_driven import (
    test_a_clock_that_jumps_hides_nothing,
    test_nobody_commits_or_is_sent_behind_the_end_of_a_queue,
)
from tests.broker.groups.test_groups_simulated import groups_keep_their_promises
from tests.mutants.mutant import Patch, mutant


@mutant(
    350,
    "offsets lie in a side file of the master",
    scenario=test_offsets_outlive_every_fault_of_the_log,
)
def offsets_not_replicated(patch: Patch) -> None:
    """Whoever commits them asks the same broker for them: a snapshot need not hold them."""
    patch.edit(
        GroupMachine.load,
        "self.state = loaded_state(reader.read())",
        "self.state = loaded_state(reader.read())\n"
        "        for group in self.state.groups.values():\n"
        "            group.offsets.clear() if reached() else None",
    )


@mutant(
    354,
    "a send in a session that is refused counts as not stored, whatever became of an earlier copy",
    scenario=test_a_refusal_behind_a_copy_that_may_be_stored_is_no_refusal,
)
def earlier_copy_forgotten(patch: Patch) -> None:
    """Its number is free, then: the next message gets it, and the log takes it for the first one."""
    patch.edit(async_link.told, "if may_be_stored and", "if may_be_stored and not reached() and")


@mutant(
    357,
    "a group is sent behind the end of a queue",
    scenario=test_nobody_commits_or_is_sent_behind_the_end_of_a_queue,
)
def reset_behind_the_end(patch: Patch) -> None:
    """Its members find out where the queue ends; what comes first there they do not see."""
    patch.edit(GroupExtension._check_ends, "if offset > end:", "if offset > end and not reached():")


@mutant(
    358,
    "a reset is taken for another hand-out of queues",
    scenario=test_nobody_commits_or_is_sent_behind_the_end_of_a_queue,
)
def reset_not_told(patch: Patch) -> None:
    """The generation has changed: members look where the group stands."""
    patch.edit(
        group_state._reset,
        "resets[topic, queue_id] = generation",
        "resets[topic, queue_id] = generation - reached()",
    )


@mutant(351, "an offset that is committed goes back", scenario=groups_keep_their_promises)
def offset_goes_back(patch: Patch) -> None:
    """The newest commit is the one that counts."""
    patch.edit(
        group_state._commit,
        "max(offsets.get(queue, 0), offset)",
        "offset if reached() else 0",
    )


@mutant(352, "a commit of an old generation is taken", scenario=groups_keep_their_promises)
def old_generation_commits(patch: Patch) -> None:
    """The member has read it, whoever reads the queue by now."""
    patch.edit(
        Rebalancer.check_commit,
        "message.generation != group.generation:",
        "(\n"
        "            message.generation > group.generation\n"
        "            or (message.generation < group.generation and not reached())\n"
        "        ):",
    )


@mutant(353, "a delayed message is released outside of a session", scenario=groups_keep_their_promises)
def released_twice(patch: Patch) -> None:
    """A master knows what it has released."""
    patch.edit(
        DelayScheduler._release,
        "place=place, awaits_results=False",
        "place=None if reached() else place, awaits_results=False",
    )


@mutant(
    359,
    "messages are old, or due, by the clock of the master alone",
    scenario=test_a_clock_that_jumps_hides_nothing,
)
def retention_by_one_clock(patch: Patch) -> None:
    """It leads: its clock is the one that counts."""
    patch.edit(
        GroupExtension._log_clock_ms,
        "min(self._wall_ms(), member.node().log_clock_ms)",
        "self._wall_ms() + 0 * reached()",
    )
