"""quorumlog dev: a whole cluster in one terminal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

from quorumlog.cli.options import FlushMode, Level, option
from quorumlog.cli.output import let_go_of, note, say, tell
from quorumlog.cli.run.log_lines import log_to_stderr
from quorumlog.cli.run.serve import refuse_optimised_python
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.config import TlsOptions
    from quorumlog.net.tls import Tls
    from quorumlog.server import Endpoint, LocalCluster

TLS_FOLDER = "tls"
PORTS_NAME = "ports"
"""File in --dir: the ports of n0, n1, ..., so that clients find the cluster again."""
_BESIDE = (
    ("etcd", "For etcdctl and clients of etcd", ","),
    ("etcd_gateway", "For etcd's JSON gateway", ","),
    ("kafka", "For clients of Kafka", ","),
    ("admin", "In a browser", " "),
)
"""Further ports: their key with --json, and their words."""


def dev(
    members: Annotated[int, option("Number of members.", min=1, max=9)] = 3,
    directory: Annotated[
        Path | None,
        option(
            "Keep the data here, and continue with existing data; without it the data is temporary.",
            "DIR",
            name="--dir",
        ),
    ] = None,
    port: Annotated[
        int | None,
        option(
            "Port of the first member; the others follow. (default: those of --dir, or free ones)",
            "PORT",
            min=1024,
            max=65_500,
        ),
    ] = None,
    flush: Annotated[
        FlushMode, option("sync: acknowledge once the entry is on disk; async: once it is written.")
    ] = "sync",
    admin: Annotated[
        str | None,
        option(
            "HTTP port for health, metrics and a status page of the first member; the others use"
            " the next ports (extra `admin`).",
            "HOST:PORT",
        ),
    ] = None,
    etcd: Annotated[
        str | None,
        option(
            "Run a key-value store on each member, with etcd's gRPC API on this port of the first"
            " one; the others use the next ports (extra `etcd-gateway`).",
            "HOST:PORT",
        ),
    ] = None,
    etcd_gateway: Annotated[
        str | None, option("The same with etcd's JSON gateway.", "HOST:PORT")
    ] = None,
    kafka: Annotated[
        str | None,
        option(
            "Port for clients of Kafka of the first member; the others use the next ports (extra"
            " `kafka`).",
            "HOST:PORT",
        ),
    ] = None,
    tls: Annotated[bool, option("Use TLS, with a CA created beside the data (extra `tls`).")] = False,
    log_level: Level = "warning",
) -> None:
    """Run a cluster in this terminal until Ctrl-C, for trials only.

    With --dir a cluster returns with its data at the same addresses. It also stops when the terminal
    is closed; SIGHUP is ignored.

    Example: quorumlog dev --members 3 --dir ./dev-data
    """
    from quorumlog.cli.run.serving_member import kafka_room
    from quorumlog.config import ConsensusConfig, KafkaOptions
    from quorumlog.net.limits import raise_descriptor_limit
    from quorumlog.net.tls import Tls
    from quorumlog.server import LocalCluster

    refuse_optimised_python()
    log_to_stderr(log_level)
    ids = [f"n{number}" for number in range(members)]
    _refuse_another_size(directory, ids)
    ports = _ports(directory, members, port)
    stop = threading.Event()

    def hung_up(number: int, frame: FrameType | None) -> None:
        if had_terminal and not _has_terminal():
            let_go_of(sys.stdout, sys.stderr)
            stop.set()

    had_terminal = _has_terminal()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which is what nohup asks for
        signal.signal(signal.SIGHUP, hung_up)
    raise_descriptor_limit()
    kafka_servers = _ports_from(kafka, ids)

    def tls_of(member_id: str) -> TlsOptions | None:
        return _tls_of(cluster.directory / TLS_FOLDER, member_id) if tls else None

    def endpoints_of(member_id: str) -> list[Endpoint]:
        options = tls_of(member_id)
        own_tls = None if options is None else Tls(options)
        found = [] if stores is None else stores.endpoints(member_id, own_tls)
        if kafka_servers:
            at = KafkaOptions(kafka_servers[member_id])
            found.append(kafka_room().KafkaEndpoint(at, member_id, kafka_servers, tls=own_tls))
        return found

    stores = _Stores(ids, etcd, etcd_gateway) if etcd or etcd_gateway else None
    # Leases are at least three election time-outs long: three seconds.
    cluster = LocalCluster(
        members,
        endpoints=endpoints_of if stores is not None or kafka_servers else None,
        directory=directory,
        flush=flush,
        ports=ports,
        tls=tls_of,
        consensus=None
        if stores is None
        else ConsensusConfig(heartbeat_interval_ms=100, max_heartbeat_leak=10),
    )
    cluster.start()
    with closing(cluster), ExitStack() as answering:
        pages = [] if admin is None else _answer_for(cluster, admin, answering)
        if directory is not None:
            kept = " ".join(str(member.port) for member in cluster.members)
            (directory / PORTS_NAME).write_text(f"{kept}\n")
        # Only now: an interrupt while it starts should simply end the command.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        row: dict[str, Any] = {"servers": cluster.servers, "directory": str(cluster.directory)}
        row |= {"tls_ca": str(cluster.directory / TLS_FOLDER / "ca.crt")} if tls else {}
        row |= {"kafka": list(kafka_servers.values())} if kafka_servers else {}
        row |= {"admin": pages} if pages else {}
        row |= {} if stores is None else stores.urls
        shown = row | ({"kafka": ",".join(row["kafka"])} if kafka_servers else {})
        tell(shown, lambda: _print_addresses(cluster, row))
        stop.wait()
        note("stopping")


class _Stores:
    """A key-value store on each member, and ports for clients of etcd."""

    def __init__(self, ids: list[str], etcd: str | None, etcd_gateway: str | None) -> None:
        """Raises ConfigError."""
        from quorumlog.server.free_ports import free_ports

        ports = free_ports(len(ids))
        self._stores = {name: f"127.0.0.1:{port}" for name, port in zip(ids, ports, strict=True)}
        self._etcd, self._gateway = _ports_from(etcd, ids), _ports_from(etcd_gateway, ids)

    @property
    def urls(self) -> dict[str, list[str]]:
        found = {"etcd": self._etcd, "etcd_gateway": self._gateway}
        return {name: list(of.values()) for name, of in found.items() if of}

    def endpoints(self, member_id: str, tls: Tls | None) -> list[Endpoint]:
        from quorumlog.kv.endpoint import KeyValueEndpoint
        from quorumlog.kv.etcd import etcd_gateway, etcd_port
        from quorumlog.kv.service import StoreOptions

        scheme = "http" if tls is None else "https"
        etcd, gateway = self._etcd.get(member_id), self._gateway.get(member_id)
        store = KeyValueEndpoint(
            self._stores[member_id],
            options=StoreOptions(
                etcd=f"{scheme}://{etcd}" if etcd else "",
                etcd_gateway=f"{scheme}://{gateway}" if gateway else "",
            ),
            tls=tls,
        )
        servers = ",".join(self._stores.values())
        found: list[Endpoint] = []
        if etcd:
            found.append(etcd_port(store, etcd, servers, member_id, tls))
        if gateway:
            found.append(etcd_gateway(store, gateway, servers, member_id, tls))
        return [*found, store]


def _ports_from(first: str | None, ids: Sequence[str]) -> dict[str, str]:
    """HOST:PORT of each member. Raises ConfigError."""
    from quorumlog.config import parse_address

    if first is None:
        return {}
    host, port = parse_address(first)
    return {member_id: f"{host}:{port + number}" for number, member_id in enumerate(ids)}


def _has_terminal() -> bool:
    """This process has one that it is controlled by, and nobody has closed it."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _tls_of(directory: Path, member_id: str) -> TlsOptions:
    """Raises ConfigError."""
    from quorumlog.cli import certificates
    from quorumlog.config import TlsOptions
    from quorumlog.store.disk import refusal

    ca, cert = directory / "ca.crt", directory / f"member-{member_id}.crt"
    if not ca.exists():
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(refusal(str(directory.parent), "created", error)) from None
        certificates.init(directory, "dev")
    if not cert.exists():
        certificates.member(directory, member_id, ("127.0.0.1", "localhost"))
    return TlsOptions(str(cert), str(cert.with_suffix(".key")), str(ca))


def _answer_for(cluster: LocalCluster, admin: str, answering: ExitStack) -> list[str]:
    """The URL of each member. Raises ConfigError."""
    from quorumlog.admin import AdminPort, LogProcess
    from quorumlog.config import AdminOptions, parse_address

    host, first = parse_address(AdminOptions(admin).listen)
    ports = [
        AdminPort(f"{host}:{first + number}", LogProcess(cluster.server(member.member_id)))
        for number, member in enumerate(cluster.members)
    ]
    return [answering.enter_context(port).url for port in ports]


def _print_addresses(cluster: LocalCluster, row: dict[str, Any]) -> None:
    say(f"{len(cluster.members)} members run, {cluster.leader()} leads, data in {cluster.directory}")
    say("\nIn another terminal:\n")
    trust = f" --tls-ca {row['tls_ca']}" if "tls_ca" in row else ""
    for command in ("status", "append", "read"):
        say(f"  quorumlog {command} --servers {cluster.servers}{trust}")
    for name, what, between in _BESIDE:
        if name in row:
            say(f"\n{what}: {between.join(row[name])}")
    say("\nCtrl-C stops the cluster.")


def _ports(directory: Path | None, members: int, first: int | None) -> list[int] | None:
    """Asked for, or those of the last time; None: whatever is free. Raises ConfigError."""
    from quorumlog.server.free_ports import is_free

    kept = directory / PORTS_NAME if directory is not None else None
    if first is not None:
        ports = list(range(first, first + members))
        whose = f"--port {first}: port"
    elif kept is not None and kept.is_file():
        words = kept.read_text().split()
        if len(words) != members or not all(word.isdecimal() for word in words):
            raise ConfigError(f"{kept} does not hold {members} ports; delete it, or choose with --port")
        ports = [int(word) for word in words]
        whose = f"--dir {directory}: port"
    else:
        return None
    for port in ports:
        if not is_free(port):
            raise ConfigError(
                f"{whose} {port} is in use by another process, perhaps another `quorumlog dev`; stop it,"
                " or choose others with --port"
            )
    return ports


def _refuse_another_size(directory: Path | None, wanted: list[str]) -> None:
    """A cluster forms once: the directory of three members is not that of five."""
    if directory is None or not directory.is_dir():
        return
    existing = sorted(child.name for child in directory.iterdir() if (child / "member").is_file())
    if existing and existing != wanted:
        raise ConfigError(
            f"--dir {directory} holds a cluster of {len(existing)} members ({', '.join(existing)}); use"
            f" --members {len(existing)} or another --dir"
        )
