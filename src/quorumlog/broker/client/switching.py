"""A change of who leads, or of who counts, by an operator: who is asked, in which order, and what is
refused. What the answers come to is said by `epochs`."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing, suppress
from typing import NamedTuple

from msgspec.structs import replace

from quorumlog.broker.client.blocking_broker_client import BrokerClient
from quorumlog.broker.epochs.epoch_history import (
    CopyList,
    Epoch,
    EpochHistory,
    Peer,
    RunKey,
    common_offset,
)
from quorumlog.broker.epochs.epoch_rule import Count, Shown, count_of, forced_list, named_by
from quorumlog.broker.errors import InSyncReplicasNotEnough, NotReplicated, SwitchRefused
from quorumlog.broker.wire import ReplicaRequest, ReplicaResponse
from quorumlog.errors import LedgerError, OutcomeUnknown, Unreachable

_POLL_S = 0.02
ASK_TIMEOUT_MS = 5_000
"""Of one question. How long the new master has to catch up is another time."""
SLAVE = "SLAVE"

Say = Callable[[str], None]


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


def shown_by(answer: ReplicaResponse) -> Shown:
    me = Peer(
        id=answer.id,
        directory_id=answer.directory_id,
        address=answer.address,
        ha_address=answer.ha_address,
    )
    history = EpochHistory(answer.history)
    return Shown(me, history, answer.flushed_offset, RunKey(*answer.confirmed))


def epoch_of(answer: ReplicaResponse) -> Epoch:
    return Epoch(answer.epoch, answer.leader)


class Asked(ABC):
    """Brokers, and what each of them has answered last."""

    def __init__(self) -> None:
        self.answers: dict[str, ReplicaResponse] = {}
        self.unreachable: dict[str, str] = {}
        """Why, by id."""

    def ask(self, asked: str, request: ReplicaRequest | None = None) -> ReplicaResponse:
        """What it has answered last is what a switch goes by, so another directory under its name
        refuses."""
        request = request or ReplicaRequest()
        if asked in self.answers:
            request = replace(request, asked_directory_id=self.answers[asked].directory_id)
        answer = self.answers[asked] = self._call(asked, request)
        return answer

    @abstractmethod
    def _call(self, asked: str, request: ReplicaRequest) -> ReplicaResponse:
        """Raises LedgerError, OutcomeUnknown."""

    def shown(self) -> list[Shown]:
        return [shown_by(answer) for answer in self.answers.values()]

    def master(self) -> ReplicaResponse | None:
        """Who leads, if it answers, as far as it knows."""
        leading = [answer for answer in self.answers.values() if answer.is_leading]
        return max(leading, key=epoch_of, default=None)

    def next_epoch(self) -> int:
        """Above that of a first master, too, of which those that answer may know nothing."""
        return 1 + max(1, *(max(a.epoch, a.fenced_by) for a in self.answers.values()))

    def leap(self) -> int:
        """Above the epochs of those who are gone without: they may have had more than is known here."""
        return 1 + secrets.randbelow(1_000_000)


class Survey(Asked):
    """Every broker that any other names, asked once."""

    def __init__(self, server: str, timeout_ms: int) -> None:
        """`server`: HOST:PORT,... of which one has to answer; one that was emptied names nobody. Raises
        what it refuses with, Unreachable."""
        super().__init__()
        self._clients: dict[str, BrokerClient] = {}
        self._timeout_ms = timeout_ms
        self._stack = ExitStack()
        waiting = self._all_of(server)
        while waiting:
            broker_id, address = waiting.pop()
            if not address or broker_id in self.answers or broker_id in self.unreachable:
                continue
            try:
                waiting += self._named_by(self._ask(address))
            except LedgerError as error:
                self.unreachable[broker_id] = str(error)

    def _all_of(self, servers: str) -> list[tuple[str, str]]:
        """Whom they name. Raises what the last one refuses with, if none answers."""
        named: list[tuple[str, str]] = []
        addresses = [each.strip() for each in servers.split(",")]
        for address in addresses:
            try:
                named += self._named_by(self._ask(address))
            except (Unreachable, OutcomeUnknown):
                if address == addresses[-1] and not self.answers:
                    raise
        return named

    def _ask(self, address: str) -> ReplicaResponse:
        client = self._stack.enter_context(BrokerClient(address, timeout_ms=self._timeout_ms))
        answer = client.replica()
        self.answers[answer.id] = answer
        self._clients[answer.id] = client
        return answer

    @staticmethod
    def _named_by(answer: ReplicaResponse) -> list[tuple[str, str]]:
        peers = [*named_by([shown_by(answer)]).values()]
        peers += answer.copy_list.members if answer.copy_list is not None else ()
        peers += [answer.master] if answer.master is not None else []
        rows = [(row.id, row.address) for row in answer.slaves]
        # The newest word of where somebody is first: what is waiting is taken from its end.
        return [*((peer.id, peer.address) for peer in peers), *rows]

    def _call(self, asked: str, request: ReplicaRequest) -> ReplicaResponse:
        return self._clients[asked].replica(request)

    def check_by_hand(self) -> None:
        """Raises SwitchRefused where a coordinator decides: before anything was told to anybody."""
        for broker_id, client in self._clients.items():
            with suppress(NotReplicated):
                master = client.failover().master
                at = self._clients[master].server if master in self._clients else "the master's address"
                raise SwitchRefused(
                    f"a coordinator says which broker leads, as {broker_id} tells: let the master hand"
                    f" over with: quorumlog broker resign --server {at}"
                )

    def close(self) -> None:
        self._stack.close()


# -------------------------------------------------------------------- who counts


def change_list(server: str, request: ReplicaRequest, *, timeout_ms: int = 10_000) -> ReplicaResponse:
    """Add a broker, remove one, or set the number of copies; `server`: any broker that answers. Who is
    not in sync is waited for. Returns once the new list is confirmed, or too late. Raises SwitchRefused,
    and what a broker refuses with."""
    with closing(Survey(server, ASK_TIMEOUT_MS)) as survey:
        survey.check_by_hand()
        master = survey.master()
        if master is None:
            raise SwitchRefused(f"none of {', '.join(sorted(survey.answers))} leads: switch first")
        stop_at = time.monotonic() + timeout_ms / 1000
        while True:
            try:
                answer = survey.ask(master.id, request)
                break
            except InSyncReplicasNotEnough:
                if time.monotonic() >= stop_at:
                    raise
            time.sleep(_POLL_S)
        while not answer.is_list_confirmed and time.monotonic() < stop_at:
            time.sleep(_POLL_S)
            answer = survey.ask(master.id)
        return answer


# -------------------------------------------------------------------- who leads


def switch(
    server: str,
    to: str,
    *,
    without: Collection[str] = (),
    unsafe: bool = False,
    timeout_ms: int = 10_000,
    say: Say = lambda line: None,
) -> SwitchReport:
    """Make broker `to` the master. Raises SwitchRefused, with what to do, and what a broker refuses
    with."""
    with closing(Survey(server, ASK_TIMEOUT_MS)) as survey:
        survey.check_by_hand()
        return switch_surveyed(
            survey, to, without=without, unsafe=unsafe, timeout_ms=timeout_ms, say=say
        )


def switch_surveyed(
    survey: Asked,
    to: str,
    *,
    without: Collection[str] = (),
    unsafe: bool = False,
    timeout_ms: int = 0,
    say: Say = lambda line: None,
) -> SwitchReport:
    """As `switch`, of brokers that were asked already."""
    if any(answer.dialect != "quorumlog" for answer in survey.answers.values()):
        raise SwitchRefused("--ha-dialect rocketmq has no epochs: restart the brokers with new roles")
    if to not in survey.answers:
        if to in survey.unreachable:
            raise SwitchRefused(f"broker {to} does not answer: {survey.unreachable[to]}")
        known = ", ".join(sorted({*survey.answers, *survey.unreachable}))
        raise SwitchRefused(f"no broker {to} is known: there are {known}")
    if without and not unsafe:
        raise SwitchRefused("--without may lose what was acknowledged: it needs --unsafe, too")
    master = survey.master()
    if master is not None and master.id == to:
        if not without and epoch_of(master) >= max(map(epoch_of, survey.answers.values())):
            return _gather(survey, master)
        master = None  # somebody has promised a newer epoch, in vain, or its list is to be another one
    count = count_of(shown_by(survey.answers[to]), survey.shown())
    if master is not None:
        count = count._replace(ahead=[])  # it is waited for until nobody is ahead of it
    gone = _check(survey, to, survey.shown(), count, without, unsafe)
    if master is None:
        return _promised(survey, to, None, without, unsafe, bool(gone), say)
    say(f"master {master.id} takes nothing more")
    try:
        _drain(survey, master.id, to, unsafe, timeout_ms)
        return _promised(survey, to, master.id, without, unsafe, bool(gone), say)
    except BaseException:
        with suppress(LedgerError, OutcomeUnknown):  # it is no master any more: why is what is raised
            survey.ask(master.id, ReplicaRequest(verb="resume"))
        raise


def _drain(survey: Asked, master: str, to: str, unsafe: bool, timeout_ms: int) -> None:
    """Wait until the new master has the log up to its end, where the old one takes nothing more. Raises
    SwitchRefused."""
    stop_at = time.monotonic() + timeout_ms / 1000
    while True:
        # Again and again: a master that is not asked goes on. Its end is of after its last message.
        answer = survey.ask(master, ReplicaRequest(verb="drain"))
        end = shown_by(answer)._replace(flushed_offset=answer.max_offset)
        own = shown_by(survey.ask(to))
        if own.rank >= end.rank or (unsafe and time.monotonic() >= stop_at):
            return
        if time.monotonic() >= stop_at:
            raise SwitchRefused(
                f"broker {to} has the log {own.rank} on its disk, and that of the master goes"
                f" {end.rank}: wait until it has caught up (broker status), or lose what lies between"
                " with --unsafe"
            )
        time.sleep(_POLL_S)


def _promised(
    survey: Asked,
    to: str,
    master: str | None,
    without: Collection[str],
    unsafe: bool,
    is_short: bool,
    say: Say,
) -> SwitchReport:
    """The epoch is promised, the best of those that did leads it, and the others follow."""
    epoch = survey.next_epoch() + (survey.leap() if is_short else 0)
    leader = survey.answers[to].directory_id
    request = ReplicaRequest(verb="promise", epoch=epoch, directory_id=leader)
    survey.ask(to, request)  # of two switches at once, to one broker, one is refused here
    others = sorted((each for each in survey.answers if each != to), key=lambda each: each == master)
    _ask_each(survey, others, request)
    # Whoever has heard of a newer epoch since is bound by that one.
    kept = {each: a for each, a in survey.answers.items() if epoch_of(a) == (epoch, leader)}
    if to not in kept:
        raise SwitchRefused(f"another switch has begun meanwhile, with epoch {survey.answers[to].epoch}")
    shown = [shown_by(answer) for answer in kept.values()]
    own = shown_by(kept[to])
    say(f"epoch {epoch} is promised by {', '.join(sorted(kept))}")
    count = count_of(own, shown)
    gone = _check(survey, to, shown, count, without, unsafe)
    lost = None if count.may_lead else _lost(kept, own, count, gone)
    listed = None if count.may_lead and not without else forced_list(own, shown)
    led = survey.ask(
        to, ReplicaRequest(verb="lead", epoch=epoch, confirmed=count.confirmed, forced_list=listed)
    )
    followers = _follow(survey, led, [each for each in others if each not in survey.unreachable])
    return SwitchReport(to, epoch, led.max_offset, lost, followers, sorted(survey.unreachable))


def _ask_each(survey: Asked, broker_ids: list[str], request: ReplicaRequest) -> list[str]:
    """Who has answered; the others are unreachable."""
    answered = list[str]()
    for broker_id in broker_ids:
        try:
            survey.ask(broker_id, request)
            answered.append(broker_id)
        except (LedgerError, OutcomeUnknown) as error:
            survey.unreachable[broker_id] = str(error)
    return answered


def _follow(survey: Asked, master: ReplicaResponse, broker_ids: list[str]) -> list[str]:
    """Who was told to."""
    request = ReplicaRequest(
        verb="slave",
        epoch=master.epoch,
        broker_id=master.id,
        address=master.address,
        ha_address=master.ha_address,
        directory_id=master.directory_id,
    )
    return _ask_each(survey, sorted(broker_ids), request)


def _gather(survey: Asked, master: ReplicaResponse) -> SwitchReport:
    """Whoever missed the switch to this master is told to follow it. Raises SwitchRefused."""

    def follows(answer: ReplicaResponse) -> bool:
        told = "" if answer.master is None else answer.master.id
        return (answer.role, told, answer.epoch) == (SLAVE, master.id, master.epoch)

    others = [each for each, a in survey.answers.items() if each != master.id and not follows(a)]
    followers, unreachable = _follow(survey, master, others), sorted(survey.unreachable)
    if not followers:
        away = f", and does not reach {' and '.join(unreachable)}" if unreachable else ""
        raise SwitchRefused(f"broker {master.id} is the master already{away}")
    return SwitchReport(master.id, master.epoch, master.max_offset, None, followers, unreachable)


# -------------------------------------------------------------------- what is refused


def _check(
    survey: Asked,
    to: str,
    shown: list[Shown],
    count: Count,
    without: Collection[str],
    unsafe: bool,
) -> list[Peer]:
    """Whoever is gone without, and may hold what was acknowledged. Raises SwitchRefused where a message
    that was acknowledged may be lost, and nobody has said that it may."""
    answered = {each.me.directory_id for each in shown}
    missing = {one: peer for one, peer in named_by(shown).items() if one not in answered}
    # Where nobody knows a list whoever is known of may be on one.
    ids = sorted({peer.id for peer in missing.values()} | {*([] if count.lists else survey.unreachable)})
    if unsafe and (without or not count.may_lead):
        if needless := sorted({*without} - {*ids}):
            raise SwitchRefused(
                f"broker {needless[0]} answers, or is on no list: it cannot be left out"
                f" ({', '.join(ids) or 'nobody'} can)"
            )
        if left := [each for each in ids if each not in without]:
            raise SwitchRefused(
                f"there is no answer of {' and '.join(left)}, with the directory that is on the list:"
                " what it holds is lost by this, and it may never be switched to again. If that is so:"
                f" --to {to} {' '.join(f'--without {each}' for each in ids)} --unsafe"
            )
        return list(missing.values())
    if not count.lists:
        raise SwitchRefused(
            f"broker {to} has met no master yet: start it with --master and the master's --ha-port;"
            " --unsafe makes a new group of it all the same"
        )
    if count.short:
        short = sorted({peer.id for peer in count.missing})
        needs = "; ".join(_needs(each, count) for each in count.short)
        raise SwitchRefused(
            f"there is no answer of {' and '.join(short)}, with the directory that is on the list, and"
            f" so nobody knows what was acknowledged ({needs}). Start it with the directory that it had;"
            " or, if that is lost for good, and will never be switched to again, go without it:"
            f" --to {to} {' '.join(f'--without {each}' for each in ids)} --unsafe{_why(survey, short)}"
        )
    if count.ahead:
        best = count.ahead[0]
        raise SwitchRefused(
            f"broker {best.me.id} has more on its disk than {to}: {best.rank}, against"
            f" {shown_by(survey.answers[to]).rank}. Take --to {best.me.id}, or lose what lies between"
            " with --unsafe"
        )
    if not count.is_listed:
        raise SwitchRefused(
            f"broker {to} is not on the list ({', '.join(count.lists[-1].ids)}): quorumlog broker add"
            f" --broker {to} first"
        )
    return []


def _needs(copy_list: CopyList, count: Count) -> str:
    there = len(copy_list.directories & count.answered)
    return f"{there} of {', '.join(copy_list.ids)} answer, {copy_list.promises} are needed"


def _why(survey: Asked, broker_ids: list[str]) -> str:
    known = [each for each in broker_ids if each in survey.unreachable]
    return "".join(f". {each}: {survey.unreachable[each]}" for each in known)


def _lost(kept: dict[str, ReplicaResponse], own: Shown, count: Count, gone: list[Peer]) -> Lost | None:
    answer = kept[own.me.id]
    first, stop = answer.max_offset, -1
    if count.ahead:
        best = count.ahead[0]
        end = kept[best.me.id].max_offset
        first = max(common_offset(own.history, answer.max_offset, best.history, end), 0)
        stop = end
    if gone or not count.lists:
        # Whoever is gone may have gone on from where consumers have seen the log.
        return Lost(min(first, max(a.confirm_offset for a in kept.values())), -1)
    return Lost(first, stop) if stop > first else None
