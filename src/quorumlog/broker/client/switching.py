"""A switch by hand: which broker becomes the master, after everybody who must be asked was asked."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import NamedTuple

from quorumlog.broker.client.blocking_broker_client import BrokerClient
from quorumlog.broker.errors import SwitchRefused
from quorumlog.broker.wire.broker_messages import PeerRow, ReplicaRequest, ReplicaResponse
from quorumlog.errors import LedgerError, OutcomeUnknown, Unreachable

_POLL_S = 0.02
ASK_TIMEOUT_MS = 5_000
"""Of one question. How long the new master has to catch up is another time."""
SLAVE = "SLAVE"


class Lost(NamedTuple):
    """Bytes of the log that acknowledged messages may lie in."""

    first_offset: int
    stop_offset: int
    """-1: nobody who answers knows how far it went."""


class SwitchReport(NamedTuple):
    master: str
    epoch: int
    max_offset: int
    lost: Lost | None
    followers: list[str]
    """Who was told to follow."""
    unreachable: list[str]
    """Who was not: they are told when they come back and are asked to follow."""


class Asked(ABC):
    """Brokers, and what each of them has answered last."""

    def __init__(self) -> None:
        self.answers: dict[str, ReplicaResponse] = {}
        self.unreachable: dict[str, str] = {}
        """Why, by id."""

    def ask(self, asked: str, request: ReplicaRequest | None = None) -> ReplicaResponse:
        answer = self.answers[asked] = self._call(asked, request or ReplicaRequest())
        return answer

    @abstractmethod
    def _call(self, asked: str, request: ReplicaRequest) -> ReplicaResponse:
        """Raises LedgerError, OutcomeUnknown."""

    @abstractmethod
    def address_of(self, broker_id: str) -> str: ...

    def follow(self, slave: str, master: str, epoch: int) -> None:
        self.ask(
            slave,
            ReplicaRequest(
                verb="slave",
                epoch=epoch,
                broker_id=master,
                address=self.address_of(master),
                ha_address=self.answers[master].ha_address,
                directory_id=self.answers[master].directory_id,
            ),
        )

    def master(self) -> ReplicaResponse | None:
        """Who reigns, if it answers."""
        found = [a for a in self.answers.values() if a.role != SLAVE and not a.fenced_by]
        newest = max((a.epoch for a in self.answers.values()), default=0)
        # One that has promised this epoch to a switch that went no further reigns no more.
        return next((a for a in found if a.epoch == newest == _reign_of(a)), None)

    @property
    def next_epoch(self) -> int:
        return 1 + max(max(a.epoch, a.fenced_by) for a in self.answers.values())


class Survey(Asked):
    """Every broker that any other names, asked once."""

    def __init__(self, server: str, timeout_ms: int) -> None:
        """`server`: HOST:PORT,... of which one has to answer. Raises what it refuses with,
        Unreachable."""
        super().__init__()
        self._clients: dict[str, BrokerClient] = {}
        self._timeout_ms = timeout_ms
        self._stack = ExitStack()
        waiting = self._named_by(self._first_of(server))
        while waiting:
            peer = waiting.pop()
            if not peer.address or peer.id in self.answers or peer.id in self.unreachable:
                continue
            try:
                waiting += self._named_by(self._ask(peer.address))
            except LedgerError as error:
                self.unreachable[peer.id] = str(error)

    def _first_of(self, servers: str) -> ReplicaResponse:
        """Whoever answers, master or not."""
        *others, last = [each.strip() for each in servers.split(",")]
        for address in others:
            with suppress(Unreachable, OutcomeUnknown):
                return self._ask(address)
        return self._ask(last)

    def _ask(self, address: str) -> ReplicaResponse:
        client = self._stack.enter_context(BrokerClient(address, timeout_ms=self._timeout_ms))
        answer = client.replica()
        self.answers[answer.id] = answer
        self._clients[answer.id] = client
        return answer

    @staticmethod
    def _named_by(answer: ReplicaResponse) -> list[PeerRow]:
        master = [answer.master] if answer.master is not None else []
        return [*answer.counted, *answer.slaves, *master]

    def _call(self, asked: str, request: ReplicaRequest) -> ReplicaResponse:
        return self._clients[asked].replica(request)

    def address_of(self, broker_id: str) -> str:
        return self._clients[broker_id].server

    def close(self) -> None:
        self._stack.close()


def _reign_of(answer: ReplicaResponse) -> int:
    return answer.history[-1][0] if answer.history else 0


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


def _stands_for_its_master(answer: ReplicaResponse) -> bool:
    """It counts with its master and has the log from where that began to reign on: what was acknowledged
    before is here, and whoever may have what was acknowledged since is on its list."""
    if answer.master is None or not answer.has_met_master or not answer.history:
        return False
    begin = min(start for epoch, _, start in answer.history if epoch == _reign_of(answer))
    return begin <= answer.max_offset and any(peer.id == answer.id for peer in answer.counted)


def _who_may_hold(answers: Mapping[str, ReplicaResponse]) -> dict[str, str]:
    """What was acknowledged, by id, with their directories: all that count with a master that is named,
    and each such master but where somebody stands for it. What was known before a reign for which
    somebody stands is over: all that was acknowledged until then is there."""
    standing = [each for each in answers.values() if _stands_for_its_master(each)]
    newest_reign = max(map(_reign_of, standing), default=0)
    needed: dict[str, str] = {}
    directories: dict[str, str] = {}
    for answer in answers.values():
        master = answer.master
        named = [*answer.counted, *([] if master is None else [master])]
        directories |= {peer.id: peer.directory_id for peer in named if peer.directory_id}
        # One that was told of and not met reigns in an epoch of which no more is known than this.
        is_unmet = master is not None and not answer.has_met_master
        reign = answer.epoch if is_unmet else _reign_of(answer)
        if reign < newest_reign:
            continue
        is_stood_for = master is None or any(
            each.master is not None and each.master.id == master.id and _reign_of(each) >= reign
            for each in standing
        )
        peers = [
            peer for peer in answer.counted if master is None or peer.id != master.id or not is_stood_for
        ]
        if master is not None and master.id and not is_stood_for:
            peers.append(master)
        needed |= {peer.id: peer.directory_id for peer in peers}
    return {each: directory or directories.get(each, "") for each, directory in needed.items()}


def _common(to: ReplicaResponse, best: ReplicaResponse) -> int:
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


def switch(
    server: str,
    to: str,
    *,
    unsafe: bool = False,
    timeout_ms: int = 10_000,
    say: Callable[[str], None] = lambda line: None,
) -> SwitchReport:
    """Make broker `to` the master. Raises SwitchRefused, with what to do, and what a broker refuses
    with."""
    survey = Survey(server, ASK_TIMEOUT_MS)
    try:
        return switch_surveyed(survey, to, unsafe=unsafe, timeout_ms=timeout_ms, say=say)
    finally:
        survey.close()


def switch_surveyed(
    survey: Asked,
    to: str,
    *,
    unsafe: bool = False,
    timeout_ms: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> SwitchReport:
    """As `switch`, of brokers that were asked already."""
    if any(answer.dialect != "quorumlog" for answer in survey.answers.values()):
        raise SwitchRefused("--ha-dialect rocketmq has no epochs: restart the brokers with new roles")
    if to not in survey.answers:
        if to in survey.unreachable:
            raise SwitchRefused(f"broker {to} does not answer: {survey.unreachable[to]}")
        known = ", ".join(sorted({*survey.answers, *survey.unreachable}))
        raise SwitchRefused(f"no broker {to} is known: there are {known}")
    master = survey.master()
    if master is not None and master.id == to:
        return _gather(survey, master)
    if master is not None:
        return _from_living(survey, master, to, unsafe, timeout_ms, say)
    return _from_lost(survey, to, unsafe, say)


def _from_living(
    survey: Asked,
    master: ReplicaResponse,
    to: str,
    unsafe: bool,
    timeout_ms: int,
    say: Callable[[str], None],
) -> SwitchReport:
    say(f"master {master.id} takes nothing more")
    try:
        lost = _drained(survey, master, to, unsafe, timeout_ms)
        epoch = survey.next_epoch
        survey.ask(to, ReplicaRequest(verb="promise", epoch=epoch))
    except BaseException:
        with suppress(LedgerError, OutcomeUnknown):  # it is no master any more: why is what is raised
            survey.ask(master.id, ReplicaRequest(verb="resume"))
        raise
    # Of two switches at once, to two brokers, one is refused here; and one that was so slow that the
    # master has gone on.
    survey.ask(master.id, ReplicaRequest(verb="promise", epoch=epoch, drained=True))
    say(f"epoch {epoch}: {master.id} becomes a slave, {to} the master")
    survey.follow(master.id, to, epoch)
    return _crown(survey, to, epoch, master.is_sync, lost, tells_first=False)


def _drained(
    survey: Asked, master: ReplicaResponse, to: str, unsafe: bool, timeout_ms: int
) -> Lost | None:
    """Wait until the new master has the log up to its end, where the old one takes nothing more. Raises
    SwitchRefused."""
    stop_at = time.monotonic() + timeout_ms / 1000
    while True:
        # Again and again: a master that is not asked goes on. Its end, and what of it slaves have, is of
        # after its last message. As the master has it: another log may be as long, and hold something
        # else.
        answer = survey.ask(master.id, ReplicaRequest(verb="drain"))
        end = answer.max_offset
        # One that does not count yet is not known to all that will be asked when it is lost in turn.
        rows = [row for row in answer.slaves if row.id == to and row.is_connected and row.counts]
        held = max((row.flushed_offset for row in rows), default=-1)
        if held >= end:
            return None
        if time.monotonic() >= stop_at:
            break
        time.sleep(_POLL_S)
    if unsafe:
        return Lost(_common(survey.ask(to), survey.answers[master.id]), end)
    what = (
        f"has the master's log up to {held} on its disk"
        if held >= 0
        else "does not follow the master, or does not count yet"
    )
    raise SwitchRefused(
        f"broker {to} {what}, which ends at {end}: wait until it has caught up (broker status), or lose"
        " what lies between with --unsafe"
    )


def _gather(survey: Asked, master: ReplicaResponse) -> SwitchReport:
    """Whoever missed the switch to this master is told to follow it. Raises SwitchRefused."""
    followers, unreachable = [], sorted(survey.unreachable)
    for broker_id, answer in sorted(survey.answers.items()):
        follows = answer.role == SLAVE and answer.master is not None and answer.master.id == master.id
        if broker_id == master.id or (follows and answer.epoch == master.epoch):
            continue
        try:
            survey.follow(broker_id, master.id, master.epoch)
            followers.append(broker_id)
        except (LedgerError, OutcomeUnknown):
            unreachable.append(broker_id)
    if not followers:
        away = f", and does not reach {' and '.join(unreachable)}" if unreachable else ""
        raise SwitchRefused(f"broker {master.id} is the master already{away}")
    return SwitchReport(master.id, master.epoch, master.max_offset, None, followers, unreachable)


def _from_lost(survey: Asked, to: str, unsafe: bool, say: Callable[[str], None]) -> SwitchReport:
    answers = survey.answers
    newest = max(answers.values(), key=lambda answer: (answer.epoch, _reign_of(answer)))
    lost_master = newest.master.id if newest.master is not None else ""
    missing = sorted(
        broker_id
        for broker_id, directory_id in _who_may_hold(answers).items()
        if not _is_there(answers.get(broker_id), directory_id, newest.epoch)
    )
    if missing and not unsafe:
        others = " and ".join(each for each in missing if each != lost_master)
        which = (
            f"nor {others}, which may hold what was acknowledged: start them with the directories that"
            " they had, or go without them with --unsafe"
            if others
            else "nor a slave that counts with it and came to where it began, so it may hold what was"
            " acknowledged before: start it with its directory, or go without it with --unsafe"
        )
        raise SwitchRefused(f"the master {lost_master} does not answer, {which}")
    # Where nobody is missing at all, somebody who answers knows, whatever was waited for.
    waited = (newest.is_sync and newest.in_sync_replicas > 1) or _is_everybody(answers)
    if not waited and not unsafe:
        raise SwitchRefused(
            f"the master {lost_master} does not answer, and acknowledged without its slaves"
            " (async-master, or in_sync_replicas 1): the last that was heard of its log was"
            f" {_heard(survey)}, and {to} has {answers[to].max_offset}. Start the master, or lose what"
            " lies behind with --unsafe"
        )
    _check_highest(survey, to, unsafe)
    epoch = survey.next_epoch
    say(f"epoch {epoch} is promised by {', '.join(sorted(answers))}")
    for broker_id in list(answers):
        survey.ask(broker_id, ReplicaRequest(verb="promise", epoch=epoch))
    # Nothing of the old master is taken any more: now it is known who has most.
    for broker_id in list(answers):
        survey.ask(broker_id)
    _check_highest(survey, to, unsafe)
    own, best = answers[to], max(answers.values(), key=rank_of)
    is_best = rank_of(best) == rank_of(own)
    common = own.max_offset if is_best else _common(own, best)
    end = max(best.max_offset, _heard(survey))
    lost = None
    if is_best and waited and not missing:
        pass  # what was acknowledged is on one of those that answered
    elif end > common:
        lost = Lost(common, end)
    elif missing or not waited:
        lost = Lost(own.max_offset, -1)
    return _crown(survey, to, epoch, newest.is_sync, lost, tells_first=not unsafe)


def _is_there(there: ReplicaResponse | None, directory_id: str, epoch: int) -> bool:
    """`directory_id`: empty of a master that was only named; one that was wiped since has forgotten the
    epoch."""
    if there is None:
        return False
    return there.directory_id == directory_id if directory_id else there.epoch >= epoch


def _is_everybody(answers: Mapping[str, ReplicaResponse]) -> bool:
    """Every broker that another one names has answered, old masters too. So it is after a switch that
    was killed between its steps."""
    return all(
        _is_there(answers.get(peer.id), peer.directory_id, answer.epoch)
        for answer in answers.values()
        for peer in [*answer.counted, *([answer.master] if answer.master is not None else [])]
    )


def _heard(survey: Asked) -> int:
    return max(answer.master_offset for answer in survey.answers.values())


def _check_highest(survey: Asked, to: str, unsafe: bool) -> None:
    answers = survey.answers
    best = max(answers.values(), key=rank_of)
    own, most = rank_of(answers[to]), rank_of(best)
    if own >= most or unsafe:
        return
    what = (
        f"has more on its disk than {to}: {most}, against {own}"
        if most.run >= 0
        else f"has the log of the master of epoch {most.epoch} up to its begin, {most.end}, and {to} has"
        f" not: its own is {own}"
    )
    raise SwitchRefused(
        f"broker {best.id} {what}. Take --to {best.id}, or lose what lies between with --unsafe"
    )


def _crown(
    survey: Asked, to: str, epoch: int, is_sync: bool, lost: Lost | None, *, tells_first: bool
) -> SwitchReport:
    """`tells_first`: whoever has promised the epoch knows whose it is before that one reigns. With the
    old master among them it is enough that this one does."""
    followers, unreachable = [], sorted(survey.unreachable)

    def tell(broker_id: str) -> None:
        survey.follow(broker_id, to, epoch)
        followers.append(broker_id)

    others = sorted(each for each in survey.answers if each != to)
    if tells_first:
        for broker_id in others:
            tell(broker_id)
    crowned = survey.ask(to, ReplicaRequest(verb="master", epoch=epoch, is_sync=is_sync))
    for broker_id in [] if tells_first else others:
        try:
            tell(broker_id)
        except (LedgerError, OutcomeUnknown):
            unreachable.append(broker_id)
    return SwitchReport(to, epoch, crowned.max_offset, lost, followers, unreachable)
