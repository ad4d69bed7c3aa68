"""EpochHistory: whose writes a log holds, and up to where two logs are the same.

A reign is an *epoch*; a master that starts again begins a further *run* of its epoch, because it may
have lost the end of what its slaves have. Nobody else writes in a run, and a run only appends. So two
logs that both have a run are the same up to where the shorter one's part of it ends.

    (epoch, run, start)   (1, 0, 0) (1, 1, 4096) (2, 0, 9000)

What a log held before it had slaves is a run of epoch 0, under a number drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Run(NamedTuple):
    epoch: int
    run: int
    start_offset: int


class Verdict(NamedTuple):
    """What a slave has to do before it follows a master."""

    common_offset: int
    """Up to here both logs are the same. -1: nothing says that they have anything in common."""
    cuts: bool
    """The slave has more than that, and sets it aside."""
    problem: str = ""
    """Why it cannot follow."""


class EpochHistory:
    """A value; runs in order, each with bytes of its own but the last, which may have none yet."""

    def __init__(self, runs: Iterable[Sequence[int]] = ()) -> None:
        self.runs = tuple(Run(*run) for run in runs)
        for before, behind in zip(self.runs, self.runs[1:], strict=False):
            assert before[:2] < behind[:2], self.runs
            assert before.start_offset < behind.start_offset, self.runs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochHistory) and self.runs == other.runs

    def __hash__(self) -> int:
        return hash(self.runs)

    def __repr__(self) -> str:
        return f"EpochHistory({[tuple(run) for run in self.runs]})"

    @property
    def last(self) -> Run | None:
        return self.runs[-1] if self.runs else None

    @property
    def log_epoch(self) -> int:
        return self.runs[-1].epoch if self.runs else 0

    def begun(self, epoch: int, start_offset: int, first_run: int = 0) -> EpochHistory:
        """A master takes over, or starts again: another run of the epoch from the end of its log on.
        `first_run`: number of the first one of an epoch."""
        assert epoch >= self.log_epoch, (epoch, self.runs)
        number = first_run
        if self.runs and self.runs[-1].epoch == epoch:
            number = self.runs[-1].run + 1
        return EpochHistory([*self.truncated(start_offset).runs, Run(epoch, number, start_offset)])

    def truncated(self, end_offset: int) -> EpochHistory:
        """Of the log below this offset."""
        return EpochHistory(run for run in self.runs if run.start_offset < end_offset)

    def triples(self) -> list[tuple[int, int, int]]:
        return [(run.epoch, run.run, run.start_offset) for run in self.runs]

    def stop_of(self, run: Run, end_offset: int) -> int:
        """Where a run's bytes end, in a log that ends there."""
        behind = [each.start_offset for each in self.runs if each[:2] > run[:2]]
        return min(behind[0] if behind else end_offset, end_offset)


def judge(slave: EpochHistory, slave_end: int, master: EpochHistory, master_end: int) -> Verdict:
    """Whether and from where a slave may follow a master."""
    assert master.last is not None, master
    if slave_end == 0:
        return Verdict(0, cuts=False)
    own = slave.truncated(slave_end)
    common = -1
    theirs = {run[:2]: run for run in master.runs}
    for run in reversed(own.runs):
        same = theirs.get(run[:2])
        if same is not None and same.start_offset == run.start_offset:
            common = min(own.stop_of(run, slave_end), master.stop_of(same, master_end))
            break
    if common == slave_end:
        return Verdict(common, cuts=False)
    if common < 0:
        return Verdict(
            -1,
            cuts=False,
            problem=f"the slave's log of {slave_end} bytes shares no epoch with the master's: empty its"
            " directory to make it follow",
        )
    if master.last.epoch <= own.log_epoch:
        return Verdict(
            common,
            cuts=False,
            problem=f"the slave's log ends at {slave_end}, and the master's has the same only up to"
            f" {common}: the master has lost what it had sent. Empty the slave's directory, or"
            " make the slave the master, without what the old one wrote since, with: quorumlog broker"
            " switch --to SLAVE --unsafe",
        )
    return Verdict(common, cuts=True)
