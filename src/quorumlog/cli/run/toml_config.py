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

    [users]                                 # of the whole process, see docs/security.md
    group = "orders"                        # the group of the users; default: the first one
    may_be_old_ms = 10000                   # without a message of the leader for so long, refuse clients

    [limits]                                # of the whole process, see docs/security.md
    user_requests = 1000

    [kv]                                    # of `quorumlog kv serve`
    quota_mib = 8192
    etcd = "2379"                           # etcd's gRPC API
    servers = "10.0.0.1:20921,10.0.0.2:20921,10.0.0.3:20921"

    [kafka]                                 # a port for clients of Kafka
    listen = "10.0.0.1:9092"

    [admin]                                 # health, metrics and the page, see docs/operations.md
    listen = "127.0.0.1:9464"

Options are the fields of `quorumlog.config`; without a `groups` table the file describes one group. A
command-line option wins over the file.
"""

from __future__ import annotations

import tomllib
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec

from quorumlog.cli.options import LogFormat, LogLevel
from quorumlog.config import (
    AdminOptions,
    ConsensusConfig,
    GroupConfig,
    KafkaOptions,
    KvOptions,
    LimitOptions,
    StoreConfig,
    TlsOptions,
    UsersOptions,
    parse_address,
    parse_members,
    within,
)
from quorumlog.errors import ConfigError

_TYPES: dict[str, Any] = {
    field.name: get_type_hints(part)[field.name]
    for part in (GroupConfig, ConsensusConfig, StoreConfig)
    for field in fields(part)
    if field.name not in ("consensus", "storage")
}
_OF_PROCESS: dict[str, Any] = {
    "bind": str,
    "log_level": LogLevel,
    "log_format": LogFormat,
    "state_machines": dict[str, str],
    "hold_machines": tuple[str, ...],
    "groups": dict[str, dict[str, Any]],
    "tls": dict[str, Any],
    "users": dict[str, Any],
    "limits": dict[str, Any],
    "admin": AdminOptions,
    "kv": KvOptions,
    "kafka": KafkaOptions,
}
_KINDS: dict[Any, str] = {
    LogFormat: f"is none of {', '.join(get_args(LogFormat))}",
    LogLevel: f"is none of {', '.join(get_args(LogLevel))}",
    tuple[str, ...]: 'is not a list of strings; write ["n0"]',
    dict[str, str]: 'is not a table of strings; write { NAME = "package.module:Factory" }',
    dict[str, dict[str, Any]]: "is not tables, one a group; write [groups.NAME]",
    KvOptions: "is no table of a store; write [kv] with quota_mib, auto_compaction_s, max_watches, etcd,"
    " etcd_gateway, servers",
    KafkaOptions: 'is no table of the port for Kafka; write [kafka] with listen = "HOST:PORT"',
    AdminOptions: 'is no table of the port for metrics; write [admin] with listen = "HOST:PORT"',
}
"""What people are told of a value that is of another kind."""
_GONE = {
    "max_transfer_lag_entries": "the lag of a member that leadership may be handed to is in bytes;"
    " write max_transfer_lag_bytes, or leave it out"
}
"""Options of earlier releases, and what to write instead."""

T = TypeVar("T")


class ServerConfig(NamedTuple):
    groups: tuple[GroupConfig, ...]
    bind: str | None = None
    log_level: LogLevel | None = None
    state_machines: Mapping[str, str] = types.MappingProxyType({})
    """By name: package.module:Factory."""
    hold_machines: tuple[str, ...] = ()
    """Names of those that are not run."""
    tls: TlsOptions | None = None
    users: UsersOptions = UsersOptions()
    limits: LimitOptions = LimitOptions()
    admin: AdminOptions | None = None
    log_format: LogFormat | None = None
    kv: KvOptions | None = None
    kafka: KafkaOptions | None = None


def load_server_config(path: str | None, command_line: Mapping[str, Any]) -> ServerConfig:
    """`command_line`: options of the command line by their field names; None means not given.

    Raises ConfigError naming the option, and the file that contains it.
    """
    overrides = {name: value for name, value in command_line.items() if value is not None}
    document = _parse(path) if path is not None else {}
    if isinstance(document.get("group"), dict):
        raise ConfigError(f"{path}: a table of a group is [groups.NAME], not [group.NAME]")
    found = {name: _typed(name, document.pop(name), path) for name in _OF_PROCESS if name in document}
    tables = found.pop("groups", None)
    tls = tls_options(found.pop("tls", {}), overrides.pop("tls", {}), path)
    users = _of_table(UsersOptions, found.pop("users", {}), f"{path} [users]")
    limits = _of_table(LimitOptions, found.pop("limits", {}), f"{path} [limits]")
    for place, options in ((f"{path}: option 'bind'", found), ("--bind", overrides)):
        if "bind" in options:
            with within(place):
                parse_address(options["bind"])
    if "admin" in overrides:
        insecure = found["admin"].insecure if "admin" in found else False
        overrides["admin"] = AdminOptions(overrides["admin"], insecure)
    kafka = {name: overrides.pop(f"kafka_{name}", None) for name in ("listen", "servers")}
    kafka = {name: value for name, value in kafka.items() if value is not None}
    if "kafka" in found:
        found["kafka"] = replace(found["kafka"], **kafka)
    elif kafka:
        if "listen" not in kafka:
            raise ConfigError("--kafka-servers goes with --kafka, the address of this member's own port")
        found["kafka"] = KafkaOptions(**kafka)
    found |= {name: overrides.pop(name) for name in _OF_PROCESS if name in overrides}
    if tables is None:
        groups = [_group(document, overrides, path, "")]
    else:
        groups = _groups(document, tables, overrides, path)
    _refuse_shared_directories(groups)
    names = [group.group for group in groups]
    if users.group and users.group not in names:
        raise ConfigError(
            f"{path} [users]: there is no group {users.group!r}; there are {', '.join(names)}"
        )
    if "kafka" in found and found["kafka"].group not in ("", *names):
        group = found["kafka"].group
        raise ConfigError(f"{path} [kafka]: there is no group {group!r}; there are {', '.join(names)}")
    return ServerConfig(tuple(groups), tls=tls, users=users, limits=limits, **found)


def load_broker_config(path: str | None) -> tuple[UsersOptions, LimitOptions]:
    """Of a classic broker, whose file has the tables of its users and limits. Raises ConfigError."""
    document = {} if path is None else _parse(path)
    tables = {name: _typed(name, document.pop(name, {}), path) for name in ("users", "limits")}
    for name in document:
        raise ConfigError(f"{path}: {name!r} is for a broker with a log; others take [users], [limits]")
    users = _of_table(UsersOptions, tables["users"], f"{path} [users]")
    if users.group:
        raise ConfigError(f"{path} [users]: group is for a broker with a log")
    return users, _of_table(LimitOptions, tables["limits"], f"{path} [limits]")


def tls_options(
    table: dict[str, str], command_line: Mapping[str, str | None], path: str | None = None
) -> TlsOptions | None:
    """Of the table `[tls]` of a file, and the command line, which wins. Raises ConfigError."""
    place = f"{path} [tls]" if table else None
    options = {**table, **{name: value for name, value in command_line.items() if value is not None}}
    if not options:
        return None
    return _of_table(TlsOptions, {"cert": "", "key": "", "ca": "", **options}, place)


def _of_table(kind: Callable[..., T], options: Mapping[str, Any], place: str | None) -> T:
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            raise ConfigError(f"{place}: unknown option {name!r}; there are {', '.join(known)}")
    with within(place):
        return kind(**options)


def _groups(
    common: dict[str, Any],
    tables: dict[str, dict[str, Any]],
    overrides: dict[str, Any],
    path: str | None,
) -> list[GroupConfig]:
    if not tables:
        raise ConfigError(f"{path}: groups has no table; write [groups.NAME]")
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
    for name in table:
        _refuse_unknown(name, place, in_group=bool(where))
    options = {name: _typed(name, value, place) for name, value in table.items()} | overrides
    for name, option in (("member_id", "--id"), ("members", "--members")):
        if name not in options:
            missing = option if place is None else f"{place}: option {name!r}"
            raise ConfigError(f"{missing} is missing; see --help")
    if isinstance(options["members"], str):
        options["members"] = parse_members(options["members"])

    def part(kind: type) -> dict[str, Any]:
        return {field.name: options[field.name] for field in fields(kind) if field.name in options}

    with within(place):
        return GroupConfig(
            **part(GroupConfig),
            consensus=ConsensusConfig(**part(ConsensusConfig)),
            storage=StoreConfig(**part(StoreConfig)),
        )


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
    known = [*_TYPES, *(() if in_group else _OF_PROCESS)]
    aliases = {"id": "member_id", "preferred_leader": "preferred_leader_ids"}
    close = [aliases[name]] if name in aliases else get_close_matches(name, known, 1, 0.4)
    hint = f"; the closest valid option is {close[0]!r}" if close else ""
    raise ConfigError(f"{place}: unknown option {name!r}{hint}")


def _typed(name: str, value: Any, place: str | None) -> Any:
    """`value` as the option's type; a number is not silently made of a string. Raises ConfigError."""
    if name == "members" and isinstance(value, dict):
        value = ",".join(f"{member_id}={address}" for member_id, address in value.items())
    kind = str if name == "members" else _OF_PROCESS.get(name) or _TYPES[name]
    try:
        typed = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        wrong = _KINDS.get(kind) or f"is not of type {kind.__name__}"
        if kind == dict[str, Any]:
            wrong = f"is not a table; write [{name}]"
        if name == "members":
            wrong = 'is not a list of members; write "n0=HOST:PORT,..."'
        raise ConfigError(f"{place}: option {name!r}: {value!r} {wrong}") from None
    with within(place):
        return typed if name != "members" else parse_members(typed)


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
