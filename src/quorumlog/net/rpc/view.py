"""A client's view of a group: its members, their addresses, the leader.

Reports come from any member and may be stale; the term in them shows which is newer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from quorumlog.errors import LedgerError


class ServerView(NamedTuple):
    """The report of one server: itself, and its leader."""

    member_id: str
    role: str
    term: int
    leads: bool
    leader_id: str = ""
    leader_address: str = ""
    """Empty: the address at which `leader_id` has greeted, or is reported."""
    members: dict[str, str] = {}  # noqa: RUF012 - never changed
    """Member id -> address."""
    membership_index: int = -1
    """Version of the list of members; -1: not sent."""
    waits_for: str = ""
    """Why it cannot lead; empty: it can, or it does not say."""


class LeaderView(NamedTuple):
    address: str
    term: int
    """-1: from the hint of a refusal, which names no term."""


class Note(NamedTuple):
    at_ms: float
    what: str


class EventKind(Enum):
    """Events of the group that a client logs."""

    LEADER = "is the leader now"
    LOST = "the connection was lost"
    BACK = "is connected again"
    SET_BACK = "the group has lost entries that were committed"


class GroupEvent(NamedTuple):
    kind: EventKind
    address: str
    reason: str = ""


class _LostLeader(NamedTuple):
    term: int
    at_ms: float


_NEVER = _LostLeader(-1, float("-inf"))


class GroupView:
    def __init__(self, servers: Sequence[str], *, distrust_lost_ms: float) -> None:
        self._configured = list(dict.fromkeys(servers))
        self.servers = self._configured
        self.advertised: dict[str, str] = {}
        """Member id -> address, as servers report it."""
        self._membership_index = -1
        """Version of the newest list of members received."""
        self.greeted: dict[str, str] = {}
        """Member id -> address at which the member has greeted: preferred, as long as it works."""
        self.names: dict[str, str] = {}
        """The last member that greeted, by address."""
        self.leader: LeaderView | None = None
        self._led_at = ""
        """Address reported for the newest leader, whether or not the report is accepted."""
        self.leader_term = -1
        """Highest term with a reported leader; never falls."""
        self.notes: dict[str, Note] = {}
        """Address -> the last error there, for the message of a deadline."""
        self._lost: dict[str, _LostLeader] = {}
        """Leaders whose connection broke: followers name them until they notice the loss."""
        self._distrust_lost_ms = distrust_lost_ms
        self.group_unknown: dict[str, LedgerError] = {}
        """Refusals of servers that have no such group, or no log."""

    def add_servers(self, addresses: Iterable[str]) -> None:
        """Set the members learned elsewhere, replacing those set before."""
        # A new list, whole: another thread may be looking.
        self.servers = list(dict.fromkeys((*self._configured, *addresses)))

    def known_addresses(self) -> list[str]:
        """The listed servers, other members that they reported, and the leader, which may be a
        directory at another address than its member's. It is included after its connection was lost,
        too: only it can confirm that it still leads."""
        addresses = list(self.servers)
        # A copy: another thread may be learning meanwhile.
        for member_id, address in list(self.advertised.items()):
            if address not in addresses and self.greeted.get(member_id) not in addresses:
                addresses.append(address)
        if self._led_at and self._led_at not in addresses:
            addresses.append(self._led_at)
        return addresses

    def untried_address(self, tried: set[str]) -> str | None:
        """`tried`: addresses and member ids."""
        # A member has two addresses if the list names it otherwise than it advertises itself.
        theirs = {address for address, member_id in list(self.names.items()) if member_id in tried}
        theirs |= {address for member_id, address in list(self.advertised.items()) if member_id in tried}
        untried = (a for a in self.known_addresses() if a not in tried and a not in theirs)
        return next(untried, None)

    def member_address(self, member_id: str, reported: str = "") -> str | None:
        return self.greeted.get(member_id) or reported or self.advertised.get(member_id)

    def greeted_by(self, member_id: str, address: str) -> None:
        """The member that greeted at an address. A directory at another address than its member's is
        accepted there only as a leader."""
        self.forget_greeting(address)
        self.names[address] = member_id
        if address in self.servers or self.advertised.get(member_id, address) == address:
            self.greeted[member_id] = address

    def forget_greeting(self, address: str) -> None:
        """An address does not answer: its member may have moved to the address that others report."""
        # A new one, whole: another thread may be looking.
        self.greeted = {i: greeted for i, greeted in self.greeted.items() if greeted != address}

    def is_leader(self, address: str) -> bool:
        return self.leader is not None and self.leader.address == address

    def note(self, address: str, what: str, now_ms: float) -> None:
        self.notes[address] = Note(now_ms, what)

    def learn(self, address: str, reported: ServerView, now_ms: float) -> None:
        self.group_unknown.pop(address, None)
        if reported.membership_index < 0 and self._membership_index < 0:
            self.advertised.update(reported.members)
        elif reported.membership_index >= self._membership_index:
            self._membership_index = reported.membership_index
            self.advertised = reported.members  # another thread may be looking: a new one, whole
        if reported.leads:
            self._leader_reported(address, reported.term, by_itself=True)
            return
        follows = f"and follows {reported.leader_id}" if reported.leader_id else "and knows no leader"
        what = f"is {reported.role} in term {reported.term} {follows}"
        separator = ": " if reported.waits_for else " "
        self.note(address, f"{reported.member_id}{separator}{reported.waits_for or what}", now_ms)
        if self.is_leader(address):
            self.leader = None
        leader_address = self.member_address(reported.leader_id, reported.leader_address)
        if reported.leader_address and reported.leader_address != reported.members.get(
            reported.leader_id
        ):
            # Another directory of that name than the one that answers where the member is to be found.
            leader_address = reported.leader_address
        if leader_address:
            self._leader_reported(leader_address, reported.term, by_itself=False)

    def _leader_reported(self, address: str, term: int, *, by_itself: bool) -> None:
        if term < self.leader_term:
            return
        self._led_at = address
        current = self.leader
        if not self.is_leader(address):
            if not by_itself:
                if self._lost.get(address, _NEVER).term >= term:
                    return
                # Two addresses in one term are two names of one member: stay with the one in use.
                if current is not None and current.term == term:
                    return
            self._lost.pop(address, None)
        self.leader = LeaderView(address, term)
        self.leader_term = term

    def has_led(self, address: str, term: int) -> None:
        """An operation of leaders succeeded at an address: a leader known by a hint gets a term."""
        leader = self.leader
        if leader is not None and leader.address == address and term > leader.term:
            self.leader = LeaderView(address, term)
            self.leader_term = max(self.leader_term, term)

    def hinted(self, address: str, error: LedgerError, now_ms: float) -> None:
        """The member at `address` does not lead; perhaps it knows the leader."""
        if self.is_leader(address):
            self.leader = None
        if self.leader is not None:
            return
        hint = self.member_address(error.leader_id or "", error.leader_address or "")
        if not hint or hint == address:
            return
        self._led_at = hint
        if now_ms - self._lost.get(hint, _NEVER).at_ms > self._distrust_lost_ms:
            self.leader = LeaderView(hint, -1)

    def connection_lost(self, address: str, now_ms: float) -> None:
        if self.leader is not None and self.leader.address == address:
            self._lost[address] = _LostLeader(self.leader.term, now_ms)
            self.leader = None

    def group_unknown_to_all(self) -> LedgerError | None:
        """The refusal of one server, if all have refused so."""
        if all(address in self.group_unknown for address in self.known_addresses()):
            return next(iter(self.group_unknown.values()))
        return None
