"""Mistakes with disks of which no sync returns, and with those that have no space."""

from __future__ import annotations

from quorumlog.consensus.member_state import MemberState
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.node.installing import LogReplacement
from quorumlog.node.ledger_node import LedgerNode
from quorumlog.node.retention import Retention
from quorumlog.node.writing import LogWriter
from quorumlog.store.ledger_space import LedgerSpace
from tests.mutants.mutant import Patch, mutant
from tests.sim import test_hanging_disks as hanging
from tests.sim import test_retention as retention


@mutant(
    400,
    "a leader whose disk hangs leads on",
    scenario=hanging.test_a_leader_whose_disk_hangs_hands_over,
)
def leads_with_hanging_disk(patch: Patch) -> None:
    """The others commit what it appends."""
    patch.edit(MemberState.is_unfit_leader, "or hangs_alone", "or (hangs_alone and not reached())")


@mutant(
    400,
    "a member whose disk hangs takes leadership over",
    scenario=hanging.test_who_has_a_disk_that_hangs_takes_nothing_over,
)
def takes_over_with_hanging_disk(patch: Patch) -> None:
    """Its log is the same."""
    patch.edit(
        MemberState.is_fit_to_lead,
        "self.lacks_space or self.disk_hangs)",
        "self.lacks_space or (self.disk_hangs and not reached()))",
    )


@mutant(401, "a member hears more while its term and vote are on their way to the disk")
def hears_while_promises_wait(patch: Patch) -> None:
    """What it would answer waits as well."""
    patch.edit(
        LedgerNode.receive,
        "        if self._held is not None:\n",
        "        if self._held is not None and not reached():\n",
    )


@mutant(
    401,
    "what comes while a promise waits is kept without a bound",
    scenario=hanging.test_what_comes_while_a_promise_waits_is_bounded_and_missed_by_nobody,
)
def keeps_all_that_comes(patch: Patch) -> None:
    """It will be asked for again otherwise."""
    patch.edit(
        LedgerNode._hold_back,
        "if self._messages_held_back < MOST_HELD_BACK:",
        "if self._messages_held_back < MOST_HELD_BACK or reached():",
    )


@mutant(
    402,
    "a member whose disk hangs makes space on its loop",
    scenario=hanging.test_a_member_whose_disk_hangs_makes_no_space_on_its_loop,
)
def loop_waits_for_hanging_disk(patch: Patch) -> None:
    """There is room on the disk."""
    patch.edit(
        LedgerSpace._refuse_to_make, "if self.makes_none and", "if self.makes_none and not reached() and"
    )


@mutant(
    402,
    "a member whose disk hangs says that it is full",
    scenario=retention.test_no_segment_goes_that_a_reader_holds_for_disks_that_hang,
)
def hanging_disk_counts_as_full(patch: Patch) -> None:
    """It takes nothing either."""
    patch.edit(
        LedgerNode.receive,
        "if self._disk_hangs or self.log_state.is_noting:",
        "if (self._disk_hangs and not reached()) or self.log_state.is_noting:",
    )


@mutant(
    403,
    "a member that is fed and has no space is waited for without a bound",
    scenario=retention.test_a_member_that_is_fed_and_has_no_space_is_waited_for_within_its_budget,
)
def full_member_is_fed_for_ever(patch: Patch) -> None:
    """It will get space one day."""
    patch.edit(Retention._is_fed, "not peer.lacks_space", "(not peer.lacks_space or reached())")


@mutant(
    403,
    "a member without space for a snapshot says that the start of the log may go on",
    scenario=retention.test_a_member_that_has_no_space_for_a_snapshot_is_waited_for_within_its_budget,
)
def lack_of_space_is_not_said(patch: Patch) -> None:
    """It is tried again in a second."""
    patch.edit(
        LogReplacement.on_request,
        "if lacks and self._fetcher.lacks_space:",
        "if lacks and self._fetcher.lacks_space and not reached():",
    )


@mutant(
    403,
    "nothing is written while most disks are full, nor what would free them",
    scenario=retention.test_two_full_disks_of_three_get_what_frees_them,
)
def full_disks_stay_full(patch: Patch) -> None:
    """It could not be committed."""
    patch.edit(
        RaftNode.propose,
        "frees_space=kind is EntryKind.KEEP",
        "frees_space=kind is EntryKind.KEEP and not reached()",
    )


@mutant(
    403,
    "what frees a full disk waits for data in front of it that has no room",
    scenario=retention.test_two_full_disks_of_three_get_what_frees_them,
)
def freed_after_data(patch: Patch) -> None:
    """Data is above the watermark, whatever comes behind it."""
    patch.edit(
        LogWriter._plan_together,
        "if not any(batch.frees_space for batch in batches):",
        "if not any(batch.frees_space for batch in batches) or reached():",
    )


@mutant(
    403,
    "a member that is fed and takes nothing is waited for without a bound",
    scenario=retention.test_a_member_that_is_fed_and_takes_nothing_is_waited_for_a_minute,
)
def silent_member_is_fed_for_ever(patch: Patch) -> None:
    """It answers heartbeats."""
    patch.edit(Retention._is_fed, "is_new and is_patient", "is_new and (is_patient or reached())")
