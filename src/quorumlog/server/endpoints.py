"""Applications in a member's process: endpoints, with a port of their own, and state machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import msgspec

from quorumlog.config import is_staging_name
from quorumlog.errors import ConfigError, LedgerError
from quorumlog.log_state.control_entries import MachineName
from quorumlog.net.access import EVERYBODY, Access
from quorumlog.node import LedgerNode, MachineFactory, NodeHandle
from quorumlog.node.machine_driver import Answer
from quorumlog.server.node_driver import NodeDriver


class Endpoint:
    group: str | None = None
    """The replicated log that it is an endpoint to; None: the only one of the server."""
    access: Access = EVERYBODY
    """Authorization at its port; a server sets its own before it opens the endpoint."""
    machines: Mapping[str, MachineFactory] = MappingProxyType({})
    """Run by the member beside those of the server, by name."""

    async def open(self, member: NodeHandle) -> None:
        """The member runs, maybe without a leader yet. Raises ConfigError, OSError."""

    def role_changed(self) -> None:
        """The member leads, follows or observes from now on; called on the loop, and not to wait."""

    async def close(self) -> None:
        """The member is about to stop; called also when it was never opened."""

    def abandon(self) -> None:
        """As if the process were killed: close all, without notice."""

    def ended(self) -> None:
        """The member has stopped: resources of its machines are no longer used."""


class Endpoints:
    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        groups: Sequence[str],
        machines: Mapping[str, MachineFactory],
        access: Access,
    ) -> None:
        """`machines`: of the server itself. Raises ConfigError."""
        for endpoint in endpoints:
            endpoint.access = access
        groups = [name for name in groups if not is_staging_name(name)]
        for endpoint in endpoints:
            if endpoint.group is None and len(groups) > 1:
                raise ConfigError(f"an endpoint must name its group: the server has {', '.join(groups)}")
            if endpoint.group is not None and endpoint.group not in groups:
                raise ConfigError(
                    f"an endpoint is for group {endpoint.group!r}; there are {', '.join(groups)}"
                )
        self._endpoints = [(endpoint.group or groups[0], endpoint) for endpoint in endpoints]
        self._machines = machines
        self._entrances: list[_Entrance] = []
        self.ports: dict[str, str] = {}
        """Where this process listens, by product."""

    def machines_of(self, group: str) -> dict[str, MachineFactory]:
        """All that its member runs. Raises ConfigError."""
        machines = {} if is_staging_name(group) else dict(self._machines)
        for leads_to, endpoint in self._endpoints:
            for name, factory in endpoint.machines.items() if leads_to == group else ():
                if name in machines:
                    raise ConfigError(f"group {group} has two state machines of the name {name}")
                machines[name] = factory
        return machines

    async def open(self, drivers: Callable[[str], NodeDriver | None]) -> None:
        """`drivers`: of a group, as it is when asked: a log that is replaced gets another one."""
        for group, endpoint in self._endpoints:
            entrance = _Entrance(group, drivers)
            self._entrances.append(entrance)
            await endpoint.open(
                NodeHandle(entrance.node, entrance.enter, self.ports, entrance.enter_now)
            )

    def begins_anew(self, group: str) -> None:
        """Another node has taken the place of the one that the endpoints knew."""
        for entrance in self._entrances:
            if entrance.group == group:
                entrance.begins_anew()

    def role_changed(self, group: str) -> None:
        for leads_to, endpoint in self._endpoints:
            if leads_to == group:
                endpoint.role_changed()

    async def close(self) -> None:
        for _, endpoint in self._endpoints:
            await endpoint.close()

    def abandon(self) -> None:
        for _, endpoint in self._endpoints:
            endpoint.abandon()

    def ended(self) -> None:
        for _, endpoint in self._endpoints:
            endpoint.ended()


class _Entrance:
    """To the member of a group, for one endpoint. A member that begins anew forgets what was to be done
    in its next turn; the one that comes in its place does it."""

    def __init__(self, group: str, drivers: Callable[[str], NodeDriver | None]) -> None:
        self.group = group
        self._drivers = drivers
        self._driver: NodeDriver | None = None
        """That ran when it was looked for last."""
        self._entered: dict[object, Callable[[], None]] = {}

    def running(self) -> NodeDriver | None:
        driver = self._driver
        if driver is None or driver.stopped:
            driver = self._drivers(self.group)
            self._driver = driver = None if driver is None or driver.stopped else driver
        return driver

    def node(self) -> LedgerNode | None:
        driver = self._driver
        if driver is None or driver.stopped:
            driver = self.running()
        return None if driver is None else driver.node

    def enter(self, act: Callable[[], None]) -> None:
        kept, driver = self._kept(act), self.running()
        if driver is not None:
            driver.enter(None, kept)

    def enter_now(self, act: Callable[[], None]) -> None:
        kept, driver = self._kept(act), self.running()
        if driver is not None:
            driver.enter_now(kept)

    def _kept(self, act: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self._entered[key] = act
        return partial(self._do, key)

    def _do(self, key: object) -> None:
        act = self._entered.pop(key, None)
        if act is not None:
            act()

    def begins_anew(self) -> None:
        driver = self.running()
        assert driver is not None, self.group
        for key in list(self._entered):
            driver.enter(None, partial(self._do, key))


def checked_machines(machines: Mapping[str, MachineFactory]) -> dict[str, MachineFactory]:
    """Raises ConfigError for machines that no log could bind."""
    for name, factory in machines.items():
        try:
            msgspec.convert(name, MachineName)
        except msgspec.ValidationError:
            raise ConfigError(
                f"{name!r} is no name of a state machine: 1 to 64 of a-z, 0-9, and after the first"
                " letter _ . -"
            ) from None
        version = getattr(factory, "version", 1)
        if not callable(factory) or type(version) is not int or version < 1:
            raise ConfigError(
                f"the state machine {name} needs something that makes one, such as its class, with a"
                f" version of 1 or more; not {factory!r}"
            )
    return dict(machines)


async def answer_of(driver: NodeDriver, machine: str, question: bytes, timeout_ms: int) -> bytes:
    """Raises a LedgerError."""
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def done(answer: Answer) -> None:
        if future.done():
            return
        if isinstance(answer, LedgerError):
            future.set_exception(answer)
        else:
            future.set_result(answer[0])

    driver.enter(None, lambda: driver.node.machines.ask(machine, question, timeout_ms, done))
    return await future
