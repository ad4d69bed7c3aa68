"""Routing of calls, to the leader once it is found, or to a member that may answer.

The leader is learned from the answer to a product's probe, and from the hint of a refusal. Without a
leader, servers are asked every few tens of milliseconds: one more each time, and all at once when a
leader was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from quorumlog.net.rpc.calls import Call, Lane, Link, RequestTarget, TargetKind
from quorumlog.net.rpc.link_table import LinkTable
from quorumlog.net.rpc.timings import Timings
from quorumlog.net.rpc.view import GroupView
from quorumlog.wire.client_message import ClientMessage


class Router:
    def __init__(
        self,
        view: GroupView,
        links: LinkTable,
        timings: Timings,
        random: Random,
        probe: ClientMessage,
        send: Callable[[Link, Call], object],
    ) -> None:
        self._view = view
        self._links = links
        self._ask_interval_ms = timings.ask_interval_ms
        self._random = random
        self._probe = probe
        self._send = send
        self._asked_width = 1
        """Number of servers asked in the next round."""
        self._next_ask_ms = 0.0

    def link_to(self, target: RequestTarget, lane: Lane, now_ms: float) -> Link | None:
        """The open link to the target; if there is none, dial it and return None."""
        address = self._address_of(target, lane, now_ms)
        return None if address is None else self._links.open_or_dial(address, lane, now_ms)

    def _address_of(self, target: RequestTarget, lane: Lane, now_ms: float) -> str | None:
        if target.kind is TargetKind.LEADER:
            return self._view.leader.address if self._view.leader else None
        if target.kind is TargetKind.MEMBER:
            return self._view.member_address(target.name)
        if target.kind is TargetKind.ADDRESS:
            return target.name
        if target.name and self.is_leader_connected and self._view.leader is not None:
            return self._view.leader.address
        return self._links.best_of(self._view.known_addresses(), lane, now_ms)

    @property
    def is_leader_connected(self) -> bool:
        leader = self._view.leader
        return leader is not None and self._links.is_open(leader.address, Lane.CONTROL)

    # ---------------------------------------------------------------- asking around

    def ask_around(self, now_ms: float, *, beside: str = "") -> None:
        """Ask servers for the leader, unless done a moment ago. `beside`: a suspect server, which is
        not asked."""
        if now_ms < self._next_ask_ms:
            return
        self._next_ask_ms = now_ms + self._ask_interval_ms * self._random.uniform(2 / 3, 4 / 3)
        addresses = self._view.known_addresses()
        for address in addresses[: self._asked_width]:
            if address != beside:
                link = self._links.open_or_dial(address, Lane.CONTROL, now_ms)
                if link is not None:
                    self.ask_view(link, now_ms)
        self._asked_width = min(self._asked_width + 1, len(addresses))

    def ask_all(self, now_ms: float) -> None:
        """Ask at once all servers that have not identified themselves."""
        for address in self._view.known_addresses():
            if address not in self._view.names:
                self._links.open_or_dial(address, Lane.CONTROL, now_ms)

    def ask_view(self, link: Link, now_ms: float) -> None:
        if link.probe is None:
            link.probe = Call(
                self._probe,
                RequestTarget(TargetKind.ADDRESS, link.address),
                changes=False,
                submitted_ms=now_ms,
                deadline_ms=float("inf"),
            )
            self._send(link, link.probe)

    def suspect(self, link: Link, now_ms: float) -> None:
        """An answer of a server is overdue: probe it, and ask the others for the leader."""
        self.ask_view(link, now_ms)
        self._asked_width = len(self._view.known_addresses())
        self.ask_around(now_ms, beside=link.address)

    def connection_ended(self, link: Link, now_ms: float, *, was_open: bool) -> None:
        """Start the next round at once if it was the leader's connection, or of a server that cannot
        be asked."""
        if self._view.is_leader(link.address):
            # The others are asked even if only a read was lost: the process may be gone.
            self._asked_width = len(self._view.known_addresses())
            self._next_ask_ms = 0.0
            if link.lane is Lane.CONTROL:
                self._view.connection_lost(link.address, now_ms)
        if not was_open:
            self._asked_width += 1
            self._next_ask_ms = 0.0
