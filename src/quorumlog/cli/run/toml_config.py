"""One or more groups from a TOML file and the command line.

    bind = "0.0.0.0:20911"                  # where to listen, if not at the member's own address
    log_level = "info"
    state_machines = { counter = "shop.machines:Counter" }
    hold_machines = ["counter"]             # not run for now, see docs/state-machines.md
    member_id = "n0"                        # an option above the first table holds for every group
    members = "n0=10.0.0.1:20911,n1=10.0.0.2:20911,n2=10.0.0.3:20911"

    [groups.orders]                         # an option here holds for this group
    data_dir = "/var/lib/quorumlog/orders"
    preferred_leader_ids = ["n0"]

    [groups.audit]
    data_dir = "/var/lib/quorumlog/audit"
    flush = "async"

    [tls]                                   # of the whole process, see docs/security.md
    cert = "/etc/quorumlog/member-n0.crt"
    key = "/etc/quorumlog/member-n0.key"
    ca = "/etc/quorumlog/ca.crt"

Options are the fields of `quorumlog.config`; without a `groups` table the file describes one group. A
command-line option wins over the file.
"""

from __future__ import annotations

import tomllib
import types
from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec

from quorumlog.cli.options import LogLevel
from quorumlog.config import (
    DEFAULT_GROUP,
    ConsensusConfig,
    GroupConfig,
    MemberAddress,
    StoreConfig,
    TlsOptions,
    parse_address,
    parse_members,
)
from quorumlog.errors import ConfigError

_PARTS: tuple[type, ...] = (GroupConfig, ConsensusConfig, StoreConfig)
_TYPES: dict[str, Any] = {
    field.name: get_type_hints(part)[field.name]
    for part in _PARTS
    for field in fields(part)
    if field.name not in ("consensus", "storage")
}
_NAMES = tuple[str, ...]
_SERVER_OPTIONS = ("bind", "log_level", "state_machines", "hold_machines", "groups", "tls")
_GONE = {
    "max_transfer_lag_entries": "how far behind a member may be that leadership is handed to counts in"
    " bytes; write max_transfer_lag_bytes, or leave it out"
}
"""Options of earlier releases, and what to write instead."""

T = TypeVar("T")

COMMAND_LINE_NAMES = {
    "member_id": "--id",
    "members": "--members",
    "data_dir": "--data-dir",
    "group": "--group",
    "store": "--store",
    "flush": "--flush",
    "preferred_leader_ids": "--preferred-leader",
    "bind": "--bind",
    "log_level": "--log-level",
    "state_machines": "--state-machine",
    "hold_machines": "--hold-machine",
}


class ServerConfig(NamedTuple):
    groups: tuple[GroupConfig, ...]
    bind: str | None
    log_level: str | None = None
    state_machines: Mapping[str, str] = types.MappingProxyType({})
    """By name: package.module:Factory."""
    hold_machines: tuple[str, ...] = ()
    """Names of those that are not run."""
    tls: TlsOptions | None = None


def load_server_config(path: str | None, given: Mapping[str, Any]) -> ServerConfig:
    """`given`: options of the command line by their field names; None means not given.

    Raises ConfigError naming the option, and the file where the option stands in one.
    """
    overrides = {name: value for name, value in given.items() if value is not None}
    document = _parse(path) if path is not None else {}
    tables = document.pop("groups", None)
    bind = document.pop("bind", None)
    if bind is not None:
        _within("bind", path, lambda: parse_address(_typed("bind", bind, str)))
    if "bind" in overrides:
        bind = overrides.pop("bind")
        _given("bind", lambda: parse_address(bind))
    log_level = document.pop("log_level", None)
    if log_level is not None and log_level not in tuple(LogLevel):
        known = ", ".join(LogLevel)
        raise ConfigError(f"{path}: option 'log_level': {log_level!r} is none of {known}")
    log_level = overrides.pop("log_level", log_level)
    machines = document.pop("state_machines", {})
    if not isinstance(machines, dict) or not all(isinstance(place, str) for place in machines.values()):
        raise ConfigError(f'{path}: state_machines must be a table: NAME = "package.module:Factory"')
    machines = overrides.pop("state_machines", machines)
    held = _within(
        "hold_machines", path, lambda: _typed("hold_machines", document.pop("hold_machines", []), _NAMES)
    )
    held = tuple(overrides.pop("hold_machines", held))
    tls = tls_options(document.pop("tls", {}), overrides.pop("tls", {}), path)
    if isinstance(document.get("group"), dict):
        raise ConfigError(f"{path}: a table of a group is [groups.NAME], not [group.NAME]")
    if tables is None:
        groups = [_group(document, overrides, path, "")]
    else:
        groups = _groups(document, tables, overrides, path)
    _refuse_shared_directories(groups)
    return ServerConfig(tuple(groups), bind, log_level, machines, held, tls)


def tls_options(
    table: Any, given: Mapping[str, str | None], path: str | None = None
) -> TlsOptions | None:
    """Of the table `[tls]` of a file, and the command line, which wins. Raises ConfigError."""
    place = f"{path} [tls]"
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: tls must be a table: [tls]")
    known = [each.name for each in fields(TlsOptions)]
    for name in table:
        if name not in known:
            raise ConfigError(f"{place}: unknown option {name!r}; there are {', '.join(known)}")
    options = {**table, **{name: value for name, value in given.items() if value is not None}}
    if not options:
        return None
    named = {"cert": "", "key": "", "ca": "", **options}
    return _within("", place if table else None, lambda: TlsOptions(**named))


def _groups(
    common: dict[str, Any], tables: Any, overrides: dict[str, Any], path: str | None
) -> list[GroupConfig]:
    if (
        not isinstance(tables, dict)
        or not tables
        or not all(isinstance(t, dict) for t in tables.values())
    ):
        raise ConfigError(f"{path}: groups must be tables, one a group: [groups.NAME]")
    if "group" in common:
        raise ConfigError(f"{path}: option 'group' does not go with [groups.NAME] tables; remove it")
    chosen = overrides.pop("group", None)
    if chosen is not None and chosen not in tables:
        raise ConfigError(f"--group {chosen} is not in {path} ({', '.join(tables)})")
    names = list(tables) if chosen is None else [chosen]
    if "data_dir" in overrides and len(names) > 1:
        raise ConfigError(f"--data-dir cannot serve the {len(names)} groups of {path}; add --group NAME")
    return [
        _group({**common, "group": name, **tables[name]}, overrides, path, f" [groups.{name}]")
        for name in names
    ]


def _group(
    table: dict[str, Any], overrides: dict[str, Any], path: str | None, where: str
) -> GroupConfig:
    place = f"{path}{where}" if path is not None else None
    options: dict[str, Any] = {}
    for name, value in table.items():
        _refuse_unknown(name, place, in_group=bool(where))
        options[name] = _within(name, place, partial(_typed, name, value, _TYPES[name]))
    for name, value in overrides.items():
        options[name] = _given(name, partial(_typed, name, value, _TYPES[name]))
    for name in ("member_id", "members"):
        if name not in options:
            missing = f"option {name!r} is missing in {place}"
            if place is None:
                missing = f"{COMMAND_LINE_NAMES[name]} is missing"
            raise ConfigError(f"{missing}; see --help")
    return _within("", place, lambda: _build(options))


def _build(options: dict[str, Any]) -> GroupConfig:
    def part(kind: type) -> dict[str, Any]:
        return {field.name: options[field.name] for field in fields(kind) if field.name in options}

    own = part(GroupConfig)
    own.setdefault("group", DEFAULT_GROUP)
    return GroupConfig(
        **own,
        consensus=ConsensusConfig(**part(ConsensusConfig)),
        storage=StoreConfig(**part(StoreConfig)),
    )


def _within(name: str, place: str | None, make: Callable[[], T]) -> T:
    try:
        return make()
    except ConfigError as error:
        option = f"option {name!r}: " if name else ""
        raise ConfigError(f"{place}: {option}{error}" if place else str(error)) from None


def _given(name: str, make: Callable[[], T]) -> T:
    option = COMMAND_LINE_NAMES[name]
    try:
        return make()
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if option in text else f"{option}: {text}") from None


def _parse(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}; name a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: not TOML: {error}") from None


def _refuse_unknown(name: str, place: str | None, *, in_group: bool) -> None:
    if name in _TYPES:
        return
    if name in _GONE:
        raise ConfigError(f"{place}: option {name!r} is gone: {_GONE[name]}")
    known = [*_TYPES, *(() if in_group else _SERVER_OPTIONS)]
    aliases = {"id": "member_id", "preferred_leader": "preferred_leader_ids"}
    close = [aliases[name]] if name in aliases else get_close_matches(name, known, 1, 0.4)
    hint = f"; the closest valid option is {close[0]!r}" if close else ""
    raise ConfigError(f"{place}: unknown option {name!r}{hint}")


def _typed(name: str, value: Any, kind: Any) -> Any:
    """`value` as the field's type, or ConfigError; a number is not silently made of a string."""
    if kind == tuple[MemberAddress, ...]:
        return _members(value)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        if kind == _NAMES:
            raise ConfigError(f'{value!r} is not a list of strings; write {name} = ["n0"]') from None
        raise ConfigError(f"{value!r} is not of type {kind.__name__}") from None


def _members(value: Any) -> tuple[MemberAddress, ...]:
    if isinstance(value, dict) and all(isinstance(address, str) for address in value.values()):
        value = ",".join(f"{member_id}={address}" for member_id, address in value.items())
    if not isinstance(value, str):
        raise ConfigError(f'{value!r} is not a list of members; write members = "n0=HOST:PORT,..."')
    return parse_members(value)


def _refuse_shared_directories(groups: list[GroupConfig]) -> None:
    owner: dict[str, str] = {}
    for config in groups:
        if config.store != "file":
            continue
        if config.data_dir in owner:
            raise ConfigError(
                f"groups {owner[config.data_dir]} and {config.group} have the same data_dir"
                f" ({config.data_dir}); give each its own"
            )
        owner[config.data_dir] = config.group
