"""State machines by the names that a shell knows: `counter=package.module:Factory`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from quorumlog.errors import ConfigError


def named_machines(given: Sequence[str]) -> dict[str, str]:
    """By name, what `--state-machine` was given. Without one it is the factory's, in small letters."""
    named: dict[str, str] = {}
    for text in given:
        name, _, place = text.rpartition("=")
        name = name or place.rpartition(":")[2].lower()
        if name in named:
            raise ConfigError(f"--state-machine: two machines have the name {name}; write NAME={place}")
        named[name] = place
    return named


def load_machines(places: Mapping[str, str]) -> dict[str, Any]:
    """Import each `package.module:Factory`; what lies in the current directory is found, too. Raises
    ConfigError."""
    if places and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return {name: _load(name, place) for name, place in places.items()}


def _load(name: str, place: str) -> Any:
    module_name, colon, attribute = place.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(
            f"--state-machine {name}: {place!r} must look like package.module:Factory, with the name in"
            " front if need be: counter=shop.machines:Counter"
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"--state-machine {name}: {module_name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(f"--state-machine {name}: {module_name} has no {attribute}") from None
    return found
