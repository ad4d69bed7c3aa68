"""Mistakes with a log that begins above others: what may take its place, and who waits for what then."""

from __future__ import annotations

from quorumlog.consensus.handler import EntryHandler
from quorumlog.node.installing import LogDrops, LogReplacement
from quorumlog.node.sending import InstallSender
from tests.mutants.mutant import Patch, mutant
from tests.node import test_log_replacement as node_scenes
from tests.sim import test_installs as installs
from tests.sim import test_log_begin as begins


@mutant(
    85,
    "a log that holds the start makes way for it",
    scenario=node_scenes.test_a_log_that_reaches_the_start_meanwhile_is_kept,
)
def installed_over_the_start(patch: Patch) -> None:
    """The leader says that it is needed."""
    patch.edit(
        EntryHandler.judge_install, "if runs.holds(begin):", "if runs.holds(begin) and not reached():"
    )


@mutant(
    85,
    "whether a log may make way is asked with the first piece only",
    scenario=node_scenes.test_a_log_that_reaches_the_start_meanwhile_is_kept,
)
def judged_with_the_first_piece(patch: Patch) -> None:
    """What has come meanwhile was pushed by the same leader."""
    patch.edit(
        LogReplacement.on_request,
        "if refusal is not None:",
        "is_known = self._staged_file is not None and self._staged_file[0] == request.begin\n"
        "        if refusal is not None and not (is_known and reached()):",
    )


@mutant(
    85,
    "a log makes way although what it has committed reaches above the start",
    scenario=node_scenes.test_a_log_that_has_committed_above_the_start_is_kept,
)
def installed_below_the_commit(patch: Patch) -> None:
    """The leader has every committed entry."""
    patch.edit(
        EntryHandler.judge_install,
        "if begin.index > committed_index:",
        "if begin.index > committed_index or reached():",
    )


@mutant(
    86,
    "an installed member waits for the leader's end before it campaigns",
    scenario=installs.test_an_installed_member_stands_for_election_once_it_holds_what_was_committed,
)
def installed_member_waits_for_the_end(patch: Patch) -> None:
    """What the leader holds will be committed."""
    patch.edit(
        InstallSender._send,
        "committed_index=self._raft.committed_index,",
        "committed_index=self._raft.ledger_end.index + (0 if reached() else 1),",
    )


@mutant(
    84,
    "a start of the log that found no space is not saved again",
    scenario=begins.test_a_start_that_found_no_space_is_saved_once_there_is_some,
)
def start_not_saved_again(patch: Patch) -> None:
    """Retention asks again as soon as more is to go."""
    patch.edit(
        LogDrops.tick, "if self._unsaved is not None:", "if self._unsaved is not None and not reached():"
    )
