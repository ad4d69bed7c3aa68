"""PeerTable: the other members that this one dials and hears.

They are those of every membership that may hold (`node/member_changes.py`), at the addresses named
there, and whoever was just asked to become one. Who is named no longer stays connected for a moment, to
learn of it.

A member is a name at an address, and what votes is a directory. While a directory is replaced both
of that name are voters, and both may be alive: the one that does not answer at the address has a peer
of its own beside, which dials it where it listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping

from quorumlog.config import MemberAddress, parse_address
from quorumlog.entry import Replica
from quorumlog.net.connection import Connection
from quorumlog.net.hello import Hello
from quorumlog.net.peer_hello import Identity
from quorumlog.server.peers.peer import Peer, place_of

STAYS_S = 3.0
INVITED_S = 30.0
"""Somebody who was asked to become a member has so long to answer."""
MOST_INVITED = 64
"""Who asks in vain under ever more names makes this member dial no more of them."""
MOST_BESIDE = 64


class PeerTable(Mapping[str, Peer]):
    def __init__(self, own_id: str, make: Callable[[MemberAddress], Peer]) -> None:
        self._own_id = own_id
        self._make = make
        self._peers: dict[str, Peer] = {}
        self._beside: dict[Replica, Peer] = {}
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

    def __getitem__(self, member_id: str) -> Peer:
        return self._peers[member_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def everybody(self) -> list[Peer]:
        return [*self._peers.values(), *self._beside.values()]

    def leading_to(self, replica: Replica) -> Peer | None:
        """Whoever else answers at the address of its name."""
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

    def admit(self, hello: Hello, connection: Connection, *, beside: bool) -> Peer:
        """Whose this connection is. `beside`: another directory answers at the address of its name."""
        replica = Replica(hello.member_id, hello.directory_id)
        if not beside:
            self._part_from(replica)
            return self._peers[hello.member_id]
        address = MemberAddress(hello.member_id, *parse_address(place_of(hello, connection)))
        peer = self._beside.get(replica)
        if peer is not None and peer.address != address:
            self._part_from(replica)
            peer = None
        if peer is None:
            if len(self._beside) >= MOST_BESIDE:
                self._part_from(next(iter(self._beside)))
            peer = self._beside[replica] = self._opened(address)
            self._look()
        return peer

    def _answered(self, peer: Peer, identity: Identity) -> bool:
        """See `Peer.on_answered`."""
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
            if peer is not None and str(peer.address) != address:
                self._part_from(member_id)
                peer = None
            if peer is None:
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

    def _opened(self, address: MemberAddress) -> Peer:
        peer = self._make(address)
        peer.on_answered = self._answered
        if self._runs:
            peer.start()
        return peer

    def _part_from(self, whom: str | Replica) -> None:
        """A member, or a directory that is beside; of one that is neither nothing changes."""
        self._ends_s.pop(whom, None)
        peer = self._peers.pop(whom, None) if isinstance(whom, str) else self._beside.pop(whom, None)
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
