"""State machines of a server: names that a log can bind, what makes one, and what one answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from quorumlog.errors import ConfigError, LedgerError
from quorumlog.log_state.control_entries import MachineName
from quorumlog.node import MachineFactory
from quorumlog.node.machine_driver import Answer
from quorumlog.server.node_driver import NodeDriver


def checked_machines(machines: Mapping[str, MachineFactory]) -> dict[str, MachineFactory]:
    """Raises ConfigError for what no log could bind."""
    for name, factory in machines.items():
        try:
            msgspec.convert(name, MachineName)
        except msgspec.ValidationError:
            raise ConfigError(
                f"{name!r} is no name of a state machine: 1 to 64 of a-z, 0-9, and behind the first"
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
    told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def done(answer: Answer) -> None:
        if told.done():
            return
        if isinstance(answer, LedgerError):
            told.set_exception(answer)
        else:
            told.set_result(answer[0])

    driver.enter(None, lambda: driver.node.machines.ask(machine, question, timeout_ms, done))
    return await told
