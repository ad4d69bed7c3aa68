"""The server of `quorumlog serve`: it says that it listens, reads its file again on SIGHUP, and finds
state machines by the names that a shell knows: `counter=package.module:Factory`."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quorumlog.cli.interrupts import hung_up_before
from quorumlog.cli.output import announce, say_ready
from quorumlog.cli.run.toml_config import ServerConfig, load_server_config
from quorumlog.config import GroupConfig, KafkaOptions, KvOptions
from quorumlog.errors import ConfigError, the_extra
from quorumlog.net.tls import Tls
from quorumlog.server import Endpoint, LedgerServer
from quorumlog.version import DESCRIPTION
from quorumlog.wire.client_messages import ReloadResponse

if TYPE_CHECKING:
    from quorumlog.kafka.endpoint import KafkaEndpoint


def named_machines(texts: Sequence[str]) -> dict[str, str]:
    """The values of `--state-machine`, by name. Without one it is the factory's, in small letters."""
    named: dict[str, str] = {}
    for text in texts:
        name, _, place = text.rpartition("=")
        name = name or place.rpartition(":")[2].lower()
        if name in named:
            raise ConfigError(f"--state-machine: two machines have the name {name}; write NAME={place}")
        named[name] = place
    return named


def load_machines(places: Mapping[str, str]) -> dict[str, Any]:
    """Import each `package.module:Factory`; also from the current directory. Raises ConfigError."""
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


def kafka_room() -> Any:
    """The module of the port for clients of Kafka. Raises ConfigError."""
    try:
        return importlib.import_module("quorumlog.kafka.endpoint")
    except ImportError as error:
        raise ConfigError(f"--kafka needs kio ({error}), {the_extra('kafka')}") from None


def kafka_of(groups: Sequence[GroupConfig], options: KafkaOptions, tls: Tls | None) -> KafkaEndpoint:
    """Raises ConfigError."""
    config = next(each for each in groups if options.group in ("", each.group))
    endpoint: KafkaEndpoint = kafka_room().endpoint_of(config, options, tls)
    return endpoint


log = logging.getLogger("quorumlog.server")


class ServingMember(LedgerServer):
    def __init__(
        self,
        config: ServerConfig,
        path: str | None,
        command_line: Mapping[str, Any],
        endpoints: Sequence[Endpoint] = (),
        tls: Tls | None = None,
        reload_store: Callable[[ServerConfig], Sequence[str]] | None = None,
    ) -> None:
        """`path`, `command_line`: see `load_server_config`; `endpoints`, `tls`: see `LedgerServer`.
        `reload_store`: of a member with a store; returns the changes."""
        if config.kv is not None and reload_store is None:
            raise ConfigError(f"{path}: [kv] is for `quorumlog kv serve` only")
        self._reload_store = reload_store or (lambda config: ())
        machines = load_machines(config.state_machines)
        self.kafka = None if config.kafka is None else kafka_of(config.groups, config.kafka, tls)
        if self.kafka is not None:
            endpoints = [*endpoints, self.kafka]
        self._kafka_options = config.kafka
        super().__init__(
            config.groups,
            bind=config.bind,
            state_machines=machines,
            endpoints=endpoints,
            hold_machines=config.hold_machines,
            tls=tls,
            users=config.users,
            limits=config.limits,
        )
        self.admin, self.tls = config.admin, tls
        self._tls_options, self._log_format = config.tls, config.log_format
        self._places = dict(config.state_machines)
        self._kv_ports = (config.kv or KvOptions()).ports
        self._listens_on = config.bind or self.address
        self._path = path
        self._command_line = command_line

    def hung_up(self) -> ReloadResponse:
        changed, refused = self._reload_tls()
        if self._path is None:
            if self._tls is None:
                log.warning(
                    "SIGHUP: nothing to reload: there is no --config file", extra={"event": "reload"}
                )
            if not refused:
                changed = changed or ["nothing to reload: there is no --config file"]
            return self._reloaded(changed, refused)
        try:
            config = load_server_config(self._path, self._command_line)
            of_groups = self.reload(config.groups)
            changed += self.set_limits(config.limits)
        except ConfigError as error:
            log.error("SIGHUP: nothing is reloaded: %s", error, extra={"event": "reload"})
            return self._reloaded(changed, [*refused, f"nothing is reloaded: {error}"])
        of_process = {
            "bind": (config.bind or self.address) == self._listens_on,
            "state_machines": dict(config.state_machines) == self._places,
            "hold_machines": frozenset(config.hold_machines) == self._held_machines,
            "log_format": config.log_format == self._log_format,
            "[tls]; its files are read again without": config.tls == self._tls_options,
            "[admin]": config.admin == self.admin,
            "[kafka]": config.kafka == self._kafka_options,
            "[users]": config.users == self.users.options,
            "the ports for clients of etcd in [kv]": (config.kv or KvOptions()).ports == self._kv_ports,
        }
        differ = [name for name, is_same in of_process.items() if not is_same]
        for name in differ:
            log.warning("needs a restart to change: %s", name, extra={"event": "reload"})
        root = logging.getLogger()
        level = logging.getLevelName((config.log_level or "info").upper())
        before, root.level = root.level, min(root.level, level, logging.WARNING)
        names = [logging.getLevelName(each).lower() for each in (before, level)]
        log.warning(
            "SIGHUP: %s is reloaded, log_level: %s -> %s", self._path, *names, extra={"event": "reload"}
        )
        root.setLevel(level)
        if before != level:
            changed.append("log_level {} -> {}".format(*names))
        of_store = self._reload_store(config)
        for each in of_store:
            log.warning("the key-value store: reloaded: %s", each, extra={"event": "reload"})
        changed += [*of_groups.changed, *of_store]
        return self._reloaded(changed, refused, [*differ, *of_groups.needs_restart])

    async def start(self) -> None:
        await super().start()
        for config in self.groups:
            place = f"data in {config.data_dir}" if config.store == "file" else "data in memory only"
            announce(
                f"{DESCRIPTION}: {config.member_id} of group {config.group}, one of"
                f" {len(config.members)}, listens on {self._listens_on}{self._listener.speaks}, flush"
                f" {config.storage.flush}, {place}"
            )
        say_ready()
        if hung_up_before():
            self.hung_up()
