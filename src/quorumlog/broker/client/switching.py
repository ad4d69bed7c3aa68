"""A change of the master, or of the in-sync list, by an operator: the brokers asked, their order, and
the refusals. `epochs` evaluates the answers."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import convert
from msgspec.structs import replace

from quorumlog.broker.client.blocking import BrokerClient
from quorumlog.broker.epochs import (
    Count,
    Epoch,
    EpochHistory,
    Peer,
    RunKey,
    Shown,
    common_offset,
    count_of,
    forced_list,
    named_by,
)
from quorumlog.broker.errors import InSyncReplicasNotEnough, NotReplicated, SwitchRefused
from quorumlog.broker.wire import ReplicaRequest, ReplicaResponse
from quorumlog.errors import (
    NO_RIGHT,
    LedgerError,
    OutcomeUnknown,
    RequestTimeout,
    Unreachable,
)

_POLL_S = 0.02
ASK_TIMEOUT_MS = 5_000
"""Of one question. How long the new master has to catch up is another time."""
SLAVE = "SLAVE"


class Lost(NamedTuple):
    """Bytes of the log that acknowledged messages may lie in."""

    first_offset: int
    stop_offset: int
    """-1: unknown to the brokers that answer."""


class SwitchReport(NamedTuple):
    master: str
    epoch: int
    max_offset: int
    lost: Lost | None
    followers: list[str]
    """Brokers that follow the new master."""
    unreachable: list[str]
    """Brokers that did not answer: they follow when they return and the switch is repeated."""


def shown_by(answer: ReplicaResponse) -> Shown:
    me = convert(answer, Peer, from_attributes=True)
    history = EpochHistory(answer.history)
    return Shown(me, history, answer.flushed_offset, RunKey(*answer.confirmed))


def epoch_of(answer: ReplicaResponse) -> Epoch:
    return Epoch(answer.epoch, answer.leader)


class BrokerProbe(ABC):
    """Brokers, and the last answer of each."""

    def __init__(self) -> None:
        self.answers: dict[str, ReplicaResponse] = {}
        self.unreachable: dict[str, str] = {}
        """Why, by id."""
        self.is_refused_by_users = False
        """Somebody does not answer because there are users."""

    def have_users(self, but: str) -> bool:
        """True if any broker reports that users may exist."""
        broker_ids = [broker_id for broker_id, answer in self.answers.items() if answer.has_users]
        return self.is_refused_by_users or any(each != but for each in broker_ids)

    def ask(self, broker_id: str, request: ReplicaRequest | None = None) -> ReplicaResponse:
        """Its last answer, which a switch relies on; another directory under its name refuses."""
        request = request or ReplicaRequest()
        if broker_id in self.answers:
            request = replace(request, asked_directory_id=self.answers[broker_id].directory_id)
        answer = self.answers[broker_id] = self._call(broker_id, request)
        return answer

    @abstractmethod
    def _call(self, broker_id: str, request: ReplicaRequest) -> ReplicaResponse:
        """Raises LedgerError."""

    def shown(self) -> list[Shown]:
        return [shown_by(answer) for answer in self.answers.values()]

    def master(self) -> ReplicaResponse | None:
        """The answer of the master, if it answers; of several, that of the newest epoch."""
        leading = [answer for answer in self.answers.values() if answer.is_leading]
        return max(leading, key=epoch_of, default=None)

    def next_epoch(self) -> int:
        """Also above that of a first master, which may be unknown to the brokers that answer."""
        return 1 + max(1, *(max(a.epoch, a.fenced_by) for a in self.answers.values()))

    def leap(self) -> int:
        """Above the epochs of brokers left out: they may know newer ones than the others."""
        return 1 + secrets.randbelow(1_000_000)


class ClusterProbe(BrokerProbe):
    """Every broker named by any other, asked once; none of them has a coordinator."""

    def __init__(self, server: str) -> None:
        """`server`: HOST:PORT,... of which one has to answer; an emptied one names no others. Raises its
        refusal, Unreachable, SwitchRefused."""
        super().__init__()
        self._clients: dict[str, BrokerClient] = {}
        self._stack = ExitStack()
        try:
            self._ask_all(server)
            self._check_by_hand()
        except BaseException:
            self.close()
            raise

    def _ask_all(self, servers: str) -> None:
        waiting: list[tuple[str, str]] = []
        addresses = [each.strip() for each in servers.split(",")]
        for address in addresses:
            try:
                waiting += self._named_by(self._ask(address))
            except (Unreachable, RequestTimeout, OutcomeUnknown):
                if address == addresses[-1] and not self.answers:
                    raise
        while waiting:
            broker_id, address = waiting.pop()
            if not address or broker_id in self.answers or broker_id in self.unreachable:
                continue
            try:
                waiting += self._named_by(self._ask(address))
            except LedgerError as error:
                self.unreachable[broker_id] = str(error)
                self.is_refused_by_users |= isinstance(error, NO_RIGHT) or self._has_users_at(address)

    def _has_users_at(self, address: str) -> bool:
        """A broker that has not heard its master refuses everybody who is no administrator alike, and
        says in its bare status whether it is for users."""
        with (
            suppress(LedgerError),
            BrokerClient(address, timeout_ms=ASK_TIMEOUT_MS, only_looks=True) as client,
        ):
            return client.status().has_users
        return False

    def _ask(self, address: str) -> ReplicaResponse:
        client = self._stack.enter_context(BrokerClient(address, timeout_ms=ASK_TIMEOUT_MS))
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

    def _call(self, broker_id: str, request: ReplicaRequest) -> ReplicaResponse:
        return self._clients[broker_id].replica(request)

    def _check_by_hand(self) -> None:
        for broker_id, client in self._clients.items():
            with suppress(NotReplicated):
                master = client.failover().master
                at = self._clients[master].server if master in self._clients else "the master's address"
                raise SwitchRefused(
                    f"a coordinator chooses the master, as {broker_id} tells: let the master hand"
                    f" over with: quorumlog broker resign --servers {at}"
                )

    def close(self) -> None:
        self._stack.close()


# -------------------------------------------------------------------- who counts


def change_list(server: str, request: ReplicaRequest, *, timeout_ms: int = 10_000) -> ReplicaResponse:
    """Add a broker, remove one, or set the number of copies; `server`: any broker that answers. Waits
    for brokers not in sync. Returns once the new list is confirmed, or too late. Raises SwitchRefused,
    and a broker's refusal."""
    with closing(ClusterProbe(server)) as probe:
        master = probe.master()
        if master is None:
            raise SwitchRefused(f"none of {', '.join(sorted(probe.answers))} leads: switch first")
        stop_at = time.monotonic() + timeout_ms / 1000
        while True:
            try:
                answer = probe.ask(master.id, request)
                break
            except InSyncReplicasNotEnough:
                if time.monotonic() >= stop_at:
                    raise
            time.sleep(_POLL_S)
        while not answer.is_list_confirmed and time.monotonic() < stop_at:
            time.sleep(_POLL_S)
            answer = probe.ask(master.id)
        return answer


# -------------------------------------------------------------------- who leads


@dataclass(frozen=True)
class Switch:
    """Makes broker `to` the master."""

    probe: BrokerProbe
    to: str
    without: Collection[str] = ()
    unsafe: bool = False
    timeout_ms: int = 0
    say: Callable[[str], None] = lambda line: None

    def run(self) -> SwitchReport:
        """Raises SwitchRefused, with the remedy, and a broker's refusal."""
        probe, to, answers = self.probe, self.to, self.probe.answers
        if any(answer.dialect != "quorumlog" for answer in answers.values()):
            raise SwitchRefused(
                "--ha-dialect rocketmq has no epochs: restart the brokers with new roles"
            )
        if to not in answers:
            if to in probe.unreachable:
                raise SwitchRefused(f"broker {to} does not answer: {probe.unreachable[to]}")
            known = ", ".join(sorted({*answers, *probe.unreachable}))
            raise SwitchRefused(f"broker {to} is unknown; known: {known}")
        if self.without and not self.unsafe:
            raise SwitchRefused("--without may lose acknowledged messages: it also needs --unsafe")
        master = probe.master()
        if master is not None and master.id == to:
            if not self.without and epoch_of(master) >= max(map(epoch_of, answers.values())):
                return self._gather(master)
            # Somebody has promised a newer epoch, in vain, or its list is to be another one.
            master = None
        if master is not None and answers[to].is_leading and not self.unsafe:
            # It copies nothing: the master would refuse messages meanwhile, in vain.
            raise SwitchRefused(
                f"broker {to} still acts as a master, of epoch {answers[to].epoch}, and does not follow"
                f" {master.id}: first make it follow with --to {master.id}"
            )
        count = count_of(shown_by(answers[to]), probe.shown())
        if master is not None:
            count = count._replace(ahead=[])  # it is waited for until nobody is ahead of it
        is_short = bool(self._check(probe.shown(), count))
        if master is None:
            return self._promised("", is_short)
        self.say(f"master {master.id} accepts no more messages")
        try:
            self._drain(master.id)
            return self._promised(master.id, is_short)
        except BaseException:
            with suppress(LedgerError):  # it is no master any more: why is what is raised
                probe.ask(master.id, ReplicaRequest(verb="resume"))
            raise

    def _drain(self, master: str) -> None:
        """Wait until the new master has the log up to its end, to which the old one adds no messages."""
        stop_at = time.monotonic() + self.timeout_ms / 1000
        while True:
            # Again and again: a master that is not asked goes on. Its end is of after its last message.
            answer = self.probe.ask(master, ReplicaRequest(verb="drain"))
            end = shown_by(answer)._replace(flushed_offset=answer.max_offset)
            own = shown_by(self.probe.ask(self.to))
            is_late = time.monotonic() >= stop_at
            if own.rank >= end.rank or (self.unsafe and is_late):
                return
            if is_late:
                raise SwitchRefused(
                    f"broker {self.to} is behind: its disk has the log {own.rank}, the master's"
                    f" {end.rank}: wait until it has caught up (broker status), or lose the"
                    " messages in between with --unsafe"
                )
            time.sleep(_POLL_S)

    def _promised(self, master: str, is_short: bool) -> SwitchReport:
        """The epoch is promised, the best of those that did leads it, and the others follow."""
        probe, to = self.probe, self.to
        epoch = probe.next_epoch() + (probe.leap() if is_short else 0)
        leader = probe.answers[to].directory_id
        request = ReplicaRequest(verb="promise", epoch=epoch, directory_id=leader)
        probe.ask(to, request)  # of two switches at once, to one broker, one is refused here
        others = sorted((each for each in probe.answers if each != to), key=lambda each: each == master)
        self._ask_each(others, request)
        # A broker that has voted for a newer epoch since is bound by that one.
        kept = {each: a for each, a in probe.answers.items() if epoch_of(a) == (epoch, leader)}
        if to not in kept:
            newer = probe.answers[to].epoch
            raise SwitchRefused(f"another switch has begun meanwhile, with epoch {newer}")
        shown, own = [shown_by(answer) for answer in kept.values()], shown_by(kept[to])
        self.say(f"{', '.join(sorted(kept))} voted for epoch {epoch}")
        count = count_of(own, shown)
        gone = self._check(shown, count)
        lost = None if count.may_lead else _lost(kept, own, count, gone)
        listed = None if count.may_lead and not self.without else forced_list(own, shown)
        may_lose_users = lost is not None and probe.have_users(but=to)
        if may_lose_users:
            self.say(
                f"there may be users: if the log of {to} has none, it serves no client until an"
                " administrator is named there (quorumlog init-admin)"
            )
        led = probe.ask(
            to,
            ReplicaRequest(
                verb="lead",
                epoch=epoch,
                confirmed=count.confirmed,
                forced_list=listed,
                may_lose_users=may_lose_users,
            ),
        )
        return self._follow(led, [each for each in others if each not in probe.unreachable], lost)

    def _ask_each(self, broker_ids: list[str], request: ReplicaRequest) -> list[str]:
        """Who has answered; the others are unreachable."""
        responders = list[str]()
        for broker_id in broker_ids:
            try:
                self.probe.ask(broker_id, request)
                responders.append(broker_id)
            except LedgerError as error:
                self.probe.unreachable[broker_id] = str(error)
        return responders

    def _follow(
        self, master: ReplicaResponse, broker_ids: list[str], lost: Lost | None = None
    ) -> SwitchReport:
        request = ReplicaRequest(
            verb="slave",
            epoch=master.epoch,
            broker_id=master.id,
            address=master.address,
            ha_address=master.ha_address,
            directory_id=master.leader,  # empty, too: of an epoch that the release before has begun
        )
        followers = self._ask_each(sorted(broker_ids), request)
        unreachable = sorted(self.probe.unreachable)
        return SwitchReport(master.id, master.epoch, master.max_offset, lost, followers, unreachable)

    def _gather(self, master: ReplicaResponse) -> SwitchReport:
        """Brokers that missed the switch to this master are told to follow it."""

        def follows(answer: ReplicaResponse) -> bool:
            master_id = "" if answer.master is None else answer.master.id
            return (answer.role, master_id, answer.epoch) == (SLAVE, master.id, master.epoch)

        answers = self.probe.answers.items()
        report = self._follow(
            master, [each for each, a in answers if a is not master and not follows(a)]
        )
        if not report.followers:
            away = " and ".join(report.unreachable)
            why = f", and does not reach {away}" if away else ""
            raise SwitchRefused(f"broker {master.id} is the master already{why}")
        return report

    # ---------------------------------------------------------------- what is refused

    def _check(self, shown: list[Shown], count: Count) -> list[Peer]:
        """Brokers that are left out, and may hold acknowledged messages. Raises SwitchRefused where a
        message that was acknowledged may be lost, and nobody has said that it may."""
        to, without, unreachable = self.to, self.without, self.probe.unreachable
        directory_ids = {each.me.directory_id for each in shown}
        missing = {one: peer for one, peer in named_by(shown).items() if one not in directory_ids}
        # Where no broker knows a list, any known broker may be on one.
        ids = sorted({peer.id for peer in missing.values()} | {*([] if count.lists else unreachable)})
        all_without = f"--to {to} {' '.join(f'--without {each}' for each in ids)} --unsafe"
        if self.unsafe and (without or not count.may_lead):
            if needless := sorted({*without} - {*ids}):
                why = "answers" if needless[0] in self.probe.answers else "is on no replica list"
                raise SwitchRefused(
                    f"broker {needless[0]} {why}: omit --without {needless[0]} (brokers that may be left"
                    f" out: {', '.join(ids) or 'none'})"
                )
            if left := [each for each in ids if each not in without]:
                raise SwitchRefused(
                    f"{' and '.join(left)} did not answer, or has another directory than the replica"
                    " list: messages acknowledged only there will be lost, and that directory"
                    f" must never become master again. To accept that: {all_without}"
                )
            return list(missing.values())
        if not count.lists:
            raise SwitchRefused(
                f"broker {to} has not connected to a master yet: start it with --master and the master's"
                " --ha-port; --unsafe makes a new group of it all the same"
            )
        if count.short:
            lists = [peer for each in count.short for peer in each.members]
            short = sorted({peer.id for peer in lists if peer.directory_id not in directory_ids})
            needs = "; ".join(
                f"{len(each.directories & directory_ids)} of {', '.join(each.ids)} answer,"
                f" {each.promises} are needed"
                for each in count.short
            )
            why = "".join(f". {each}: {unreachable[each]}" for each in short if each in unreachable)
            raise SwitchRefused(
                f"{' and '.join(short)} did not answer, or has another directory than the replica list,"
                f" and may hold acknowledged messages ({needs}). Start it with its original directory;"
                f" if that is lost for good, continue without it: {all_without}{why}"
            )
        if count.ahead:
            best = count.ahead[0]
            raise SwitchRefused(
                f"broker {best.me.id} has more on its disk than {to}: {best.rank}, against"
                f" {shown_by(self.probe.answers[to]).rank}. Take --to {best.me.id}, or lose the"
                " messages in between with --unsafe"
            )
        if not count.is_listed:
            raise SwitchRefused(
                f"broker {to} is not on the list ({', '.join(count.lists[-1].ids)}): quorumlog broker"
                f" add --broker {to} first"
            )
        return []


def _lost(kept: dict[str, ReplicaResponse], own: Shown, count: Count, gone: list[Peer]) -> Lost | None:
    answer = kept[own.me.id]
    first, stop = answer.max_offset, -1
    if count.ahead:
        best = count.ahead[0]
        end = kept[best.me.id].max_offset
        first = max(common_offset(own.history, answer.max_offset, best.history, end), 0)
        stop = end
    if gone or not count.lists:
        # A lost broker may have gone on from where consumers have seen the log.
        return Lost(min(first, max(a.confirm_offset for a in kept.values())), -1)
    return Lost(first, stop) if stop > first else None
