"""RabbitMQ, a quorum queue of three: Debian's packages, unpacked into the cache and never installed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.cache import Cache
from benchmarks.peers.peer import Peer
from benchmarks.peers.servers import ServerCommand
from benchmarks.peers.system import IN_FLIGHT_RECORDS, SINGLES, Shape
from quorumlog.server.free_ports import free_ports

_ERLANG = (
    *("base", "asn1", "crypto", "eldap", "ftp", "inets", "mnesia", "os-mon", "parsetools", "public-key"),
    *("runtime-tools", "snmp", "ssl", "syntax-tools", "tftp", "tools", "xmerl"),
)
_PACKAGES = ("rabbitmq-server", *(f"erlang-{name}" for name in _ERLANG))
"""The server and all of Erlang that it depends on, of the release of Debian that this machine runs: the
one version that its archive has."""


class RabbitMQ(Peer):
    name = family = "rabbitmq"
    durability = "log synced on 2 of 3"
    synced = True
    ports_each = 2
    shapes: Mapping[str, Shape] = {
        **SINGLES,
        "bulk": Shape(1, IN_FLIGHT_RECORDS, 1, f"pipelined confirms, {IN_FLIGHT_RECORDS:,} in flight"),
    }

    def __init__(self) -> None:
        self._version = ""

    @property
    def title(self) -> str:
        return f"RabbitMQ {self._version}".strip()

    def set_up(self, cache: Cache) -> None:
        folder = cache.folder / "rabbitmq"
        # Renamed last: a folder of this name is whole.
        if not folder.exists():
            fresh = cache.folder / "rabbitmq-unfinished"
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True)
            cache.run(["apt-get", "download", "--quiet", *_PACKAGES], cwd=fresh)
            for package in sorted(fresh.glob("*.deb")):
                cache.run(["dpkg", "-x", package, fresh / "root"])
            fresh.rename(folder)
        root = folder / "root" / "usr" / "lib"
        self._erlang = root / "erlang"
        (self._server,) = root.glob("rabbitmq/lib/rabbitmq_server-*")
        self._version = self._server.name.partition("-")[2]
        for script in (self._erlang / "bin" / "erl", *self._erlang.glob("erts-*/bin/erl")):
            script.write_text(moved(script.read_text(), self._erlang))
        self.client = [cache.go_build("rabbitmq", ".", "rabbitmq-load")]

    def commands(self, folder: Path, ports: Sequence[Sequence[int]]) -> list[ServerCommand]:
        (epmd_port,) = free_ports(1)
        cookie = folder / ".erlang.cookie"
        cookie.write_text("bench")
        cookie.chmod(0o400)
        config = folder / "rabbitmq.conf"
        nodes = [f"n{number}@localhost" for number in range(len(ports))]
        config.write_text(
            "cluster_formation.peer_discovery_backend = classic_config\n"
            + "".join(
                f"cluster_formation.classic_config.nodes.{number} = {node}\n"
                for number, node in enumerate(nodes, 1)
            )
        )
        env = {
            "HOME": str(folder),
            "PATH": f"{self._erlang / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONFIG_FILE": str(config),
            # Not those of the machine.
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "none"),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # Makes the start script become the server: without a shell between, a signal reaches it.
            "RUNNING_UNDER_SYSTEMD": "1",
        }
        # The first node would start it as a daemon that stays.
        commands = [ServerCommand("epmd", [self._erlang / "bin" / "epmd"], env)]
        for node, (client_port, distribution_port) in zip(nodes, ports, strict=True):
            name = node.partition("@")[0]
            own = {
                "RABBITMQ_NODENAME": node,
                "RABBITMQ_NODE_PORT": str(client_port),
                "RABBITMQ_DIST_PORT": str(distribution_port),
                "RABBITMQ_MNESIA_BASE": str(folder / name),
                "RABBITMQ_LOG_BASE": str(folder / name / "log"),
            }
            command = [self._server / "sbin" / "rabbitmq-server"]
            commands.append(ServerCommand(name, command, {**env, **own}))
        return commands


def moved(script: str, erlang: Path) -> str:
    """Erlang's start script with the folder that it lies in, where the package has /usr/lib/erlang."""
    return re.sub(r"ROOTDIR=/\S+", f"ROOTDIR={erlang}", script)
