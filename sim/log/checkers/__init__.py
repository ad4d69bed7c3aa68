"""One file for each promise; `all_checkers` is the list."""

from __future__ import annotations

from quorumlog.testing.promises import (
    CheckedCluster,
    Checker,
    CommittedEntries,
    CommittedLog,
    Convergence,
    DurableEntries,
    LogMatching,
    OneLeader,
    SameMachines,
    Violation,
)
from sim.log.checkers.acknowledged_appends import AcknowledgedAppends
from sim.log.checkers.archived_segments import ArchivedSegments
from sim.log.checkers.bounded_memory import BoundedMemory
from sim.log.checkers.caught_up_voters import CaughtUpVoters
from sim.log.checkers.commit_rule import CommitRule
from sim.log.checkers.conditional_appends import ConditionalAppends
from sim.log.checkers.contiguous_reads import ContiguousReads
from sim.log.checkers.cuts import Cuts
from sim.log.checkers.exactly_once import ExactlyOnce
from sim.log.checkers.first_admins import FirstAdmins
from sim.log.checkers.fresh_reads import FreshReads
from sim.log.checkers.held_segments import HeldSegments
from sim.log.checkers.installs import Installs
from sim.log.checkers.known_rights import KnownRights
from sim.log.checkers.leader_completeness import LeaderCompleteness
from sim.log.checkers.marked_times import MarkedTimes
from sim.log.checkers.members_of_log import MembersOfLog
from sim.log.checkers.message_rate import MessageRate
from sim.log.checkers.monotonic_indices import MonotonicIndices
from sim.log.checkers.old_copies import OldCopies
from sim.log.checkers.one_group import OneGroup
from sim.log.checkers.promises_on_disk import PromisesOnDisk
from sim.log.checkers.quorum_on_disk import QuorumOnDisk
from sim.log.checkers.readable_logs import ReadableLogs
from sim.log.checkers.reported_positions import ReportedPositions
from sim.log.checkers.same_state import SameState
from sim.log.checkers.served_entries import ServedEntries
from sim.log.checkers.term_origin import TermOrigin
from sim.log.checkers.water_marks import WaterMarks
from sim.log.checkers.young_segments import YoungSegments

__all__ = ["NEEDS_HONEST_DISKS", "Checker", "Violation", "all_checkers", "lossy_disk_checkers"]

NEEDS_HONEST_DISKS: dict[type[Checker], str] = {
    OneGroup: "the founding list is what a directory remembers; all of them may forget it",
    OneLeader: "a directory that is put back has forgotten its vote and gives it again",
    LogMatching: "two leaders of one term write different entries of the same index and term",
    SameState: "so do the states that follow from them",
    SameMachines: "and what machines make of them",
    ReportedPositions: "and so does where a reader stands",
    HeldSegments: "a majority that has forgotten a hold lets its entries go",
    DurableEntries: "what was on a disk is no longer there, which is the fault itself",
    CommittedEntries: "a majority that has forgotten an entry commits another in its place",
    WaterMarks: "a mark counts a disk that has forgotten since",
    QuorumOnDisk: "it counts disks by what they have synced, and they lie",
    Installs: "where a log begins may have been committed by members that have forgotten it",
    LeaderCompleteness: "a majority that has forgotten an entry elects a leader without it",
    CaughtUpVoters: "what a member held when it caught up may be gone by now",
    ContiguousReads: "it compares with what is committed; ServedEntries stands in for it",
    FreshReads: "what was acknowledged may be gone",
    AcknowledgedAppends: "what was acknowledged may be gone: it is reported (losses.py), not refused",
    ConditionalAppends: "an entry that a writer had built on may be gone, and another in its place",
    ExactlyOnce: "what a session had in the log may be gone, and its numbers with it",
    Convergence: "members that committed different entries stay apart: reported as not whole",
}
"""Checkers that say nothing true of a run in which disks forget, and why. All others look on there."""


def all_checkers(cluster: CheckedCluster) -> list[Checker]:
    """In the order in which they look: some rely on what those before them have noted.

    Members in memory promise nothing of a disk.
    """
    disks = [] if cluster.profile.store == "memory" else [PromisesOnDisk(cluster)]
    marks = [MarkedTimes(cluster)] if cluster.profile.time_marks else []
    users = [KnownRights(cluster), FirstAdmins(cluster)] if cluster.profile.has_users else []
    log = CommittedLog(cluster)
    durable = DurableEntries(cluster, log)
    committed = CommittedEntries(cluster, log)
    return [
        OneGroup(cluster),
        ReadableLogs(cluster),
        TermOrigin(cluster),
        OneLeader(cluster),
        *disks,
        MonotonicIndices(cluster),
        LogMatching(cluster),
        SameState(cluster),
        MembersOfLog(cluster),
        CaughtUpVoters(cluster),
        *marks,
        *users,
        SameMachines(cluster),
        durable,
        committed,
        Cuts(cluster, log),
        Installs(cluster, log),
        WaterMarks(cluster, durable),
        QuorumOnDisk(cluster, log, durable),
        CommitRule(cluster),
        LeaderCompleteness(cluster, log),
        ContiguousReads(cluster, log, committed),
        FreshReads(cluster, log),
        AcknowledgedAppends(cluster, log),
        ConditionalAppends(cluster, log),
        ExactlyOnce(cluster, log),
        ReportedPositions(cluster),
        HeldSegments(cluster),
        YoungSegments(cluster),
        ArchivedSegments(cluster),
        MessageRate(cluster),
        BoundedMemory(cluster),
        Convergence(cluster),
        OldCopies(cluster),
    ]


def lossy_disk_checkers(cluster: CheckedCluster) -> list[Checker]:
    """What holds even if disks forget, on a majority too: nothing wrong is served, and every process
    keeps the rules for as long as it lives."""
    kept = [each for each in all_checkers(cluster) if type(each) not in NEEDS_HONEST_DISKS]
    return [*kept, ServedEntries(cluster)]
