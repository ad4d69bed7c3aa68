"""What answers of brokers say of a lost master: which log goes before which, and who else has to be
asked. Values only; `switching` asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from quorumlog.broker.wire.broker_messages import PeerRow, ReplicaResponse


class Rank(NamedTuple):
    """Of a log, as far as it is on its disk: the greater, the more."""

    epoch: int
    """Of the last master of whose log it has everything up to where that one began."""
    run: int
    """Of its last bytes of that epoch; -1: it has none yet. A master that has written nothing confirms
    what its slaves have up to its begin, and that must not go."""
    end: int

    def __str__(self) -> str:
        return f"up to {self.end} of epoch {self.epoch}"


def rank_of(answer: ReplicaResponse) -> Rank:
    end = answer.flushed_offset
    begun = [(epoch, run, start) for epoch, run, start in answer.history if start <= end]
    epoch = begun[-1][0] if begun else 0
    run = max((run for of, run, start in begun if of == epoch and start < end), default=-1)
    return Rank(epoch, run, end)


def begun_reign(answer: ReplicaResponse) -> int:
    """The epoch of the newest run of its log, which may begin behind what it has of it."""
    return answer.history[-1][0] if answer.history else 0


def _has_list_of_reign(answer: ReplicaResponse) -> bool:
    """It was the master itself, or has met it."""
    return answer.master is None or not answer.master.id or answer.has_met_master


def knows_its_reign(answer: ReplicaResponse) -> bool:
    """Who counts in it, and on how many brokers is what is acknowledged."""
    return _has_list_of_reign(answer) or answer.holds_begin


def newest_of(answers: Mapping[str, ReplicaResponse]) -> ReplicaResponse:
    """Who knows most of the newest master. Not by what was promised: so has one that never had any."""
    return max(
        answers.values(), key=lambda each: (each.reign, knows_its_reign(each), each.state_version)
    )


def _stands_for_its_master(answer: ReplicaResponse) -> bool:
    """What was acknowledged before that began to reign is here, and whoever may have what was
    acknowledged since is on the list: it counts and has met it, or has heard all this when it began."""
    if answer.master is None:
        return False
    if not answer.has_met_master or not answer.history:
        return answer.holds_begin
    begin = min(start for epoch, _, start in answer.history if epoch == begun_reign(answer))
    return begin <= answer.max_offset and any(peer.id == answer.id for peer in answer.counted)


def _list_of(answer: ReplicaResponse) -> int:
    """Which of the lists of its reign it has: the greater, the newer. -1: one of before."""
    return answer.state_version if _has_list_of_reign(answer) else -1


def _whose_reign(answer: ReplicaResponse) -> tuple[int, str]:
    """And of which directory: one that was emptied may have begun another epoch 1."""
    master = answer.master
    is_own = master is None or not master.id
    return answer.reign, answer.directory_id if is_own or master is None else master.directory_id


def who_may_hold(answers: Mapping[str, ReplicaResponse]) -> set[tuple[str, str]]:
    """What was acknowledged, by id and directory: all that count with a master that is named, and each
    such master but where somebody stands for it. What was known before a reign for which somebody stands
    is over: all that was acknowledged until then is there."""
    standing = [each for each in answers.values() if _stands_for_its_master(each)]
    newest_reign = max((each.reign for each in standing), default=0)
    needed: set[tuple[str, str]] = set()
    directories: dict[str, str] = {}
    for answer in answers.values():
        master = answer.master
        named = [*answer.counted, *([] if master is None else [master])]
        directories |= {peer.id: peer.directory_id for peer in named if peer.directory_id}
        if answer.reign < newest_reign:
            continue
        is_stood_for = master is None or any(
            each.master is not None and each.master.id == master.id and each.reign >= answer.reign
            for each in standing
        )
        # Of one reign the newest list goes before others: they may name who was forgotten since.
        newest_list = max(
            _list_of(each) for each in answers.values() if _whose_reign(each) == _whose_reign(answer)
        )
        counted = answer.counted if _list_of(answer) == newest_list else []
        peers = [peer for peer in counted if master is None or peer.id != master.id or not is_stood_for]
        if master is not None and master.id and not is_stood_for:
            peers.append(master)
        needed |= {(peer.id, peer.directory_id) for peer in [*peers, *answer.told]}
    return {(each, directory or directories.get(each, "")) for each, directory in needed}


def missing_of(answers: Mapping[str, ReplicaResponse]) -> list[str]:
    """Ids of who must answer, and does not."""
    reign = newest_of(answers).reign
    return sorted(
        {
            each
            for each, directory in who_may_hold(answers)
            if not _is_there(answers.get(each), directory, reign)
        }
    )


def _is_there(there: ReplicaResponse | None, directory_id: str, epoch: int) -> bool:
    """`directory_id`: empty of a master that was only named; one that was wiped since has forgotten the
    epoch."""
    if there is None:
        return False
    return there.directory_id == directory_id if directory_id else there.epoch >= epoch


def is_everybody(answers: Mapping[str, ReplicaResponse]) -> bool:
    """Every broker that another one names has answered, old masters too. So it is after a switch that
    was killed between its steps."""
    at = {answer.ha_address for answer in answers.values() if answer.reign}

    def is_there(peer: PeerRow, epoch: int) -> bool:
        if not peer.id:  # who was started to follow an address, and never met anybody there
            return peer.ha_address in at
        return _is_there(answers.get(peer.id), peer.directory_id, epoch)

    return all(
        is_there(peer, answer.reign)
        for answer in answers.values()
        for peer in [
            *answer.counted,
            *answer.told,
            *([answer.master] if answer.master is not None else []),
        ]
    )


def was_waited_for(answers: Mapping[str, ReplicaResponse]) -> bool:
    """What the newest master acknowledged is on others, too, or nobody is missing at all: then somebody
    who answers knows, whatever was waited for."""
    newest = newest_of(answers)
    # What was acknowledged while fewer had to have it lies below this offset, on one of those at least.
    is_held = not newest.waited_from or any(
        rank_of(each).epoch == newest.reign and each.flushed_offset >= newest.waited_from
        for each in answers.values()
    )
    is_waited_for = newest.is_sync and newest.in_sync_replicas > 1 and is_held
    return is_waited_for or is_everybody(answers)


def common_end(to: ReplicaResponse, best: ReplicaResponse) -> int:
    """Up to where the new master's log is the same as the one that is given up: it may be as long, and
    hold something else."""
    own, theirs = _stops(to), _stops(best)
    shared = max((run for run in own if run in theirs), default=None)
    return 0 if shared is None else min(own[shared], theirs[shared])


def _stops(answer: ReplicaResponse) -> dict[tuple[int, int, int], int]:
    """Where each run of a log ends."""
    end = answer.max_offset
    stops = [*(start for *_, start in answer.history[1:]), end]
    runs = zip(answer.history, stops, strict=False)
    return {run: min(stop, end) for run, stop in runs if run[2] < end}
