"""The connections of one client: at most one for each server and lane, and when to dial again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from quorumlog.net.frame import FrameDecoder
from quorumlog.net.rpc.calls import Lane, Link, LinkState
from quorumlog.net.rpc.timings import Timings


class LinkTable:
    def __init__(self, random: Random, timings: Timings, decoder: Callable[[], FrameDecoder]) -> None:
        self._timings = timings
        self._decoder = decoder
        self._random = random
        self._links: dict[tuple[str, Lane], Link] = {}
        self._failures: dict[str, int] = {}
        """Address -> consecutive failed connections; removed when the server greets."""
        self._retry_at_ms: dict[str, float] = {}
        self.to_dial: list[Link] = []
        self.to_close: list[Link] = []
        self.to_write: dict[Link, None] = {}
        """Links with new bytes in their outbox."""
        self.is_closed = False
        """True: no link is returned or dialled any more."""

    def all(self) -> list[Link]:
        return list(self._links.values())

    def get(self, address: str, lane: Lane) -> Link | None:
        return self._links.get((address, lane))

    def is_open(self, address: str, lane: Lane) -> bool:
        link = self._links.get((address, lane))
        return link is not None and link.state is LinkState.OPEN

    def is_down(self, address: str) -> bool:
        """The connection was lost, and dialling failed since."""
        is_open = any(self.is_open(address, lane) for lane in Lane)
        return not is_open and self._failures.get(address, 0) > 1

    def next_look_ms(self, busy_ms: float, listen_ms: float) -> float:
        """Time of the next check: after `busy_ms` if an answer is due; else when an idle link with
        watches has been silent too long."""
        look_ms = float("inf")
        for link in self._links.values():
            if link.pending or link.state is not LinkState.OPEN:
                return busy_ms
            if link.watches:
                look_ms = min(look_ms, link.last_received_ms + listen_ms)
        return look_ms

    def open_or_dial(self, address: str, lane: Lane, now_ms: float) -> Link | None:
        """The open link; None: it is being dialled, or failed a moment ago."""
        if self.is_closed:
            return None
        link = self._links.get((address, lane))
        if link is None:
            if self._retry_at_ms.get(address, 0.0) <= now_ms:
                link = Link(address, lane, now_ms, now_ms, decoder=self._decoder())
                self._links[address, lane] = link
                self.to_dial.append(link)
            return None
        return link if link.state is LinkState.OPEN else None

    def best_of(self, addresses: Sequence[str], lane: Lane, now_ms: float) -> str | None:
        """A connected address, else the one with fewest failures; None: all back off."""
        usable = [a for a in addresses if self._retry_at_ms.get(a, 0.0) <= now_ms]
        for address in usable:
            if self.is_open(address, lane):
                return address
        return min(usable, key=lambda a: self._failures.get(a, 0), default=None)

    def greeted(self, link: Link, now_ms: float) -> None:
        link.state = LinkState.OPEN
        link.since_ms = now_ms
        self._failures.pop(link.address, None)

    def remove(self, link: Link, now_ms: float) -> None:
        """Its address is dialled again after a pause that doubles with every failure."""
        assert self._links.get((link.address, link.lane)) is link, (link.address, link.lane)
        link.state = LinkState.CLOSED
        del self._links[link.address, link.lane]
        self.to_close.append(link)
        self.to_write.pop(link, None)
        failures = self._failures.get(link.address, 0)
        self._failures[link.address] = failures + 1
        wait_ms = min(self._timings.redial_ms * (1 << min(failures, 5)), self._timings.redial_limit_ms)
        self.rest(link.address, now_ms + wait_ms * self._random.uniform(0.5, 1.0))

    def rest(self, address: str, until_ms: float) -> None:
        """The address is not dialled earlier."""
        self._retry_at_ms[address] = until_ms

    def describe(self, address: str) -> str:
        link = self.get(address, Lane.CONTROL) or self.get(address, Lane.READ)
        if link is None:
            return "not tried"
        return "connected" if link.state is LinkState.OPEN else "no answer yet"
