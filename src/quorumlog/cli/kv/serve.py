"""quorumlog kv serve: one member with its store, until SIGTERM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from quorumlog.cli.options import (
    AdminAddress,
    DataDir,
    Format,
    Level,
    MemberId,
    Members,
    TlsGiven,
    option,
    split_servers,
    user_of,
)
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.cli.run.toml_config import ServerConfig
    from quorumlog.config import KvOptions
    from quorumlog.kv.endpoint import KeyValueEndpoint
    from quorumlog.server.endpoints import Endpoint


MIB = 1 << 20
EVERYWHERE = ("0.0.0.0", "::", "[::]")


def serve(
    listen: Annotated[
        str, option("Address for the store's clients; its port differs from the log's.", "HOST:PORT")
    ] = "127.0.0.1:20921",
    member_id: MemberId = None,
    members: Members = None,
    data_dir: DataDir = None,
    config: Annotated[Path | None, option("Options of the log from a TOML file.", "FILE.toml")] = None,
    engine: Annotated[
        Literal["memory", "rocksdb"],
        option("Where keys are stored: in memory, or in RocksDB (extra `rocksdb`)."),
    ] = "memory",
    quota_mib: Annotated[
        int | None, option("Size of the store above which puts are refused. (default: 8192)", min=1)
    ] = None,
    auto_compaction: Annotated[
        float | None, option("Keep history for this many seconds; 0: for ever. (default: 3600)", min=0.0)
    ] = None,
    max_watches: Annotated[
        int | None,
        option("Limit per client; all clients together: ten times as many. (default: 10000)", min=1),
    ] = None,
    etcd_gateway: Annotated[
        str | None,
        option(
            "Also serve etcd's JSON gateway, as for Patroni, on this port of the host of"
            " --listen (extra `etcd-gateway`).",
            "PORT|HOST:PORT",
        ),
    ] = None,
    etcd: Annotated[
        str | None,
        option(
            "Also serve etcd's gRPC API, for etcdctl and clients of etcd v3, on this port of the"
            " host of --listen (extra `etcd-gateway`).",
            "PORT|HOST:PORT",
        ),
    ] = None,
    servers: Annotated[
        str | None,
        option(
            "The --listen addresses of all members: ports for clients of etcd forward requests to"
            " the leader.",
            "LIST",
            envvar="QUORUMLOG_KV_SERVERS",
        ),
    ] = None,
    as_user: Annotated[
        str | None,
        option(
            "Own user of the ports for clients of etcd, for clients that do not log in, if the"
            " stores have users.",
            name="--user",
            envvar="QUORUMLOG_USER",
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        option(
            "Its first line is the password of --user; else QUORUMLOG_PASSWORD.",
            "FILE",
            envvar="QUORUMLOG_PASSWORD_FILE",
        ),
    ] = None,
    hold_machine: Annotated[
        list[str] | None, option("`kv`: do not run the store (a command crashes it).", "NAME")
    ] = None,
    admin: AdminAddress = None,
    *,
    tls_files: TlsGiven,
    log_level: Level = "info",
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
    from quorumlog.config import KvOptions, parse_address, within
    from quorumlog.kv.endpoint import endpoint_of
    from quorumlog.kv.etcd import etcd_gateway as etcd_json_gateway
    from quorumlog.kv.etcd import etcd_port
    from quorumlog.kv.service import StoreOptions

    refuse_optimised_python()
    command_line = {
        "member_id": member_id,
        "members": members,
        "data_dir": None if data_dir is None else str(data_dir),
        "log_level": log_level,
        "hold_machines": tuple(hold_machine) if hold_machine else None,
        "tls": tls_files.table,
        "admin": admin,
        "log_format": log_format,
    }
    given = {
        "quota_mib": quota_mib,
        "auto_compaction_s": auto_compaction,
        "max_watches": max_watches,
        "etcd": etcd,
        "etcd_gateway": etcd_gateway,
        "servers": servers,
        "user": as_user,
        "password_file": None if password_file is None else str(password_file),
    }
    given = {name: value for name, value in given.items() if value not in (None, "")}

    def table_of(config: ServerConfig) -> KvOptions:
        return replace(config.kv or KvOptions(), **given)  # type: ignore[arg-type]

    path = None if config is None else str(config)
    server_config = load_server_config(path, command_line)
    if len(server_config.groups) > 1:
        raise ConfigError("--config: a store has one group; serve the others with `quorumlog serve`")
    log_as(server_config)
    tls = tls_of(server_config.tls)
    urls = {"etcd": "", "etcd_gateway": ""}

    def options_of(config: ServerConfig) -> StoreOptions:
        table = table_of(config)
        history_ms, quota_bytes = table.auto_compaction_s * 1000, table.quota_mib * MIB
        return StoreOptions(history_ms, quota_bytes, max_watches=table.max_watches, **urls)

    group, table = server_config.groups[0], table_of(server_config)
    with within("--listen"):
        parse_address(listen)
    taken = {listen: "--listen"}
    made: list[Callable[[KeyValueEndpoint], Endpoint]] = []
    for name, place, make, second in (
        ("--etcd", table.etcd, etcd_port, "etcd_listen"),
        ("--etcd-gateway", table.etcd_gateway, etcd_json_gateway, "gateway_listen"),
    ):
        if not place:
            continue
        address = place if ":" in place else f"{listen.rpartition(':')[0]}:{place}"
        with within(name):
            parse_address(address)
        if address in taken:
            raise ConfigError(
                f"{name} and {taken[address]} have the same address {address}; each needs its own port"
            )
        taken[address] = name
        if not table.servers and len(group.members) > 1:
            raise ConfigError(
                f"{name} needs --servers, the --listen addresses of all members: it forwards requests to"
                " the leader"
            )
        at = table.servers or listen
        split_servers(at)
        user = user_of(table.user or None, Path(table.password_file) if table.password_file else None)
        made.append(
            partial(make, listen=address, servers=at, member_id=group.member_id, tls=tls, user=user)
        )
        scheme = "http" if tls is None or getattr(tls.options, second) else "https"
        host, _, port = address.rpartition(":")
        host = group.own_address.host if host in EVERYWHERE else host  # where others reach it
        urls[name.strip("-").replace("-", "_")] = f"{scheme}://{host}:{port}"
    endpoint = endpoint_of(group, listen, engine, options_of(server_config), tls)
    server = ServingMember(
        server_config,
        path,
        command_line,
        endpoints=[*(make(endpoint) for make in made), endpoint],
        tls=tls,
        reload_store=lambda config: endpoint.configure(options_of(config)),
    )
    run_member(server, [partial(look_at_store, endpoint, group.group)])
