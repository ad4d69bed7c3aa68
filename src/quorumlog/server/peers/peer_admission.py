"""PeerAdmission: who may speak as which member, on the connections that others dial.

A member is one process on one data directory. Two may come with one member id: a configuration was
copied, or a directory, or one was made anew while the old one still serves. One of them is let in, and
stays:

    a directory that votes and does not answer at the address of its name is let in beside who does:
    while a directory is replaced both vote, and the one that is back before that is to be seen
    else a directory that votes comes before one that does not
    of two that are alike, the one that answers at the address in our list of members

A connection that still stands is no proof that its process lives, so the address is asked. Nobody is
refused for a process whose connections have gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from quorumlog.config import GroupConfig
from quorumlog.entry import Replica
from quorumlog.errors import ConfigError
from quorumlog.net.connection import Connection
from quorumlog.net.hello import DUPLICATE, REFUSED, UNSETTLED, WELCOME, Hello, HelloResponse
from quorumlog.net.peer_hello import Identity, differing_addresses, identity_of, ids_of, refusal_of
from quorumlog.server.peers.address_probe import who_answers
from quorumlog.server.peers.dialler import Dialler
from quorumlog.server.peers.peer import Peer, place_of, says_place

STANDS_S = 10.0
"""So long after it was refused last somebody who tries again and again is a problem."""
RIVAL_CHARACTERS = 1000
MOST_NOTED = 16


class Verdict(NamedTuple):
    code: int
    reason: str = ""
    beside: bool = False
    """Let in, and another directory answers at the address of its name."""


class PeerAdmission:
    def __init__(
        self,
        dialler: Dialler,
        config: GroupConfig,
        peers: Mapping[str, Peer],
        greeting: Callable[[], HelloResponse],
        voters: Callable[[], Collection[Replica]],
        lists_count: Callable[[], bool],
        leader_id: Callable[[], str],
        invite: Callable[[str, str], None],
        on_bug: Callable[[BaseException], None],
    ) -> None:
        """`lists_count`: the log does not say yet who the members are, and where. `leader_id`: whom this
        member follows, empty while it hears no leader. `invite(member_id, address)`: see `PeerTable`."""
        self._dialler = dialler
        self._config = config
        self._peers = peers
        self._greeting = greeting
        self._voters = voters
        self._lists_count = lists_count
        self._leader_id = leader_id
        self._invite = invite
        self._on_bug = on_bug
        self._probes: dict[str, asyncio.Task[Identity | None]] = {}
        """By member id, one at a time."""
        self._deciding: set[asyncio.Task[None]] = set()
        self._noted: dict[str, float] = {}
        """Sentences about who was refused, and until when each stands."""

    def judge(self, hello: Hello, connection: Connection, decided: Callable[[Verdict], None]) -> None:
        """Calls `decided` once, now or after a look at who answers at the member's address."""
        own = self._greeting()
        if self._may_know_more(hello, own):
            with suppress(ConfigError):
                self._invite(hello.member_id, _address_of(hello, connection))
        reason = refusal_of(hello, own, self._config.group, self._peers.keys())
        if reason:
            if hello.member_id in self._peers and ids_of(hello.members) != ids_of(own.members):
                self.note(reason)
            decided(Verdict(REFUSED, reason))
            return
        peer = self._peers[hello.member_id]
        if self._is_beside(hello, peer.placed):
            decided(Verdict(WELCOME, beside=True))
            return
        holder = peer.speaker
        if holder is None or self._is_before(hello, holder):
            decided(Verdict(WELCOME))
            return
        sentence = _two_processes(peer, hello, connection, holder)
        task = asyncio.get_running_loop().create_task(self._decide(peer, hello, sentence, decided))
        self._deciding.add(task)
        task.add_done_callback(self._decided)

    def _may_know_more(self, hello: Hello, own: HelloResponse) -> bool:
        """Of a member of the cluster that is not on the list here: who was away, or has lost its
        directory, may know of nobody who is a member by now. It listens while it hears no leader."""
        return (
            hello.to_member_id == own.member_id != hello.member_id
            and hello.member_id not in self._peers
            and bool(hello.cluster_id)
            and own.cluster_id in ("", hello.cluster_id)
            and self._leader_id() in ("", hello.member_id)
        )

    def _decided(self, task: asyncio.Task[None]) -> None:
        self._deciding.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_bug(error)

    async def _decide(
        self, peer: Peer, hello: Hello, sentence: str, decided: Callable[[Verdict], None]
    ) -> None:
        answer = await asyncio.shield(self._probe(peer, identity_of(hello), sentence))
        if self._peers.get(peer.member_id) is not peer:
            # No member any more, or to be found elsewhere: whoever asks again is judged by that.
            decided(Verdict(UNSETTLED, sentence))
            return
        holder = peer.speaker  # by now
        if (
            holder is None
            or self._is_before(hello, holder)
            or (answer == identity_of(hello) and not self._is_before(holder, hello))
        ):
            decided(Verdict(WELCOME))
        elif self._is_beside(hello, answer or holder):
            decided(Verdict(WELCOME, beside=True))
        else:
            self.note(sentence)
            decided(Verdict(DUPLICATE if answer == holder else UNSETTLED, sentence))

    def _probe(self, peer: Peer, rival: Identity, sentence: str) -> asyncio.Task[Identity | None]:
        probe = self._probes.get(peer.member_id)
        if probe is None:
            group, address = self._config.group, peer.address
            asked = who_answers(self._dialler, group, address, rival, sentence)
            probe = asyncio.get_running_loop().create_task(asked)
            self._probes[peer.member_id] = probe
            probe.add_done_callback(lambda _: self._probes.pop(peer.member_id))
        return probe

    def _is_beside(self, hello: Hello, placed: Identity | None) -> bool:
        """It votes, and who answers at the address of its name is another directory. It can only be
        dialled there if it says where it listens."""
        return (
            placed is not None
            and placed.directory_id != hello.directory_id
            and says_place(hello)
            and Replica(hello.member_id, hello.directory_id) in self._voters()
        )

    def _is_before(self, one: Hello | Identity, other: Hello | Identity) -> bool:
        """One is the very process that the other is, or has a directory that votes, and the other has
        not."""
        voting = {voter.directory_id for voter in self._voters()}
        return identity_of(one) == identity_of(other) or (
            one.directory_id in voting and other.directory_id not in voting
        )

    def note(self, sentence: str) -> None:
        """Somebody was refused, or says so: a problem as long as it comes again."""
        sentence = "".join(each if each.isprintable() else "?" for each in sentence[:RIVAL_CHARACTERS])
        if sentence in self._noted or len(self._noted) < MOST_NOTED:
            self._noted[sentence] = time.monotonic() + STANDS_S

    def problems(self) -> list[str]:
        """Who refuses this member, whose list of members differs, who was refused here."""
        now_s = time.monotonic()
        self._noted = {sentence: until_s for sentence, until_s in self._noted.items() if until_s > now_s}
        own = self._greeting().members
        found = [peer.control.problem for peer in self._peers.values() if peer.control.problem]
        for member_id, peer in sorted(self._peers.items()):
            theirs = peer.member_list
            if theirs and self._lists_count() and differing_addresses(theirs, own):
                found.append(f"{member_id} has other addresses: {theirs}; here: {own}")
        return [*found, *self._noted]

    def close(self) -> None:
        for task in (*self._deciding, *self._probes.values()):
            task.cancel()

    async def ended(self) -> None:
        """After `close`: until nothing of it is left in the loop."""
        if tasks := {*self._deciding, *self._probes.values()}:
            await asyncio.wait(tasks)


def _address_of(hello: Hello, connection: Connection) -> str:
    """Where it says that it is a member, else where it listens."""
    listed = dict(item.partition("=")[::2] for item in hello.members.split(","))
    return listed.get(hello.member_id) or place_of(hello, connection)


def _two_processes(peer: Peer, hello: Hello, connection: Connection, holder: Identity) -> str:
    """What both of them, this member and its operator are told. The same sentence at each try."""
    theirs = f"directory {hello.directory_id}"
    if hello.directory_id == holder.directory_id:
        theirs = "the same directory or a copy of it"
    return (
        f"two processes are {peer.member_id}: the one at {peer.speaks_from} with directory"
        f" {holder.directory_id} is connected, the one at {place_of(hello, connection)} with {theirs} is"
        " refused; stop the one that should not run"
    )
