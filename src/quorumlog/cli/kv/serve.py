"""quorumlog kv serve: one member with its store, until SIGTERM."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import (
    AdminAddress,
    DataDir,
    Format,
    Level,
    LogLevel,
    MemberId,
    Members,
    TlsGiven,
    pem_option,
    split_servers,
    user_of,
)
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.cli.run.toml_config import ServerConfig
    from quorumlog.kv.endpoint import KeyValueEndpoint
    from quorumlog.server.endpoints import Endpoint


class EngineName(StrEnum):
    MEMORY = "memory"
    ROCKSDB = "rocksdb"


MIB = 1 << 20
EVERYWHERE = ("0.0.0.0", "::", "[::]")


def _check_address(option: str, address: str) -> None:
    """Raises ConfigError."""
    from quorumlog.config import parse_address

    try:
        parse_address(address)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None


def serve(
    listen: Annotated[
        str,
        typer.Option(
            help="Address for the store's clients; its port differs from the log's.",
            metavar="HOST:PORT",
        ),
    ] = "127.0.0.1:20921",
    member_id: MemberId = None,
    members: Members = None,
    data_dir: DataDir = None,
    config: Annotated[
        Path | None, typer.Option(help="Options of the log from a TOML file.", metavar="FILE.toml")
    ] = None,
    engine: Annotated[
        EngineName,
        typer.Option(help="Where keys are stored: in memory, or in RocksDB (extra `rocksdb`)."),
    ] = EngineName.MEMORY,
    quota_mib: Annotated[
        int | None,
        typer.Option(help="Size of the store above which puts are refused. (default: 8192)", min=1),
    ] = None,
    auto_compaction: Annotated[
        float | None,
        typer.Option(help="Keep history for this many seconds; 0: for ever. (default: 3600)", min=0.0),
    ] = None,
    max_watches: Annotated[
        int | None,
        typer.Option(
            help="Limit per client; all clients together: ten times as many. (default: 10000)", min=1
        ),
    ] = None,
    etcd_gateway: Annotated[
        str | None,
        typer.Option(
            help="Also serve etcd's JSON gateway, as for Patroni, on this port of the host of"
            " --listen (extra `etcd-gateway`).",
            metavar="PORT|HOST:PORT",
        ),
    ] = None,
    etcd: Annotated[
        str | None,
        typer.Option(
            help="Also serve etcd's gRPC API, for etcdctl and clients of etcd v3, on this port of the"
            " host of --listen (extra `etcd-gateway`).",
            metavar="PORT|HOST:PORT",
        ),
    ] = None,
    servers: Annotated[
        str | None,
        typer.Option(
            help="The --listen addresses of all members: ports for clients of etcd forward requests to"
            " the leader.",
            envvar="QUORUMLOG_KV_SERVERS",
            metavar="LIST",
        ),
    ] = None,
    as_user: Annotated[
        str | None,
        typer.Option(
            "--user",
            help="Own user of the ports for clients of etcd, for clients that do not log in, if the"
            " stores have users.",
            envvar="QUORUMLOG_USER",
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        pem_option(
            "--password-file",
            "Its first line is the password of --user; else QUORUMLOG_PASSWORD.",
            "QUORUMLOG_PASSWORD_FILE",
        ),
    ] = None,
    hold_machine: Annotated[
        list[str] | None,
        typer.Option(help="`kv`: do not run the store (a command crashes it).", metavar="NAME"),
    ] = None,
    admin: AdminAddress = None,
    *,
    tls_files: TlsGiven,
    log_level: Level = LogLevel.INFO,
    log_format: Format = None,
) -> None:
    """Run one member of a store until SIGTERM. Without TLS, listen only on a trusted network.

    Example, the first of three:

    \b
        quorumlog kv serve --id n0 --data-dir /var/lib/quorumlog \\
          --members n0=10.0.0.1:20911,n1=10.0.0.2:20911,n2=10.0.0.3:20911 --listen 10.0.0.1:20921

    \b
    For clients of etcd, add --etcd 2379 --servers 10.0.0.1:20921,10.0.0.2:20921,10.0.0.3:20921, and for
    Patroni --etcd-gateway instead of --etcd
    """
    from quorumlog.admin.store import look_at_store
    from quorumlog.cli.run.serve import log_as, refuse_optimised_python, run_member, tls_of
    from quorumlog.cli.run.serving_member import ServingMember
    from quorumlog.cli.run.toml_config import load_server_config
    from quorumlog.config import KvOptions
    from quorumlog.kv.endpoint import endpoint_of
    from quorumlog.kv.etcd import etcd_gateway as etcd_json_gateway
    from quorumlog.kv.etcd import etcd_port
    from quorumlog.kv.service import StoreOptions

    refuse_optimised_python()
    command_line = {
        "member_id": member_id,
        "members": members,
        "data_dir": None if data_dir is None else str(data_dir),
        "log_level": log_level.value,
        "hold_machines": tuple(hold_machine) if hold_machine else None,
        "tls": tls_files,
        "admin": admin,
        "log_format": log_format,
    }
    path = None if config is None else str(config)
    server_config = load_server_config(path, command_line)
    if len(server_config.groups) > 1:
        raise ConfigError("--config: a store has one group; serve the others with `quorumlog serve`")
    log_as(server_config)
    tls = tls_of(server_config.tls)
    urls = {"etcd": "", "etcd_gateway": ""}

    def options_of(config: ServerConfig) -> StoreOptions:
        table = config.kv or KvOptions()
        history_s = table.auto_compaction_s if auto_compaction is None else auto_compaction
        quota = table.quota_mib if quota_mib is None else quota_mib
        watches = table.max_watches if max_watches is None else max_watches
        return StoreOptions(history_s * 1000, quota * MIB, max_watches=watches, **urls)

    group = server_config.groups[0]
    _check_address("--listen", listen)
    table = server_config.kv or KvOptions()
    servers = servers or table.servers
    taken = {listen: "--listen"}
    made: list[Callable[[KeyValueEndpoint], Endpoint]] = []
    for option, place, make, second in (
        ("--etcd", etcd or table.etcd, etcd_port, "etcd_listen"),
        ("--etcd-gateway", etcd_gateway or table.etcd_gateway, etcd_json_gateway, "gateway_listen"),
    ):
        if not place:
            continue
        address = place if ":" in place else f"{listen.rpartition(':')[0]}:{place}"
        _check_address(option, address)
        if address in taken:
            raise ConfigError(
                f"{option} and {taken[address]} have the same address {address}; each needs its own port"
            )
        taken[address] = option
        if not servers and len(group.members) > 1:
            raise ConfigError(
                f"{option} needs --servers, the --listen addresses of all members: it forwards requests"
                " to the leader"
            )
        servers = servers or listen
        split_servers(servers)
        name, file = as_user or table.user or None, password_file or table.password_file or None
        user = user_of(name, None if file is None else Path(file))
        made.append(
            partial(make, listen=address, servers=servers, member_id=group.member_id, tls=tls, user=user)
        )
        scheme = "http" if tls is None or getattr(tls.options, second) else "https"
        host, _, port = address.rpartition(":")
        host = group.own_address.host if host in EVERYWHERE else host  # where others reach it
        urls[option.strip("-").replace("-", "_")] = f"{scheme}://{host}:{port}"
    endpoint = endpoint_of(group, listen, engine.value, options_of(server_config), tls)
    server = ServingMember(
        server_config,
        path,
        command_line,
        endpoints=[*(make(endpoint) for make in made), endpoint],
        tls=tls,
        reload_store=lambda config: endpoint.configure(options_of(config)),
    )
    run_member(server, [partial(look_at_store, endpoint, group.group)])
