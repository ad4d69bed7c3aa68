"""Patroni and its PostgreSQL as processes on loopback."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from quorumlog.server.free_ports import free_ports

TTL_S, LOOP_S, RETRY_S = 30, 10, 10
"""Patroni's defaults."""
ASK_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 60.0
USER = "postgres"


class Nodes:
    """`with Nodes(folder, patroni, bin_dir, gateways) as nodes`. `folder`: made by the caller, and given
    to the user that PostgreSQL runs as, which must not be root."""

    def __init__(
        self, folder: Path, patroni: Path, bin_dir: Path, gateways: Sequence[str], count: int = 2
    ) -> None:
        """`gateways`: HOST:PORT of those of the store's members."""
        if os.geteuid() == 0:
            user = pwd.getpwnam(USER)
            folder.chmod(0o755)
            os.chown(folder, user.pw_uid, user.pw_gid)
        self._bin_dir = bin_dir
        ports = free_ports(2 * count)
        self.nodes = [
            Node(f"pg{number}", folder, patroni, bin_dir, gateways, *ports[2 * number : 2 * number + 2])
            for number in range(count)
        ]

    def __enter__(self) -> Nodes:
        for node in self.nodes:
            node.start()
        return self

    def __exit__(self, *reason: object) -> None:
        for node in self.nodes:
            node.kill()

    def __getitem__(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def others(self, name: str) -> list[Node]:
        return [node for node in self.nodes if node.name != name]

    def leader(self) -> str:
        """Of whom Patroni says that it leads, if a replica follows it in step; else empty."""
        for node in self.nodes:
            members = node.cluster()
            leaders = [each["name"] for each in members if each["role"] == "leader"]
            in_step = [each for each in members if each["role"] == "sync_standby"]
            if leaders and in_step and all(each.get("state") == "streaming" for each in in_step):
                return str(leaders[0])
        return ""


class Node:
    def __init__(
        self,
        name: str,
        folder: Path,
        patroni: Path,
        bin_dir: Path,
        gateways: Sequence[str],
        port: int,
        rest_port: int,
    ) -> None:
        self.name = name
        self.port = port
        """Of PostgreSQL."""
        self._rest_port = rest_port
        self._patroni = patroni
        self._data_dir = folder / name
        self._log_path = folder / f"{name}.log"
        self._config_path = folder / f"{name}.yml"
        self._process: subprocess.Popen[bytes] | None = None
        trusted = ["local all all trust", "host all all 127.0.0.1/32 trust"]
        config = {
            "scope": "proof",
            "name": name,
            "restapi": {"listen": f"127.0.0.1:{rest_port}", "connect_address": f"127.0.0.1:{rest_port}"},
            "etcd3": {"hosts": list(gateways)},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_S,
                    "loop_wait": LOOP_S,
                    "retry_timeout": RETRY_S,
                    # What is acknowledged is on both while both are there.
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True},
                },
                "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}, "data-checksums"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{port}",
                "connect_address": f"127.0.0.1:{port}",
                "data_dir": str(self._data_dir),
                "bin_dir": str(bin_dir),
                "pgpass": str(folder / f"{name}.pgpass"),
                "pg_hba": [*trusted, "host replication all 127.0.0.1/32 trust"],
                "parameters": {"unix_socket_directories": str(folder)},
                "authentication": {
                    "superuser": {"username": "postgres", "password": "proof"},
                    "replication": {"username": "replicator", "password": "proof"},
                },
            },
            "watchdog": {"mode": "off"},
        }
        self._config_path.write_text(json.dumps(config, indent=1))  # JSON is YAML

    def start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*_as_user(), str(self._patroni), str(self._config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                cwd="/",
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """As a machine that loses its power: Patroni, and the PostgreSQL that it looks after."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        pid = self._postmaster()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)  # its children see that it is gone, and end

    def _postmaster(self) -> int | None:
        """Of a PostgreSQL that runs on this directory."""
        try:
            pid = int((self._data_dir / "postmaster.pid").read_text().split("\n", 1)[0])
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self._data_dir) in words else None

    def cluster(self) -> list[dict[str, Any]]:
        """Members as this node's Patroni knows them; empty if it does not answer."""
        try:
            url = f"http://127.0.0.1:{self._rest_port}/cluster"
            with urlopen(url, timeout=ASK_TIMEOUT_S) as response:
                members = json.load(response)["members"]
                assert isinstance(members, list)
                return members
        except (OSError, ValueError, KeyError):
            return []

    def last_words(self) -> str:
        lines = self._log_path.read_text(errors="replace").splitlines()
        return f"{self.name}:\n" + "\n".join(lines[-40:])


def _as_user() -> list[str]:
    """PostgreSQL refuses to run as root. A Python that lies in root's home can still be read."""
    if os.geteuid() != 0:
        return []
    rights = "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", *rights]
