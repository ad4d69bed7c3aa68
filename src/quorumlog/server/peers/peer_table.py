"""PeerTable: the other members that this one dials and accepts.

They are those of every membership that may hold (`node/member_changes.py`), at the addresses named
there, and every member just invited to become one. A member no longer named stays connected for a
moment, to learn of it.

A member is a name at an address, and what votes is a directory. While a directory is replaced both of
that name are voters, and both may be alive: the one that does not answer at the address gets a peer of
its own, which dials it where it listens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from quorumlog.config import GroupConfig, MemberAddress, parse_address
from quorumlog.entry import Replica
from quorumlog.errors import ConfigError
from quorumlog.net.connection import Connection
from quorumlog.net.hello import DUPLICATE, REFUSED, UNSETTLED, WELCOME, Hello, HelloResponse
from quorumlog.net.peer_hello import Identity, differing_addresses, identity_of, ids_of, refusal_of
from quorumlog.server.peers.peer import RemoteMember, place_of, says_place

STAYS_S = 3.0
INVITED_S = 30.0
"""An invited member has so long to answer."""
MOST_INVITED = 64
"""Bounds the addresses dialled for refused peers with ever new names."""
MOST_BESIDE = 64


class PeerTable(Mapping[str, RemoteMember]):
    def __init__(self, own_id: str, make: Callable[[MemberAddress], RemoteMember]) -> None:
        self._own_id = own_id
        self._make = make
        self._peers: dict[str, RemoteMember] = {}
        self._beside: dict[Replica, RemoteMember] = {}
        """Directories that do not answer at the address of their name."""
        self._voters: Collection[Replica] = ()
        self._wanted: dict[str, str] = {}
        self._invited: dict[str, tuple[str, float]] = {}
        """Address, and until when, by id."""
        self._ends_s: dict[str | Replica, float] = {}
        """When who is named no longer is parted from."""
        self._timer: asyncio.TimerHandle | None = None
        self._runs = False
        self._closing: set[asyncio.Task[None]] = set()
        """Peers that were parted from, until nothing of them is left in the loop."""

    def __getitem__(self, member_id: str) -> RemoteMember:
        return self._peers[member_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def everybody(self) -> list[RemoteMember]:
        return [*self._peers.values(), *self._beside.values()]

    def leading_to(self, replica: Replica) -> RemoteMember | None:
        """Another directory that answers at the address of its name."""
        return self._beside.get(replica) or self._peers.get(replica.member_id)

    def place_beside(self, replica: Replica) -> str:
        """Where a directory listens that does not answer at the address of its name; empty: it does."""
        peer = self._beside.get(replica)
        return "" if peer is None else str(peer.address)

    def start(self) -> None:
        self._runs = True
        for peer in self.everybody():
            peer.start()

    def follow(self, addresses: Mapping[str, str], voters: Collection[Replica] = ()) -> None:
        """These are the members, this one perhaps among them, by id, and these directories vote."""
        self._wanted = {i: address for i, address in addresses.items() if i != self._own_id}
        self._voters = voters
        self._look()

    def invite(self, member_id: str, address: str) -> None:
        """Raises ConfigError for an address that is none."""
        parse_address(address)
        if member_id != self._own_id and member_id not in self._wanted:
            self._invited.pop(member_id, None)
            if len(self._invited) >= MOST_INVITED:
                del self._invited[next(iter(self._invited))]
            self._invited[member_id] = address, asyncio.get_running_loop().time() + INVITED_S
            self._look()

    def admit(self, hello: Hello, connection: Connection, *, beside: bool) -> RemoteMember:
        """The member of this connection. `beside`: another directory answers at the address of its
        name."""
        replica = Replica(hello.member_id, hello.directory_id)
        if not beside:
            self._part_from(replica)
            return self._peers[hello.member_id]
        address = MemberAddress(hello.member_id, *parse_address(place_of(hello, connection)))
        peer = self._beside.get(replica)
        if peer is None or peer.address != address:
            self._part_from(replica)
            if len(self._beside) >= MOST_BESIDE:
                self._part_from(next(iter(self._beside)))
            peer = self._beside[replica] = self._opened(address)
            self._look()
        return peer

    def _on_answered(self, peer: RemoteMember, identity: Identity) -> bool:
        """See `RemoteMember.on_answered`."""
        replica = Replica(peer.member_id, identity.directory_id)
        if self._peers.get(peer.member_id) is peer:
            self._part_from(replica)  # it is where its name is by now, and dials again
            return True
        if self._beside.get(replica) is peer:
            return True
        for each in [each for each, beside in self._beside.items() if beside is peer]:
            self._part_from(each)
        return False

    def _look(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._invited = {
            i: (address, until_s)
            for i, (address, until_s) in self._invited.items()
            if now_s < until_s and i not in self._wanted
        }
        wanted = {**{i: address for i, (address, _) in self._invited.items()}, **self._wanted}
        for member_id, address in wanted.items():
            self._ends_s.pop(member_id, None)
            peer = self._peers.get(member_id)
            if peer is None or str(peer.address) != address:
                self._part_from(member_id)
                self._peers[member_id] = self._opened(MemberAddress(member_id, *parse_address(address)))
        for replica in self._beside:
            if replica in self._voters:
                self._ends_s.pop(replica, None)
        gone: list[str | Replica] = [i for i in self._peers if i not in wanted]
        gone += [replica for replica in self._beside if replica not in self._voters]
        for each in gone:
            if self._ends_s.setdefault(each, now_s + STAYS_S) <= now_s:
                self._part_from(each)
        self._look_again(now_s)

    def _look_again(self, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [*self._ends_s.values(), *(until_s for _, until_s in self._invited.values())]
        if times and self._runs:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, min(times) - now_s) + 0.01, self._look)

    def _opened(self, address: MemberAddress) -> RemoteMember:
        peer = self._make(address)
        peer.on_answered = self._on_answered
        if self._runs:
            peer.start()
        return peer

    def _part_from(self, key: str | Replica) -> None:
        """A member, or a directory that is beside; of one that is neither nothing changes."""
        self._ends_s.pop(key, None)
        peer = self._peers.pop(key, None) if isinstance(key, str) else self._beside.pop(key, None)
        if peer is not None:
            peer.part()
            task = asyncio.get_running_loop().create_task(peer.ended())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def close(self) -> None:
        self._runs = False
        if self._timer is not None:
            self._timer.cancel()
        for peer in self.everybody():
            peer.close()

    async def ended(self) -> None:
        for peer in self.everybody():
            await peer.ended()
        if self._closing:
            await asyncio.wait(tuple(self._closing))


# ----------------------------------------------------------------
# A member is one process on one data directory. Two may come with one member id: a configuration was
# copied, or a directory, or one was made anew while the old one still serves. The member is the process
# that answers at the address in our list of members, which is dialled all the time, and once more where
# another one comes; that other one is refused. Only a directory that votes is let in beside: while one
# is replaced both vote, and the one that is back before that is to be seen.


SHOWN_S = 10.0
"""For so long after its last refusal a peer that keeps trying is a problem."""
NOTE_CHARACTERS = 1000
MOST_NOTED = 16


class Admission(NamedTuple):
    code: int
    reason: str = ""
    beside: bool = False
    """Let in, and another directory answers at the address of its name."""


class PeerAdmission:
    """Who may speak as which member, on the connections that others dial."""

    def __init__(
        self,
        config: GroupConfig,
        peers: Mapping[str, RemoteMember],
        greeting: Callable[[], HelloResponse],
        voters: Callable[[], Collection[Replica]],
        lists_count: Callable[[], bool],
        leader_id: Callable[[], str],
        invite: Callable[[str, str], None],
    ) -> None:
        """`lists_count`: the log does not hold the members and addresses yet. `leader_id`: of the leader
        this member follows, empty without one. `invite(member_id, address)`: see `PeerTable`."""
        self._config = config
        self._peers = peers
        self._greeting = greeting
        self._voters = voters
        self._lists_count = lists_count
        self._leader_id = leader_id
        self._invite = invite
        self._noted: dict[str, float] = {}
        """Sentences about who was refused, and until when each stands."""

    def judge(self, hello: Hello, connection: Connection) -> Admission:
        own = self._greeting()
        if self._may_know_more(hello, own):
            with suppress(ConfigError):
                self._invite(hello.member_id, _address_of(hello, connection))
        reason = refusal_of(hello, own, self._config.group, {own.member_id, *self._peers})
        if reason:
            if hello.member_id in self._peers and ids_of(hello.members) != ids_of(own.members):
                self.note(reason)
            return Admission(REFUSED, reason)
        peer = self._peers[hello.member_id]
        holder = peer.placed or peer.speaker
        if holder is None or holder == identity_of(hello):
            return Admission(WELCOME)
        if holder.directory_id == hello.directory_id and peer.placed is None:
            return Admission(WELCOME)  # started again; what stands of the process before is a leftover
        if self._is_beside(hello, holder):
            return Admission(WELCOME, beside=True)
        peer.look_again()
        sentence = _two_processes(peer, hello, connection, holder)
        self.note(sentence)
        return Admission(UNSETTLED if peer.placed is None else DUPLICATE, sentence)

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
        """A peer was refused: a problem as long as it keeps trying."""
        sentence = "".join(each if each.isprintable() else "?" for each in sentence[:NOTE_CHARACTERS])
        if sentence in self._noted or len(self._noted) < MOST_NOTED:
            self._noted[sentence] = time.monotonic() + SHOWN_S

    def problems(self) -> list[str]:
        """Members that refuse this one, have another member list, or were refused here."""
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


def _two_processes(peer: RemoteMember, hello: Hello, connection: Connection, holder: Identity) -> str:
    """What both of them, this member and its operator are told. The same sentence at each try."""
    theirs = f"directory {hello.directory_id}"
    if hello.directory_id == holder.directory_id:
        theirs = "the same directory or a copy of it"
    return (
        f"two processes are {peer.member_id}: the one at {peer.speaks_from} with directory"
        f" {holder.directory_id} is connected, the one at {place_of(hello, connection)} with {theirs} is"
        " refused; stop the one that should not run"
    )
