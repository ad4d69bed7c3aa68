"""PeerAdmission: who may speak as which member, on the connections that others dial.

A member is one process on one data directory. Two may come with one member id: a configuration was
copied, or a directory, or one was made anew while the old one still serves. The member is whoever
answers at the address in our list of members, which is dialled all the time, and the other one is
refused. Only a directory that votes is let in beside: while one is replaced both vote, and the one that
is back before that is to be seen.
"""

from __future__ import annotations

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
from quorumlog.server.peers.peer import Peer, place_of, says_place

STANDS_S = 10.0
"""So long after it was refused last somebody who tries again and again is a problem."""
NOTE_CHARACTERS = 1000
MOST_NOTED = 16


class Verdict(NamedTuple):
    code: int
    reason: str = ""
    beside: bool = False
    """Let in, and another directory answers at the address of its name."""


class PeerAdmission:
    def __init__(
        self,
        config: GroupConfig,
        peers: Mapping[str, Peer],
        greeting: Callable[[], HelloResponse],
        voters: Callable[[], Collection[Replica]],
        lists_count: Callable[[], bool],
        leader_id: Callable[[], str],
        invite: Callable[[str, str], None],
    ) -> None:
        """`lists_count`: the log does not say yet who the members are, and where. `leader_id`: whom this
        member follows, empty while it hears no leader. `invite(member_id, address)`: see `PeerTable`."""
        self._config = config
        self._peers = peers
        self._greeting = greeting
        self._voters = voters
        self._lists_count = lists_count
        self._leader_id = leader_id
        self._invite = invite
        self._noted: dict[str, float] = {}
        """Sentences about who was refused, and until when each stands."""

    def judge(self, hello: Hello, connection: Connection) -> Verdict:
        own = self._greeting()
        if self._may_know_more(hello, own):
            with suppress(ConfigError):
                self._invite(hello.member_id, _address_of(hello, connection))
        reason = refusal_of(hello, own, self._config.group, self._peers.keys())
        if reason:
            if hello.member_id in self._peers and ids_of(hello.members) != ids_of(own.members):
                self.note(reason)
            return Verdict(REFUSED, reason)
        peer = self._peers[hello.member_id]
        holder = peer.placed or peer.speaker
        if holder is None or holder == identity_of(hello):
            return Verdict(WELCOME)
        is_there = peer.placed is None or place_of(hello, connection) == str(peer.address)
        if holder.directory_id == hello.directory_id and is_there:
            return Verdict(WELCOME)  # started again; what stands of the process before is a leftover
        if self._is_beside(hello, holder):
            return Verdict(WELCOME, beside=True)
        peer.look()
        sentence = _two_processes(peer, hello, connection, holder)
        self.note(sentence)
        return Verdict(UNSETTLED if peer.placed is None else DUPLICATE, sentence)

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

    def _is_beside(self, hello: Hello, holder: Identity) -> bool:
        """It votes, and another directory has its name. It can only be dialled if it says where it
        listens."""
        return (
            holder.directory_id != hello.directory_id
            and says_place(hello)
            and Replica(hello.member_id, hello.directory_id) in self._voters()
        )

    def note(self, sentence: str) -> None:
        """Somebody was refused: a problem as long as it comes again."""
        sentence = "".join(each if each.isprintable() else "?" for each in sentence[:NOTE_CHARACTERS])
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
