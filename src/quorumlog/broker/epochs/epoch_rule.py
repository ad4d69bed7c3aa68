"""The rule of epochs, for a list of N directories and k copies.

1. A directory promises each number once, on its disk, and takes nothing of a lower epoch.
2. Acknowledged is what k of the list, the leader among them, have on disk with the begin of the leader's
   run. Until a run has come so far, k of each list since the last run that has must have it, too.
3. A new epoch needs the promises of N - k + 1: of the newest list in the log of the one that is to lead
   of which anybody knows that a run with it was acknowledged, and of every later one.
4. It is led by one of those lists, and no other of them that promised has a greater log: by its last
   run, then by its end.
5. An epoch that is begun with --unsafe has a list of those that promised, and asks nothing of the lists
   before; all of it must have its begin before anything is acknowledged, or another one leads from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from quorumlog.broker.epochs.epoch_history import CopyList, EpochHistory, Peer, RunKey


class Rank(NamedTuple):
    """Of a log, as far as it is on its disk: the greater, the more. A leader that has written nothing
    may have confirmed what its slaves have up to its begin, so its run counts without bytes."""

    run: RunKey
    end: int

    def __str__(self) -> str:
        return f"up to {self.end} of epoch {self.run.number}"


def lists_in_force(history: EpochHistory, confirmed: RunKey) -> tuple[CopyList, ...]:
    """What must be satisfied, the newest last: that of the newest run that is known to be confirmed, and
    every later one. Empty: no list was ever made by hand."""
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
    """Up to where enough of each list have the log, the leader always among them. `offsets`: by
    directory, as far as they count; -1 where too few have ever said anything."""
    held = own_offset
    for each in lists:
        found = sorted((offsets.get(one, -1) for one in each.directories), reverse=True)
        held = min(held, found[each.needed - 1])
    return held


class Shown(NamedTuple):
    """What a directory shows with its promise. It stays so until it hears of a newer epoch."""

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
    """What promises come to for the one that is to lead."""

    confirmed: RunKey
    lists: tuple[CopyList, ...]
    """In force in its log."""
    answered: frozenset[str]
    is_listed: bool
    ahead: list[Shown]
    """Of those lists, whoever has a greater log; the greatest first."""

    @property
    def short(self) -> list[CopyList]:
        """Lists of which too few have promised."""
        return [each for each in self.lists if len(each.directories & self.answered) < each.promises]

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
    """Whoever may hold what was acknowledged, as any of them knows it; by directory."""
    return {
        peer.directory_id: peer
        for each in shown
        for copy_list in each.in_force(each.confirmed)
        for peer in copy_list.members
    }


def forced_list(to: Shown, shown: Iterable[Shown]) -> CopyList:
    """Of an epoch that `to` begins with --unsafe: everybody on any list who has promised it."""
    answers = {each.me.directory_id: each for each in shown}
    members = {to.me.directory_id: to.me} | {
        one: answers[one].me for one in sorted(named_by(answers.values())) if one in answers
    }
    lists = max(answers.values(), key=lambda each: each.rank).in_force(RunKey())
    copies = lists[-1].copies if lists else 1
    return CopyList(tuple(members.values()), min(copies, len(members)))
