"""A member says how full its disk is while there is time to do something about it."""

from __future__ import annotations

from typing import cast

from quorumlog.config import StoreConfig
from quorumlog.entry import Durability
from quorumlog.errors import StoreFailure
from quorumlog.figures import without_figures
from quorumlog.log_state.log_state import LostRange
from quorumlog.server.status_report import DiskReport
from quorumlog.store.disk import DiskUsage
from quorumlog.store.member_directory import MemberDirectory


class Directory:
    path = "/data"
    durability = Durability.SYNC
    ratio: float | StoreFailure = 0.5

    def usage(self) -> DiskUsage | StoreFailure:
        ratio = self.ratio
        return ratio if isinstance(ratio, StoreFailure) else DiskUsage(1000, round(1000 * (1 - ratio)))


def test_a_disk_that_fills_up_is_a_problem_before_appends_are_refused() -> None:
    directory = Directory()
    report = DiskReport(cast(MemberDirectory, directory), lambda work, done: done(work()))
    quiet, keeping = StoreConfig(), StoreConfig(file_reserved_hours=72)
    assert report.problem(quiet) == ""
    directory.ratio = 0.86
    report.problem(quiet)
    assert "nearly full (now 86 %) and nothing is deleted" in report.problem(quiet)
    assert "oldest segments are deleted at any age, also past readers;" in report.problem(keeping)
    lost = [LostRange("billing", 3, 10), LostRange("mail", 0, 10)]
    assert (
        "also past readers (now billing has lost entries 3 to 9, mail has lost entries 0 to 9);"
        in report.problem(keeping, lost)
    )
    assert "90 % (disk_full_ratio)" in report.problem(keeping)
    assert "but only archived entries" in report.problem(
        StoreConfig(file_reserved_hours=72, retention="archived")
    )
    assert "retention = off" in report.problem(StoreConfig(file_reserved_hours=72, retention="off"))
    never_forced = StoreConfig(disk_space_ratio_to_force_clean=1.0, disk_full_ratio=0.8)
    assert (
        "above 80 % (disk_full_ratio), so appends are refused once the reserved space is used"
        in report.problem(never_forced)
    )
    words = without_figures(report.problem(keeping, lost))
    directory.ratio = 0.87
    report.problem(keeping)
    assert "87 %" in report.problem(keeping)
    assert without_figures(report.problem(keeping)) == words, "each per cent is another sentence"
    directory.ratio = StoreFailure("cannot be measured")
    assert "87 %" in report.problem(quiet)
    directory.ratio = 0.8
    report.problem(quiet)
    assert report.problem(quiet) == ""
    directory.durability, directory.ratio = Durability.MEMORY, 0.99
    assert report.problem(quiet) == ""
