"""quorumlog broker serve."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.broker.broker_options import (
    DEFAULT_SERVER,
    Dialect,
    Flush,
    RoleChoice,
    topics_of,
    topics_of_store,
)
from quorumlog.cli.broker.failover import (
    CoordinatorList,
    Failover,
    FailoverBegin,
    Group,
    InSyncTimeoutMs,
    LeaseMs,
    alone,
    failover_of,
)
from quorumlog.cli.options import named_path
from quorumlog.cli.output import EXIT_STORE, announce, error_line
from quorumlog.cli.run.choices import LogLevel
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.broker.config import MessageStoreConfig


def serve(
    directory: Annotated[
        Path,
        typer.Option(
            "--dir",
            help="Directory of the store, made if it is not there; with --role dledger, of the member.",
            metavar="DIR",
            parser=named_path,
        ),
    ],
    topics: Annotated[
        str,
        typer.Option(
            "--topics",
            help="Topics and their numbers of queues (4 where none is given): orders:8,audit; beside"
            " those that the store holds messages of. A slave gets them from its master; with --role"
            " dledger the master makes those that are not there.",
            metavar="LIST",
            show_default=False,
        ),
    ] = "",
    bind: Annotated[
        str, typer.Option("--bind", help="Listen here.", metavar="HOST:PORT")
    ] = DEFAULT_SERVER,
    members: Annotated[
        str | None,
        typer.Option(
            "--members",
            help="dledger: every member and where its log is reached: ID=HOST:PORT,... The same on all.",
            metavar="LIST",
        ),
    ] = None,
    brokers: Annotated[
        str | None,
        typer.Option(
            "--brokers",
            help="dledger: every member and where its broker is reached: ID=HOST:PORT,... The same on"
            " all; the own one takes the place of --bind.",
            metavar="LIST",
        ),
    ] = None,
    log_config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="dledger: options of the log from a TOML file.",
            metavar="FILE.toml",
            parser=named_path,
        ),
    ] = None,
    flush: Annotated[
        Flush,
        typer.Option(
            "--flush",
            help="sync (SYNC_FLUSH): answer after the disk has it. async: after the write.",
        ),
    ] = Flush.SYNC,
    role: Annotated[
        RoleChoice | None,
        typer.Option(
            "--role",
            help="What this broker is first, until a switch; without one it has no slaves. sync-master:"
            " waits for slaves. async-master: does not. dledger: a member of a replicated log, whose"
            " leader is the master.",
            show_default=False,
        ),
    ] = None,
    broker_id: Annotated[
        str,
        typer.Option(
            "--id",
            help="Name among master and slaves (default: --bind); with --role dledger of this member,"
            " ending with a number: n0.",
            metavar="ID",
            show_default=False,
        ),
    ] = "",
    master: Annotated[
        str,
        typer.Option(
            "--master", help="Of a slave: where its master lets slaves in.", metavar="HOST:PORT"
        ),
    ] = "",
    ha_port: Annotated[
        int, typer.Option("--ha-port", help="Slaves connect here.", min=1, max=65535, metavar="PORT")
    ] = 10912,
    ha_advertise: Annotated[
        str,
        typer.Option(
            "--ha-advertise",
            help="Where slaves reach --ha-port, if it is not at the host of --bind: behind a proxy.",
            metavar="HOST:PORT",
            show_default=False,
        ),
    ] = "",
    in_sync_replicas: Annotated[
        int,
        typer.Option(
            "--in-sync-replicas",
            help="So many have a message before it is acknowledged, the master included. (default: 2"
            " with sync-master, 1 with async-master)",
            min=0,
            max=100,
            show_default=False,
        ),
    ] = 0,
    ha_dialect: Annotated[
        Dialect,
        typer.Option(
            "--ha-dialect",
            help="rocketmq: as RocketMQ 5 speaks it, for a Java master or slave; without epochs.",
        ),
    ] = Dialect.QUORUMLOG,
    failover: Failover = None,
    coordinator: CoordinatorList = "",
    group: Group = "default",
    lease_ms: LeaseMs = 10_000,
    in_sync_timeout_ms: InSyncTimeoutMs = 3_000,
    failover_begin: FailoverBegin = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            help="One of the store's options, as in flush_interval_commit_log=200; may be repeated.",
            metavar="NAME=VALUE",
            show_default=False,
        ),
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="What goes to standard error.")
    ] = LogLevel.INFO,
) -> None:
    """Run a broker until SIGTERM, which flushes, writes the checkpoint and ends with status 0.

    Example: quorumlog broker serve --dir /var/lib/store --topics orders:8,audit --flush sync

    Example: quorumlog broker serve --dir /var/lib/b --role slave --id b --master 10.0.0.1:10912

    Example: quorumlog broker serve --dir /var/lib/b --topics orders --id b --failover etcd --coordinator
    10.0.0.7:2379,10.0.0.8:2379,10.0.0.9:2379

    The first of three members whose leader is the master:

    \b
        quorumlog broker serve --role dledger --id n0 --dir /var/lib/store --topics orders:8 \\
          --members n0=10.0.0.1:20911,n1=10.0.0.2:20911,n2=10.0.0.3:20911 \\
          --brokers n0=10.0.0.1:10911,n1=10.0.0.2:10911,n2=10.0.0.3:10911
    """
    if role is RoleChoice.DLEDGER:
        from quorumlog.cli.broker.serve_dledger import serve_dledger

        for name, is_given in (
            ("--master", bool(master)),
            ("--in-sync-replicas", bool(in_sync_replicas)),
            ("--failover", failover is not None),
        ):
            if is_given:
                raise ConfigError(f"{name} is not for --role dledger: the log elects and replicates")
        serve_dledger(
            directory,
            topics_of(topics),
            store_config(flush, option or []),
            flush.value,
            broker_id or None,
            members,
            brokers,
            None if log_config is None else str(log_config),
            log_level,
        )
        return
    for name, given_of_log in (
        ("--members", members),
        ("--brokers", brokers),
        ("--config", log_config),
    ):
        if given_of_log is not None:
            raise ConfigError(f"{name} is for --role dledger; other brokers have no members")
    from quorumlog.broker.broker_server import BrokerServer
    from quorumlog.broker.replication.replica import Replica
    from quorumlog.broker.replication.replica_store import ReplicaStore
    from quorumlog.broker.replication.roles import BrokerAddress
    from quorumlog.broker.replication.service.ha_service import HAService
    from quorumlog.broker.store.log_files import Role
    from quorumlog.broker.store.message_store import MessageStore
    from quorumlog.cli.run.serve import log_to_stderr, refuse_optimised_python
    from quorumlog.config import parse_address
    from quorumlog.version import DESCRIPTION

    refuse_optimised_python()
    log_to_stderr(log_level)
    host, _ = parse_address(bind)
    given = list(option or [])
    if in_sync_replicas:
        given.append(f"in_sync_replicas={in_sync_replicas}")
    config = store_config(flush, given)
    if failover is not None:
        if role is not None or master:
            raise ConfigError(
                "--failover says who is master and who is slave: leave --role and --master"
            )
        if ha_dialect is not Dialect.QUORUMLOG:
            raise ConfigError("--failover needs --ha-dialect quorumlog: the other one has no epochs")
        elect = failover_of(
            failover,
            coordinator,
            group,
            lease_ms=lease_ms,
            in_sync_timeout_ms=in_sync_timeout_ms,
            begins=failover_begin,
        )
    elif coordinator or failover_begin:
        raise ConfigError("--coordinator and --failover-begin need --failover etcd, kv or zookeeper")
    make_failover = None
    if role is None and failover is None:
        if master or broker_id or in_sync_replicas or ha_advertise or ha_dialect is Dialect.ROCKETMQ:
            raise ConfigError(
                "--master, --id, --in-sync-replicas, --ha-advertise and --ha-dialect need a --role or"
                " --failover"
            )
        store = MessageStore(str(directory), config, topics=topics_of_store(topics, directory))
        server = BrokerServer(store, bind)
    else:
        if role is RoleChoice.SLAVE and not master:
            raise ConfigError("--role slave needs --master HOST:PORT, where the master lets slaves in")
        if role is not RoleChoice.SLAVE and master:
            raise ConfigError("--master is for --role slave")
        if master:
            parse_address(master)
        if host in ("0.0.0.0", "::") and ha_dialect is Dialect.QUORUMLOG:
            raise ConfigError(
                f"--bind {bind}: master and slaves tell each other this address, and nobody reaches a"
                " broker by it: write the one by which the others reach this machine"
            )
        ha_bind = f"{host}:{ha_port}"
        if ha_advertise:
            parse_address(ha_advertise)
        address = BrokerAddress(broker_id or bind, bind, ha_advertise or ha_bind)
        first_role = Role.SLAVE if role is None else Role[role.name]
        known = topics_of(topics) if role is RoleChoice.SLAVE else topics_of_store(topics, directory)
        store = ReplicaStore(str(directory), config, topics=known)
        try:
            replica = Replica(
                store,
                address,
                first_role,
                master_ha_address=master,
                has_epochs=ha_dialect is Dialect.QUORUMLOG,
                is_elected=failover is not None,
            )
        except BaseException:
            store.close()  # so that the next start is one after a clean stop
            raise
        if failover is not None:
            make_failover = partial(elect, replica)
        ha_service = HAService(replica, ha_dialect.value, ha_bind)
        server = BrokerServer(store, bind, ha_service, make_failover)

    def ready() -> None:
        reach = "" if host in ("127.0.0.1", "::1", "localhost") else (
            " ANYBODY who reaches this address can read and write."
        )  # fmt: skip
        what = "" if server.ha_service is None else f" {store.commit_log.role.value},"
        announce(
            f"{DESCRIPTION}: broker listens on {bind},{what} {config.flush_disk_type}, store in"
            f" {directory}."
            f" It has no authentication yet.{reach}"
            f"{'' if failover is None else alone(config.in_sync_replicas)}"
        )

    from quorumlog.net.limits import raise_descriptor_limit

    raise_descriptor_limit()
    try:
        server.run(ready)
    finally:
        store.close()
    if server.failure is not None:
        error_line(f"stopped: {type(server.failure).__name__}: {server.failure}", EXIT_STORE)
        raise typer.Exit(EXIT_STORE)
    announce("stopped cleanly")


def store_config(flush: Flush, given: list[str]) -> MessageStoreConfig:
    """Raises ConfigError naming the option."""
    from dataclasses import fields

    from quorumlog.broker.config import ASYNC_FLUSH, SYNC_FLUSH, MessageStoreConfig

    defaults: dict[str, object] = {e.name: e.default for e in fields(MessageStoreConfig)}
    values: dict[str, object] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name not in defaults or name == "flush_disk_type":
            names = ", ".join(each for each in defaults if each != "flush_disk_type")
            raise ConfigError(f"--option {text!r}: write NAME=VALUE with one of {names}")
        kind = type(defaults[name])
        try:
            if kind is bool:
                values[name] = {"true": True, "false": False}[value]
            else:
                values[name] = int(value) if kind is int else value
        except (KeyError, ValueError):
            raise ConfigError(f"--option {name} cannot be {value!r}") from None
    return MessageStoreConfig(
        flush_disk_type=SYNC_FLUSH if flush is Flush.SYNC else ASYNC_FLUSH,
        **values,  # type: ignore[arg-type]
    )
