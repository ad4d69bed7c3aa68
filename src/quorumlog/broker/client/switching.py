"""A switch by hand: which broker becomes the master, after everybody who must be asked was asked."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

from msgspec.structs import replace

from quorumlog.broker.client.blocking_broker_client import BrokerClient
from quorumlog.broker.client.switch_rules import (
    begun_reign,
    common_end,
    missing_of,
    newest_of,
    rank_of,
    was_waited_for,
)
from quorumlog.broker.errors import NotReplicated, SwitchRefused
from quorumlog.broker.wire.broker_messages import BeginRow, PeerRow, ReplicaRequest, ReplicaResponse
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

    @abstractmethod
    def address_of(self, broker_id: str) -> str: ...

    def follow(self, slave: str, master: str, epoch: int, begin: BeginRow | None = None) -> None:
        self.ask(
            slave,
            ReplicaRequest(
                verb="slave",
                epoch=epoch,
                broker_id=master,
                address=self.address_of(master),
                ha_address=self.answers[master].ha_address,
                directory_id=self.answers[master].directory_id,
                begin=begin,
            ),
        )

    def master(self) -> ReplicaResponse | None:
        """Who reigns, if it answers."""
        found = [a for a in self.answers.values() if a.role != SLAVE and not a.fenced_by]
        newest = max((a.epoch for a in self.answers.values()), default=0)
        # One that has promised this epoch to a switch that went no further reigns no more.
        return next((a for a in found if a.epoch == newest == begun_reign(a)), None)

    @property
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
            peer = waiting.pop()
            if not peer.address or peer.id in self.answers or peer.id in self.unreachable:
                continue
            try:
                waiting += self._named_by(self._ask(peer.address))
            except LedgerError as error:
                self.unreachable[peer.id] = str(error)

    def _all_of(self, servers: str) -> list[PeerRow]:
        """Whom they name. Raises what the last one refuses with, if none answers."""
        named: list[PeerRow] = []
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
    def _named_by(answer: ReplicaResponse) -> list[PeerRow]:
        master = [answer.master] if answer.master is not None else []
        return [*answer.counted, *answer.slaves, *answer.told, *master]

    def _call(self, asked: str, request: ReplicaRequest) -> ReplicaResponse:
        return self._clients[asked].replica(request)

    def address_of(self, broker_id: str) -> str:
        return self._clients[broker_id].server

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
        survey.check_by_hand()
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
        drained_at = survey.answers[master.id].max_offset
        epoch = survey.next_epoch + (0 if lost is None else survey.leap())
        survey.ask(to, ReplicaRequest(verb="promise", epoch=epoch))
    except BaseException:
        with suppress(LedgerError, OutcomeUnknown):  # it is no master any more: why is what is raised
            survey.ask(master.id, ReplicaRequest(verb="resume"))
        raise
    # Of two switches at once, to two brokers, one is refused here; and one that was so slow that the
    # master has gone on.
    survey.ask(master.id, ReplicaRequest(verb="promise", epoch=epoch, drained_at=drained_at))
    say(f"epoch {epoch}: {master.id} becomes a slave, {to} the master")
    # The old master has it all: of those that promised it is the one that must know whose the epoch is.
    return _crown(
        survey, to, epoch, master.is_sync, lost, told_first=[master.id], unsafe=lost is not None
    )


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
        # And the one that is asked must be it: under its name may be another directory by now.
        directory_id = survey.answers[to].directory_id
        rows = [row for row in answer.slaves if row.id == to and row.is_connected and row.counts]
        rows = [row for row in rows if row.directory_id == directory_id]
        held = max((row.flushed_offset for row in rows), default=-1)
        if held >= end:
            return None
        if time.monotonic() >= stop_at:
            break
        time.sleep(_POLL_S)
    if unsafe:
        return Lost(common_end(survey.ask(to), survey.answers[master.id]), end)
    what = (
        f"has the master's log up to {held} on its disk"
        if held >= 0
        else "does not follow the master, or does not count yet"
    )
    known = {(peer.id, peer.directory_id) for peer in answer.counted if peer.id == to}
    if known and (to, survey.answers[to].directory_id) not in known:
        raise SwitchRefused(
            f"broker {to} has another directory than the one that counts: if that is lost for good,"
            f" quorumlog broker forget --server {survey.address_of(master.id)} --slave {to}, and switch"
            " again"
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
    _check(survey, to, unsafe)
    epoch = survey.next_epoch
    if missing_of(answers) or not newest_of(answers).reign:
        epoch += survey.leap()
    say(f"epoch {epoch} is promised by {', '.join(sorted(answers))}")
    for broker_id in list(answers):
        survey.ask(broker_id, ReplicaRequest(verb="promise", epoch=epoch))
    # Nothing of the old master is taken any more. It may have come back after it was asked for, and let
    # somebody count who was not: only now it is known who that is, and who has most.
    for broker_id in list(answers):
        survey.ask(broker_id)
    _check(survey, to, unsafe)
    own, best = answers[to], max(answers.values(), key=rank_of)
    is_best = rank_of(best) == rank_of(own)
    common = own.max_offset if is_best else common_end(own, best)
    end = max(best.max_offset, _heard(survey))
    is_known = was_waited_for(answers) and not missing_of(answers)
    if not is_known:
        # The master may have gone on from before: another one, or this one after it had lost its end.
        common = min(common, best.confirm_offset)
    lost = None
    if is_best and is_known:
        pass  # what was acknowledged is on one of those that answered
    elif not is_known:
        lost = Lost(common, -1)
    elif end > common:
        lost = Lost(common, end)
    others = sorted(each for each in answers if each != to)
    newest = newest_of(answers)
    is_sync = newest.is_sync or not newest.reign  # of a master that none of them has met
    return _crown(survey, to, epoch, is_sync, lost, told_first=others, unsafe=unsafe)


def _check(survey: Asked, to: str, unsafe: bool) -> None:
    """Raises SwitchRefused where a message that was acknowledged may be lost."""
    if unsafe:
        return
    answers = survey.answers
    newest = newest_of(answers)
    if not newest.reign:
        raise SwitchRefused(
            f"none of {', '.join(sorted(answers))} has ever met a master: start them with --master and"
            " its --ha-port, or name one that has in --server; --unsafe makes a new one all the same"
        )
    missing = missing_of(answers)
    lost_master = "" if newest.master is None else newest.master.id
    is_away = lost_master and (lost_master not in answers or lost_master in missing)
    others = " and ".join(each for each in missing if each != lost_master)
    if others:
        who = f"the master {lost_master} does not answer, nor" if is_away else "there is no answer of"
        raise SwitchRefused(
            f"{who} {others}, which may hold what was acknowledged: start them with the directories that"
            " they had, or go without them with --unsafe"
        )
    if missing:
        raise SwitchRefused(
            f"the master {lost_master} does not answer, nor a slave that counts with it and came to"
            " where it began, so it may hold what was acknowledged before: start it with its directory,"
            " or go without it with --unsafe"
        )
    if not was_waited_for(answers):
        who = f"the master {lost_master} does not answer, and" if is_away else "the last master"
        heard = _heard(survey)
        last = f"the last that was heard of its log was {heard}, and " if heard > 0 else ""
        raise SwitchRefused(
            f"{who} acknowledged without its slaves (async-master, or in_sync_replicas 1): {last}"
            f"{to} has {answers[to].max_offset}. Start the master, or lose what lies behind with"
            " --unsafe"
        )
    best = max(answers.values(), key=rank_of)
    own, most = rank_of(answers[to]), rank_of(best)
    if own >= most:
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


def _heard(survey: Asked) -> int:
    return max(answer.master_offset for answer in survey.answers.values())


def _crown(
    survey: Asked,
    to: str,
    epoch: int,
    is_sync: bool,
    lost: Lost | None,
    *,
    told_first: list[str],
    unsafe: bool,
) -> SwitchReport:
    """`told_first`: they know whose the epoch is, and what it begins with, before that one reigns; it
    knows that. `unsafe`: all others, too, as far as they are reached."""
    followers, unreachable = [], sorted(survey.unreachable)
    others = sorted(each for each in survey.answers if each != to)
    before = others if unsafe else told_first
    if before:
        told = tuple(
            PeerRow(
                id=each,
                directory_id=survey.answers[each].directory_id,
                address=survey.address_of(each),
                ha_address=survey.answers[each].ha_address,
            )
            for each in before
        )
        survey.ask(to, ReplicaRequest(verb="chosen", epoch=epoch, told=told))
    # It has promised the epoch: what it holds and who counts with it stays, until it reigns.
    begin = replace(survey.answers[to].as_master, is_sync=is_sync)

    def tell(broker_ids: list[str], *, must: bool) -> None:
        for broker_id in broker_ids:
            try:
                survey.follow(broker_id, to, epoch, begin)
                followers.append(broker_id)
            except (LedgerError, OutcomeUnknown):
                if must:
                    raise
                unreachable.append(broker_id)

    tell(before, must=not unsafe)
    crowned = survey.ask(to, ReplicaRequest(verb="master", epoch=epoch, is_sync=is_sync, begin=begin))
    tell([each for each in others if each not in before], must=False)
    return SwitchReport(to, epoch, crowned.max_offset, lost, followers, unreachable)
