"""SimCluster: members, network, clients and faults in one virtual time, from one seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

from quorumlog.config import GroupConfig, MemberAddress
from quorumlog.consensus.ready import Role
from quorumlog.node import MachineFactory
from quorumlog.testing.checkers.checker import Checker
from quorumlog.testing.checkers.promises import promises
from quorumlog.testing.checkers.view import CheckedCluster
from quorumlog.testing.clients import SimClient
from quorumlog.testing.faults.faults import Faults
from quorumlog.testing.member import SimMember
from quorumlog.testing.network.sim_network import SimNetwork
from quorumlog.testing.operations import Operations
from quorumlog.testing.profile import SimulationProfile, random_beside
from quorumlog.testing.trace import Trace

MachinesOf = Callable[[str], Mapping[str, MachineFactory]]


class SimCluster:
    """Nothing in it may depend on anything but `random` and the order of events."""

    def __init__(
        self,
        random: Random,
        profile: SimulationProfile,
        trace: Trace,
        machines: Mapping[str, MachineFactory] | MachinesOf | None = None,
        checkers: Callable[[CheckedCluster], list[Checker]] = promises,
    ) -> None:
        """`machines`: what every member runs, by name; or which ones a member runs, by its id."""
        self.random = random
        self._beginning = Random()
        self._beginning.setstate(random.getstate())
        self.profile = profile
        self.machines_of: MachinesOf = machines if callable(machines) else lambda _: machines or {}
        self.trace = trace
        self.now_ms = 0.0
        self.is_faulty = True
        self.clients_work = True
        self.operations = Operations()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        count_all = profile.size + profile.spares
        addresses = tuple(MemberAddress(f"n{i}", "127.0.0.1", 20911 + i) for i in range(count_all))
        founders = addresses[: profile.size]
        self.member_ids = tuple(address.member_id for address in addresses)
        self.places = {member_id: member_id for member_id in self.member_ids}
        """Member id by place: that of a machine. Two machines may hold directories of one member."""
        self.members: tuple[SimMember, ...] = tuple(
            SimMember(
                self,
                GroupConfig(
                    member_id=address.member_id,
                    members=founders if address in founders else (*founders, address),
                    data_dir=f"/{address.member_id}",
                    store=profile.store,
                    consensus=profile.consensus,
                    storage=profile.storage_of(number % profile.size),
                    max_uncommitted_bytes=profile.max_uncommitted_bytes,
                    auto_replace_after_ms=profile.auto_replace_after_ms,
                    catch_up_bytes_per_second=profile.catch_up_bytes_per_second,
                    time_marks=profile.time_marks,
                    retention_follower_budget_bytes=profile.retention_follower_budget_bytes,
                ),
            )
            for number, address in enumerate(addresses)
        )
        self._by_place = {member.place: member for member in self.members}
        self.replacing = self.stream("replaced logs")
        self.network = SimNetwork(self)
        self.faults = Faults(self)
        self.clients = [SimClient(self, f"client{i}") for i in range(profile.clients)]
        self.checkers = checkers(self)
        if self.faults.fairness is not None:
            self.checkers.append(self.faults.fairness)
        self._told: dict[str, list[Callable[..., None]]] = {}

    def member(self, place: str) -> SimMember:
        """A member's own place has its id."""
        return self._by_place[place]

    def place_leading_as(self, member_id: str) -> str:
        """Where a client is sent that was told that this one leads."""
        named = [each for each in self.members if each.member_id == member_id]
        leading = [each for each in named if each.is_up and each.node.raft.role is Role.LEADER]
        return (leading or named)[0].place

    def add_twin(self, member: SimMember) -> SimMember:
        """One more machine whose process says that it is this member, on an empty disk; it is down."""
        place = f"{member.member_id}'{len(self.members)}"
        self.places[place] = member.member_id
        # The member itself may just have been started with another flush mode than the rest.
        storage = replace(member.config.storage, flush=self.profile.storage.flush)
        twin = self._by_place[place] = SimMember(self, replace(member.config, storage=storage), place)
        for each in self.members:
            each.add_end(place)
        self.network.add(twin, self.members)
        self.members = (*self.members, twin)
        return twin

    def stream(self, name: str) -> Random:
        """Chance of its own: what is drawn from it moves nothing else of a seed's run."""
        return random_beside(self._beginning, name)

    # ---------------------------------------------------------------- events

    def at(self, after_ms: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + after_ms, next(self._order), act))

    def run_for(self, duration_ms: float) -> None:
        events = self._events
        stop_ms = self.now_ms + duration_ms
        while events and events[0][0] <= stop_ms:
            self.now_ms, _, act = heapq.heappop(events)
            act()
        self.now_ms = stop_ms

    def told(self, what: str, *arguments: Any) -> None:
        """Call the hook `what` of every checker that has one of its own."""
        hooks = self._told.get(what)
        if hooks is None:
            hooks = self._told[what] = [
                getattr(checker, what)
                for checker in self.checkers
                if getattr(type(checker), what) is not getattr(Checker, what)
            ]
        for hook in hooks:
            hook(*arguments)
