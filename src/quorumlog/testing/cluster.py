"""SimCluster: members, network, clients and faults in one virtual time, and how it becomes whole."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

from quorumlog.config import GroupConfig, MemberAddress
from quorumlog.consensus.ready import Role
from quorumlog.node import MachineFactory
from quorumlog.testing.clients import SimClient
from quorumlog.testing.faults import Faults
from quorumlog.testing.member import SimMember
from quorumlog.testing.network import SimNetwork
from quorumlog.testing.operations import Operations, Trace
from quorumlog.testing.profile import SimulationProfile, random_beside
from quorumlog.testing.promises import CheckedCluster, Checker, leader_of_one_log, promises

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
        """`machines`: of every member, by name; or those of a member, by its id."""
        self.random = random
        self._beginning = copy(random)
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
        self.clients: list[SimClient] = []
        """That append again and again while `clients_work`."""
        self.checkers = checkers(self)
        self._hooks: dict[str, list[Callable[..., None]]] = {}

    def up(self) -> list[SimMember]:
        return [member for member in self.members if member.is_up]

    def leading(self) -> list[SimMember]:
        """That take themselves for the leader."""
        return [member for member in self.up() if member.node.raft.role is Role.LEADER]

    def member(self, place: str) -> SimMember:
        """A member's own place has its id."""
        return self._by_place[place]

    def place_leading_as(self, member_id: str) -> str:
        """The address given to a client that is redirected to this leader."""
        named = [each for each in self.members if each.member_id == member_id]
        return next((each for each in self.leading() if each in named), named[0]).place

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
        """A random stream of its own: draws from it change nothing else of a seed's run."""
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

    def notify(self, what: str, *arguments: Any) -> None:
        """Call the hook `what` of every checker that has one of its own."""
        hooks = self._hooks.get(what)
        if hooks is None:
            hooks = self._hooks[what] = [
                getattr(checker, what)
                for checker in self.checkers
                if getattr(type(checker), what, None) is not getattr(Checker, what, None)
            ]
        for hook in hooks:
            hook(*arguments)


# ----------------------------------------------------------------
# How a cluster becomes whole once nothing strikes it any more.

WHOLE_LIMIT_MS = 30_000.0
"""How long after the last fault the cluster may take to become whole, in virtual time."""
QUIET_MS = 2_000.0
_LOOK_MS = 250.0


class NotWhole(AssertionError):
    """The faults have ended, and the cluster is not whole in the time that it may take."""


def make_whole(cluster: SimCluster, is_settled: Callable[[], bool] = lambda: True) -> None:
    """No more faults: the cluster is whole within a bounded time. Raises NotWhole, and Violation.

    `is_settled`: requests still sent once clients work no more have their answers.
    """
    cluster.trace.note(cluster.now_ms, "fault", "none any more")
    cluster.is_faulty = False
    cluster.faults.stop()
    whole_by_ms = cluster.now_ms + WHOLE_LIMIT_MS
    if cluster.clients:
        before = acknowledged(cluster)
        _wait(cluster, whole_by_ms, lambda: acknowledged(cluster) > before, "an acknowledged append")
    cluster.clients_work = False
    _wait(cluster, whole_by_ms, is_settled, "an answer to all that producers have sent")
    _wait(cluster, whole_by_ms, lambda: _is_whole(cluster), "one leader and one log")
    if any(member.is_damaged for member in cluster.members):
        # What nobody has read yet is found by the scrub, and repaired soon after.
        scrubbed_by_ms = cluster.now_ms + WHOLE_LIMIT_MS
        _begin_scrub(cluster)
        _wait(cluster, scrubbed_by_ms, lambda: _is_repaired(cluster), "end of the repair")
        _wait(cluster, scrubbed_by_ms, lambda: _is_whole(cluster), "one leader and one log, repaired")
    cluster.run_for(QUIET_MS)
    # A leader that writes an entry of its own now and then may be doing so just now.
    _wait(cluster, cluster.now_ms + WHOLE_LIMIT_MS, lambda: _is_whole(cluster), "one log, still")
    cluster.notify("made_whole")


def _begin_scrub(cluster: SimCluster) -> None:
    """Now, and not once its delay is over: switched off and on, as an operator may do it."""
    for member in cluster.members:
        storage = member.config.storage
        for bytes_per_second in (0, storage.scrub_bytes_per_second):
            changed = replace(storage, scrub_bytes_per_second=bytes_per_second)
            member.enter_node("configure", replace(member.config, storage=changed))


def _is_repaired(cluster: SimCluster) -> bool:
    nodes = [member.node for member in cluster.up()]
    return all(node.scrub_status().passes and not node.store.damaged for node in nodes)


def acknowledged(cluster: SimCluster) -> int:
    return sum(append.is_committed for append in cluster.operations.appends)


def _wait(cluster: SimCluster, until_ms: float, done: Callable[[], bool], what: str) -> None:
    while not done():
        if cluster.now_ms >= until_ms:
            members = (
                f"{m.member_id} {m.node.status() if m.is_up else 'is down'}" for m in cluster.members
            )
            raise NotWhole(f"no {what} {WHOLE_LIMIT_MS:g} ms after the last fault: {'; '.join(members)}")
        cluster.run_for(_LOOK_MS)


def _is_whole(cluster: SimCluster) -> bool:
    if not all(member.is_up for member in cluster.members):
        return False
    nodes = [member.node for member in cluster.members]
    return leader_of_one_log(nodes) is not None and all(
        row.problem or row.applied_index == node.committed_index
        for node in nodes
        for row in node.machines.status()
    )
