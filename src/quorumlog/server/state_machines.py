"""What a server is told to run as state machines: names that a log can bind, and what makes one."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from quorumlog.errors import ConfigError
from quorumlog.log_state.control_entries import MachineName
from quorumlog.node import MachineFactory


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
