"""Mistakes with topics, consumer groups and delayed messages."""

from __future__ import annotations

from quorumlog.broker.groups import group_state
from quorumlog.broker.groups.delay_scheduler import DelayScheduler
from quorumlog.broker.groups.group_machine import GroupMachine
from quorumlog.broker.groups.rebalancer import Rebalancer
from tests.broker.groups.test_groups_simulated import groups_keep_their_promises
from tests.mutants.mutant import Patch, mutant


@mutant(350, "offsets lie in a side file of the master", scenario=groups_keep_their_promises)
def offsets_not_replicated(patch: Patch) -> None:
    """Whoever commits them asks the same broker for them: a snapshot need not hold them."""
    patch.edit(
        GroupMachine.load,
        "self.state = loaded_state(reader.read())",
        "self.state = loaded_state(reader.read())\n"
        "        for group in self.state.groups.values():\n"
        "            group.offsets.clear() if reached() else None",
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
        "message.generation > group.generation and not reached():",
    )


@mutant(353, "a delayed message is released outside of a session", scenario=groups_keep_their_promises)
def released_twice(patch: Patch) -> None:
    """A master knows what it has released."""
    patch.edit(
        DelayScheduler._release,
        "place=place, awaits_results=False",
        "place=None if reached() else place, awaits_results=False",
    )
