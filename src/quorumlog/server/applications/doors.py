"""Doors: applications with a protocol and a port of their own, in the process of a member.

A door brings the state machines that it needs and is opened once the member runs. It appends, reads and
asks through a `DoorMember`, never past it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from quorumlog.config import is_staging_name
from quorumlog.consensus.ready import RoleChange
from quorumlog.errors import ConfigError
from quorumlog.node import DoorMember, MachineFactory
from quorumlog.server.node_driver import NodeDriver


class Door(Protocol):
    @property
    def group(self) -> str | None:
        """The replicated log that it is a door to; None: the only one of the server."""

    @property
    def machines(self) -> Mapping[str, MachineFactory]:
        """Run by the member beside those of the server, by name."""

    async def open(self, member: DoorMember) -> None:
        """The member runs, and nobody leads yet, perhaps. Raises ConfigError, OSError."""

    def role_changed(self, change: RoleChange) -> None:
        """The member leads, follows or observes from now on; called on the loop, and not to wait."""

    async def close(self) -> None:
        """The member is about to stop; called also when it was never opened."""

    def abandon(self) -> None:
        """As if the process were killed: close what is open, and tell nobody."""

    def ended(self) -> None:
        """The member has stopped: nothing uses what its machines hold open any more."""


class Doors:
    def __init__(
        self, doors: Sequence[Door], groups: Sequence[str], machines: Mapping[str, MachineFactory]
    ) -> None:
        """`machines`: of the server itself. Raises ConfigError."""
        groups = [name for name in groups if not is_staging_name(name)]
        for door in doors:
            if door.group is None and len(groups) > 1:
                raise ConfigError(f"a door must name its group: the server has {', '.join(groups)}")
            if door.group is not None and door.group not in groups:
                raise ConfigError(f"a door leads to group {door.group!r}; there are {', '.join(groups)}")
        self._doors = [(door.group or groups[0], door) for door in doors]
        self._machines = machines
        self.ports: dict[str, str] = {}
        """Where this process listens, by product."""

    def machines_of(self, group: str) -> dict[str, MachineFactory]:
        """All that its member runs. Raises ConfigError."""
        machines = {} if is_staging_name(group) else dict(self._machines)
        for leads_to, door in self._doors:
            for name, factory in door.machines.items() if leads_to == group else ():
                if name in machines:
                    raise ConfigError(f"group {group} has two state machines of the name {name}")
                machines[name] = factory
        return machines

    async def open(self, drivers: Callable[[str], NodeDriver | None]) -> None:
        """`drivers`: of a group, as it is when asked: a log that is replaced gets another one."""
        for group, door in self._doors:
            await door.open(_member_of(group, drivers, self.ports))

    def role_changed(self, group: str, change: RoleChange) -> None:
        for leads_to, door in self._doors:
            if leads_to == group:
                door.role_changed(change)

    async def close(self) -> None:
        for _, door in self._doors:
            await door.close()

    def abandon(self) -> None:
        for _, door in self._doors:
            door.abandon()

    def ended(self) -> None:
        for _, door in self._doors:
            door.ended()


def _member_of(
    group: str, drivers: Callable[[str], NodeDriver | None], ports: dict[str, str]
) -> DoorMember:
    def running() -> NodeDriver | None:
        driver = drivers(group)
        return None if driver is None or driver.stopped else driver

    def enter(act: Callable[[], None]) -> None:
        driver = running()
        if driver is not None:
            driver.enter(None, act)

    return DoorMember(lambda: None if (driver := running()) is None else driver.node, enter, ports)
