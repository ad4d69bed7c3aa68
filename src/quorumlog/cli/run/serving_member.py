"""The server of `quorumlog serve`: it says that it listens, and reads its file again on SIGHUP."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from quorumlog.cli.interrupts import hung_up_before
from quorumlog.cli.output import announce
from quorumlog.cli.run.choices import LogLevel
from quorumlog.cli.run.state_machines import load_machines
from quorumlog.cli.run.toml_config import ServerConfig, load_server_config
from quorumlog.config import GroupConfig, TlsOptions
from quorumlog.errors import ConfigError
from quorumlog.net.tls import Tls
from quorumlog.server import Door, LedgerServer
from quorumlog.version import DESCRIPTION

log = logging.getLogger("quorumlog.server")


class ServingMember(LedgerServer):
    def __init__(
        self,
        config: ServerConfig,
        path: str | None,
        given: Mapping[str, Any],
        doors: Sequence[Door] = (),
        tls: Tls | None = None,
    ) -> None:
        """`path` and `given` as in `load_server_config`, `doors` and `tls` as of `LedgerServer`."""
        machines = load_machines(config.state_machines)
        super().__init__(
            config.groups,
            bind=config.bind,
            state_machines=machines,
            doors=doors,
            hold_machines=config.hold_machines,
            tls=tls,
        )
        self._tls_options = config.tls
        self._places = dict(config.state_machines)
        self._listens_on = config.bind or self.address
        self._path = path
        self._given = given

    def hung_up(self) -> None:
        if self._tls is not None:
            self._tls.reload()
        if self._path is None:
            log.warning("SIGHUP: no options to reload: there is no --config file")
            return
        try:
            config = load_server_config(self._path, self._given)
            self.reload(config.groups)
        except ConfigError as error:
            log.error("SIGHUP: nothing is reloaded: %s", error)
            return
        if (config.bind or self.address) != self._listens_on:
            log.warning("needs a restart to change: bind")
        if dict(config.state_machines) != self._places:
            log.warning("needs a restart to change: state_machines")
        if frozenset(config.hold_machines) != self._held_machines:
            log.warning("needs a restart to change: hold_machines")
        if config.tls != self._tls_options:
            log.warning("needs a restart to change: [tls]; what its files hold is read again without")
        root = logging.getLogger()
        level = logging.getLevelName((config.log_level or LogLevel.INFO).upper())
        before, root.level = root.level, min(root.level, level, logging.WARNING)
        names = [logging.getLevelName(each).lower() for each in (before, level)]
        log.warning("SIGHUP: %s is reloaded, log_level: %s -> %s", self._path, *names)
        root.setLevel(level)

    async def start(self) -> None:
        await super().start()
        for config in self.groups:
            announce(_announcement(config, self._listens_on, self._tls_options))
        if hung_up_before():
            self.hung_up()


def _announcement(config: GroupConfig, listens_on: str, tls: TlsOptions | None) -> str:
    place = f"data in {config.data_dir}" if config.store == "file" else "data in memory only"
    return (
        f"{DESCRIPTION}: {config.member_id} of group {config.group}, one of {len(config.members)},"
        f" listens on {listens_on}{_speaking(tls)}, flush {config.storage.flush}, {place}"
    )


def _speaking(tls: TlsOptions | None) -> str:
    if tls is None:
        return ""
    return f" and with TLS on {tls.listen}" if tls.listen else " with TLS"
