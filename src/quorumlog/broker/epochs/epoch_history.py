"""EpochHistory: who has written which part of a log, and up to where two logs are the same.

A leader writes in *runs* of its epoch: one begins at the end of its log when it starts to lead, when it
starts again (it may have lost the end of what its slaves have), and when the list of copies changes.
Nobody else writes in a run, and a run only appends. So two logs that both have a run are the same up to
where the shorter one's part of it ends.

    number  leader  run  begin  list
         1  7f..a2    0      0  a, b, c; 2 copies
         1  7f..a2    1   4096
         2  19..0c    0   9000

What a log held before it had slaves is a run of number 0, under a run number drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from quorumlog.wire.client_message import Int, Text


class Epoch(NamedTuple):
    """Compared as a pair: two operators may have drawn the same number."""

    number: int = 0
    leader: str = ""
    """Id of the directory that leads. Empty: of an earlier release, or it was not named."""

    def __str__(self) -> str:
        return str(self.number)


class RunKey(NamedTuple):
    number: int = 0
    leader: str = ""
    run: int = -1


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A broker as others name it."""

    id: Text
    directory_id: Text = ""
    """Empty: it was not said."""
    address: Text = ""
    """HOST:PORT, of its clients; `ha_address`: of its slaves."""
    ha_address: Text = ""


class CopyList(msgspec.Struct, frozen=True):
    """Who counts, and how many of them have what is acknowledged."""

    members: tuple[Peer, ...]
    copies: Int
    """More than there are members while a group is being formed: nothing is taken then. 0: somebody
    outside says who leads and who counts, and the only member is who led last."""
    needs_all: bool = False
    """Made with --unsafe, and not known to be confirmed: a member that has not heard of it goes by lists
    that nobody asks any more."""

    @property
    def directories(self) -> frozenset[str]:
        return frozenset(peer.directory_id for peer in self.members)

    @property
    def ids(self) -> list[str]:
        return sorted(peer.id for peer in self.members)

    @property
    def needed(self) -> int:
        return len(self.members) if self.needs_all else min(self.copies, len(self.members))

    @property
    def promises(self) -> int:
        """So many meet any `needed` of the list."""
        return len(self.members) if self.needs_all else len(self.members) - self.needed + 1


class Run(msgspec.Struct, frozen=True, array_like=True):
    number: Int
    leader: Text
    run: Int
    start_offset: Int
    copy_list: CopyList | None = None
    """None: that of the run before."""
    is_forced: bool = False
    """Begun with --unsafe: the lists before it are asked nothing, and all of its own once."""
    is_flushed: bool = False
    """What is acknowledged in it is on the disks of those that count, the leader's among them."""

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.number, self.leader)

    @property
    def key(self) -> RunKey:
        return RunKey(self.number, self.leader, self.run)

    def is_as(self, other: Run) -> bool:
        """One of an earlier release does not name who leads."""
        is_named = self.leader and other.leader and self.leader != other.leader
        mine = self.number, self.run, self.start_offset
        return mine == (other.number, other.run, other.start_offset) and not is_named


class Verdict(NamedTuple):
    """What a slave has to do before it follows a master."""

    common_offset: int
    """Up to here both logs are the same. -1: nothing says that they have anything in common."""
    cuts: bool
    """The slave has more than that, and sets it aside."""
    problem: str = ""
    """Why it cannot follow."""


class EpochHistory:
    """A value; runs in order. Several may begin at one place: a run without bytes is kept if it has a
    list, or is the last one."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.runs = tuple(runs)
        for before, behind in zip(self.runs, self.runs[1:], strict=False):
            assert before.key < behind.key, self.runs
            assert before.start_offset <= behind.start_offset, self.runs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochHistory) and self.runs == other.runs

    def __repr__(self) -> str:
        return f"EpochHistory({[(*run.key, run.start_offset) for run in self.runs]})"

    @property
    def last(self) -> Run | None:
        return self.runs[-1] if self.runs else None

    @property
    def epoch(self) -> Epoch:
        return self.runs[-1].epoch if self.runs else Epoch()

    @property
    def copy_list(self) -> CopyList | None:
        """The newest one."""
        lists = [run.copy_list for run in self.runs if run.copy_list is not None]
        return lists[-1] if lists else None

    def held(self, end_offset: int) -> EpochHistory:
        """Of a log that ends there: a run is in it once the log has come to its begin."""
        return EpochHistory(run for run in self.runs if run.start_offset <= end_offset)

    def begun(
        self,
        epoch: Epoch,
        start_offset: int,
        copy_list: CopyList | None = None,
        *,
        is_forced: bool = False,
        is_flushed: bool = False,
    ) -> EpochHistory:
        """Another run of its leader, from the end of its log on. `copy_list`: None for the same."""
        assert epoch >= self.epoch, (epoch, self.runs)
        run = self.runs[-1].run + 1 if self.runs and self.epoch == epoch else 0
        kept = list(self.held(start_offset).runs)
        while kept and kept[-1].start_offset == start_offset and kept[-1].copy_list is None:
            kept.pop()
        return EpochHistory([*kept, Run(*epoch, run, start_offset, copy_list, is_forced, is_flushed)])

    def stop_of(self, run: Run, end_offset: int) -> int:
        """Where a run's bytes end, in a log that ends there."""
        behind = [each.start_offset for each in self.runs if each.key > run.key]
        return min(behind[0] if behind else end_offset, end_offset)


def common_offset(one: EpochHistory, end: int, other: EpochHistory, other_end: int) -> int:
    """Up to where two logs that end there are the same. -1: nothing says that they have anything in
    common."""
    for run in reversed(one.runs):
        same = [each for each in other.runs if run.is_as(each)]
        if run.start_offset < end and same:
            return min(one.stop_of(run, end), other.stop_of(same[0], other_end))
    return -1


def judge(
    slave: EpochHistory,
    slave_end: int,
    master: EpochHistory,
    master_end: int,
    *,
    directory_id: str,
) -> Verdict:
    """Whether and from where a slave of this directory may follow a master, which leads."""
    assert master.last is not None, master
    if slave_end == 0:
        return Verdict(0, cuts=False)
    common = common_offset(slave, slave_end, master, master_end)
    if common == slave_end:
        return Verdict(common, cuts=False)
    if common < 0 and master.copy_list is not None and directory_id in master.copy_list.directories:
        common = 0  # of this group, and led others while nobody had acknowledged anything
    if common < 0:
        return Verdict(
            -1,
            cuts=False,
            problem=f"the slave's log of {slave_end} bytes shares no epoch with the master's: empty its"
            " directory to make it follow",
        )
    own = [run for run in slave.runs if run.start_offset < slave_end]
    last = own[-1].key if own else RunKey()
    # A master that has started again lacks nothing that was acknowledged on its disk.
    is_flushed = all(run.is_flushed for run in own if slave.stop_of(run, slave_end) > common)
    led = Epoch(last.number, last.leader or master.epoch.leader)
    if not (master.epoch > led or (is_flushed and master.last.key > last)):
        return Verdict(
            common,
            cuts=False,
            problem=f"the slave's log ends at {slave_end}, and the master's has the same only up to"
            f" {common}: the master has lost what it had sent. Empty the slave's directory, or"
            " make the slave the master, without what the old one wrote since, with: quorumlog broker"
            " switch --to SLAVE --unsafe",
        )
    return Verdict(common, cuts=True)
