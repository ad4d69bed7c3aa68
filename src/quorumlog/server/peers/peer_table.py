"""PeerTable: the other members that this one dials and hears.

They are those of every membership that may hold (`node/member_changes.py`), at the addresses named
there, and whoever was just asked to become one. Who is named no longer stays connected for a moment, to
learn of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from quorumlog.config import MemberAddress, parse_address
from quorumlog.server.peers.peer import Peer

STAYS_S = 3.0
INVITED_S = 30.0
"""Somebody who was asked to become a member has so long to answer."""


class PeerTable(Mapping[str, Peer]):
    def __init__(self, own_id: str, make: Callable[[MemberAddress], Peer]) -> None:
        self._own_id = own_id
        self._make = make
        self._peers: dict[str, Peer] = {}
        self._wanted: dict[str, str] = {}
        self._invited: dict[str, tuple[str, float]] = {}
        """Address, and until when, by id."""
        self._ends_s: dict[str, float] = {}
        """When who is named no longer is parted from."""
        self._timer: asyncio.TimerHandle | None = None
        self._runs = False
        self._closing: list[Peer] = []

    def __getitem__(self, member_id: str) -> Peer:
        return self._peers[member_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def start(self) -> None:
        self._runs = True
        for peer in self._peers.values():
            peer.start()

    def follow(self, addresses: Mapping[str, str]) -> None:
        """These are the members, this one perhaps among them, by id."""
        self._wanted = {i: address for i, address in addresses.items() if i != self._own_id}
        self._look()

    def invite(self, member_id: str, address: str) -> None:
        """Raises ConfigError for an address that is none."""
        parse_address(address)
        if member_id != self._own_id and member_id not in self._wanted:
            self._invited[member_id] = address, asyncio.get_running_loop().time() + INVITED_S
            self._look()

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
                self._open(MemberAddress(member_id, *parse_address(address)))
        for member_id in [i for i in self._peers if i not in wanted]:
            if self._ends_s.setdefault(member_id, now_s + STAYS_S) <= now_s:
                self._part_from(member_id)
        self._look_again(now_s)

    def _look_again(self, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [*self._ends_s.values(), *(until_s for _, until_s in self._invited.values())]
        if times and self._runs:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, min(times) - now_s) + 0.01, self._look)

    def _open(self, address: MemberAddress) -> None:
        peer = self._peers[address.member_id] = self._make(address)
        if self._runs:
            peer.start()

    def _part_from(self, member_id: str) -> None:
        self._ends_s.pop(member_id, None)
        peer = self._peers.pop(member_id)
        peer.part()
        self._closing.append(peer)

    def close(self) -> None:
        self._runs = False
        if self._timer is not None:
            self._timer.cancel()
        for peer in self._peers.values():
            peer.close()

    async def ended(self) -> None:
        for peer in (*self._peers.values(), *self._closing):
            await peer.ended()
