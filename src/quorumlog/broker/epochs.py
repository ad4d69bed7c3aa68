"""Epochs of a replicated log: its history, the in-sync list and the rule for a new leader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from quorumlog.wire.client_message import Int, Text

# ---------------------------------------------------------------- EpochHistory
# Who has written which part of a log, and up to where two logs are the same.
#
# A leader writes in *runs* of its epoch: one begins at the end of its log when it starts to lead, when
# it starts again (it may have lost the end of what its slaves have), and when the list of copies
# changes. Nobody else writes in a run, and a run only appends. So two logs that both have a run are the
# same up to where the shorter one's part of it ends.
#
#     number  leader  run  begin  list
#          1  7f..a2    0      0  a, b, c; 2 copies
#          1  7f..a2    1   4096
#          2  19..0c    0   9000
#
# What a log held before it had slaves is a run of number 0, under a run number drawn at random.


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
    """Empty: not sent."""
    address: Text = ""
    """HOST:PORT, of its clients; `ha_address`: of its slaves."""
    ha_address: Text = ""


class CopyList(msgspec.Struct, frozen=True):
    """A replica list: its directories, and the number of copies of an acknowledged message."""

    members: tuple[Peer, ...]
    copies: Int
    """More than there are members while a group is being formed: no message is accepted then. 0: a
    coordinator decides the master and the in-sync set, and the only member is the last master."""
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
    """Messages acknowledged in it are on the disks of the counted brokers, the leader's included."""

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.number, self.leader)

    @property
    def key(self) -> RunKey:
        return RunKey(self.number, self.leader, self.run)

    def is_as(self, other: Run) -> bool:
        """One of an earlier release does not name the leader."""
        is_named = self.leader and other.leader and self.leader != other.leader
        mine = self.number, self.run, self.start_offset
        return mine == (other.number, other.run, other.start_offset) and not is_named


class FollowVerdict(NamedTuple):
    """Whether a slave may follow a master, and the truncation that it needs first."""

    common_offset: int
    """Up to here both logs are the same. -1: nothing says that they have anything in common."""
    cuts: bool = False
    """The slave has more than that, and sets it aside."""
    problem: str = ""
    """Why it cannot follow."""


class EpochHistory:
    """A value; runs in order. Several may begin at one place: a run without bytes is kept if it has a
    list, or is the last one."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.runs = tuple(runs)
        for before, behind in pairwise(self.runs):
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
        lists = (run.copy_list for run in reversed(self.runs))
        return next((each for each in lists if each is not None), None)

    def is_forced_since(self, epoch: Epoch) -> bool:
        """An operator has made another one the master with --unsafe."""
        return any(
            run.epoch > epoch
            and run.leader != epoch.leader
            and run.is_forced
            and run.copy_list is not None
            and run.copy_list.copies
            for run in self.runs
        )

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
    slave: EpochHistory, slave_end: int, master: EpochHistory, master_end: int, *, directory_id: str
) -> FollowVerdict:
    """Whether and from where a slave of this directory may follow a master, which leads."""
    assert master.last is not None, master
    if slave_end == 0:
        return FollowVerdict(0)
    common = common_offset(slave, slave_end, master, master_end)
    if common == slave_end:
        return FollowVerdict(common)
    if common < 0 and master.copy_list is not None and directory_id in master.copy_list.directories:
        common = 0  # of this group, and led others while nobody had acknowledged anything
    if common < 0:
        return FollowVerdict(
            -1,
            problem=f"the slave's log of {slave_end} bytes shares no epoch with the master's: empty its"
            " directory to make it follow",
        )
    own = [run for run in slave.runs if run.start_offset < slave_end]
    last = own[-1].key if own else RunKey()
    # A master that has started again lacks nothing that was acknowledged on its disk.
    is_flushed = all(run.is_flushed for run in own if slave.stop_of(run, slave_end) > common)
    led = Epoch(last.number, last.leader or master.epoch.leader)
    if not (master.epoch > led or (is_flushed and master.last.key > last)):
        return FollowVerdict(
            common,
            problem=f"the slave's log ends at {slave_end}, and the master's has the same only up to"
            f" {common}: the master has lost messages that it had sent. Empty the slave's directory, or"
            " make the slave the master, without what the old one wrote since, with: quorumlog broker"
            " switch --to SLAVE --unsafe",
        )
    return FollowVerdict(common, cuts=True)


# ----------------------------------------------------------------
# The rule of epochs, for a list of N directories and k copies.
#
# 1. A directory promises each number once, on its disk, and takes nothing of a lower epoch.
# 2. Acknowledged is what k of the list, the leader among them, have on disk with the begin of the
#    leader's run. Until a run has come so far, k of each list since the last run that has must have it.
# 3. A new epoch needs the promises of N - k + 1: of the newest list in the log of the one that is to
#    lead of which anybody knows that a run with it was acknowledged, and of every later one.
# 4. It is led by one of those lists, and no other of them that promised has a greater log: by its last
#    run, then by its end.
# 5. An epoch that is begun with --unsafe has a list of those that promised, and asks nothing of the
#    lists before; all of it must have its begin before anything is acknowledged, or another one leads
#    from it.


class Rank(NamedTuple):
    """Of a log, as far as it is on its disk: the greater, the more complete. A leader that has written
    nothing may have confirmed its slaves' messages up to its begin, so its run counts without bytes."""

    run: RunKey
    end: int

    def __str__(self) -> str:
        return f"up to {self.end} of epoch {self.run.number}"


def lists_in_force(history: EpochHistory, confirmed: RunKey) -> tuple[CopyList, ...]:
    """The lists to be satisfied, the newest last: that of the newest confirmed run, and every later one.
    Empty: no list was ever set by an operator."""
    lists: list[CopyList] = []
    for run in history.runs:
        if run.is_forced:
            lists.clear()
        if run.copy_list is not None:
            lists.append(replace(run.copy_list, needs_all=run.is_forced))
        if run.key <= confirmed:
            lists = [replace(each, needs_all=False) for each in lists[-1:]]
    return tuple(lists)


def held_offset(lists: Iterable[CopyList], offsets: Mapping[str, int], own_offset: int) -> int:
    """The offset up to which enough brokers of each list have the log, the leader always among them.
    `offsets`: by directory; -1: too few have ever reported."""
    held = own_offset
    for each in lists:
        found = sorted((offsets.get(one, -1) for one in each.directories), reverse=True)
        held = min(held, found[each.needed - 1])
    return held


class Shown(NamedTuple):
    """The state that a directory reports with its vote. It stays so until a newer epoch."""

    me: Peer
    history: EpochHistory
    flushed_offset: int
    confirmed: RunKey
    """The newest run of its log of which it knows that it is confirmed."""

    @property
    def rank(self) -> Rank:
        last = self.history.held(self.flushed_offset).last
        return Rank(RunKey() if last is None else last.key, self.flushed_offset)

    def in_force(self, confirmed: RunKey) -> tuple[CopyList, ...]:
        return lists_in_force(self.history.held(self.flushed_offset), confirmed)


class Count(NamedTuple):
    """The votes for a candidate, counted."""

    confirmed: RunKey
    lists: tuple[CopyList, ...]
    """In force in its log."""
    promised_by: frozenset[str]
    is_listed: bool
    ahead: list[Shown]
    """Brokers of those lists with a greater log; the greatest first."""

    @property
    def short(self) -> list[CopyList]:
        """Lists of which too few have promised."""
        return [each for each in self.lists if len(each.directories & self.promised_by) < each.promises]

    @property
    def may_lead(self) -> bool:
        return self.is_listed and not self.short and not self.ahead


def count_of(to: Shown, shown: Iterable[Shown]) -> Count:
    """`shown`: by all that promised, `to` included."""
    answers = list(shown)
    confirmed = max(each.confirmed for each in answers)
    lists = to.in_force(confirmed)
    listed = frozenset(one for each in lists for one in each.directories)
    ahead = [
        each
        for each in answers
        # The second only where somebody has gone on with --unsafe, without this one.
        if (each.me.directory_id in listed and each.rank > to.rank) or each.confirmed > to.rank.run
    ]
    return Count(
        confirmed,
        lists,
        frozenset(each.me.directory_id for each in answers),
        to.me.directory_id in listed,
        sorted(ahead, key=lambda each: each.rank, reverse=True),
    )


def named_by(shown: Iterable[Shown]) -> dict[str, Peer]:
    """Brokers that may hold acknowledged messages, as any of these knows them; by directory."""
    return {
        peer.directory_id: peer
        for each in shown
        for copy_list in each.in_force(each.confirmed)
        for peer in copy_list.members
    }


def forced_list(to: Shown, shown: Iterable[Shown]) -> CopyList:
    """Of an epoch that `to` begins with --unsafe: all brokers on any list that have voted for it."""
    answers = {each.me.directory_id: each for each in shown}
    members = {to.me.directory_id: to.me} | {
        one: answers[one].me for one in sorted(named_by(answers.values())) if one in answers
    }
    lists = max(answers.values(), key=lambda each: each.rank).in_force(RunKey())
    copies = lists[-1].copies if lists else 1
    return CopyList(tuple(members.values()), min(copies, len(members)))
