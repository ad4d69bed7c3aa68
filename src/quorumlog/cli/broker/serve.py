"""quorumlog broker serve and dev."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from quorumlog.cli.interrupts import hung_up_before
from quorumlog.cli.options import (
    DEFAULT_BROKER,
    AdminAddress,
    FlushMode,
    Format,
    Level,
    Shared,
    TlsGiven,
    option,
    user_of,
)
from quorumlog.cli.output import announce, note, say, say_ready, tell
from quorumlog.coordinators import CoordinatorKind
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.broker.config import MessageStoreConfig
    from quorumlog.broker.failover import FailoverService
    from quorumlog.broker.replication.replica import BrokerReplica
    from quorumlog.config import LimitOptions
    from quorumlog.net.credentials import ClientUser
    from quorumlog.net.tls import ClientTls


def topics_of(text: str) -> dict[str, int]:
    """`orders:8,audit` as numbers of queues by topic, 4 where none is given; empty: no topics. Raises
    ConfigError."""
    from quorumlog.broker.group_commands import check_new_topic_name
    from quorumlog.errors import BadRequest

    topics: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, count = part.partition(":")
        try:
            check_new_topic_name(name)
        except BadRequest as error:
            raise ConfigError(f"--topics: {error}") from None
        if count and not (count.isascii() and count.isdigit() and 1 <= int(count) <= 10_000):
            raise ConfigError(f"--topics: {part!r} must be like orders:8, with 1 to 10000 queues")
        topics[name] = int(count) if count else 4
    if text and not topics:
        raise ConfigError("--topics names none; write --topics orders:8,audit")
    return topics


def topics_of_store(text: str, directory: Path) -> dict[str, int]:
    """The same, for a store that keeps the topics it holds messages of. Raises ConfigError where it
    would have none at all."""
    topics = topics_of(text)
    if not topics and not (directory / "commitlog").exists():
        raise ConfigError("--topics is missing, and the store is new; write --topics orders:8,audit")
    return topics


@dataclass(frozen=True)
class Failover(Shared):
    """A coordinator that elects the master."""

    failover: Annotated[
        CoordinatorKind | None,
        option(
            "Coordinator that elects the master: etcd, ZooKeeper, or our own key-value store. Instead of"
            " --role."
        ),
    ] = None
    coordinator: Annotated[str, option("Client addresses of the coordinator: HOST:PORT,...", "LIST")] = (
        ""
    )
    group: Annotated[
        str, option("Name shared by the brokers that fail over for each other.", "NAME")
    ] = "default"
    lease_ms: Annotated[
        int, option("How long a master may lead without reaching the coordinator.", "MS")
    ] = 10_000
    in_sync_timeout_ms: Annotated[
        int, option("A slave that has lagged for this long leaves the in-sync set.", "MS")
    ] = 3_000
    failover_begin: Annotated[
        bool,
        option(
            "Lead although the store has messages and the coordinator has no record. Use it once, for"
            " the store with the most messages."
        ),
    ] = False
    coordinator_ca: Annotated[
        Path | None, option("Use TLS with --failover kv; trust the CAs in this file.", "FILE")
    ] = None
    coordinator_cert: Annotated[
        Path | None, option("Client certificate, if that store requires one.", "FILE")
    ] = None
    coordinator_key: Annotated[Path | None, option("Its key.", "FILE")] = None
    coordinator_user: Annotated[
        str | None, option("With --failover kv: user of this broker, if that store has users.", "NAME")
    ] = None
    coordinator_password_file: Annotated[
        Path | None,
        option("Its first line is the password of --coordinator-user; else QUORUMLOG_PASSWORD.", "FILE"),
    ] = None

    def service(self) -> Callable[[BrokerReplica], FailoverService] | None:
        """Checks all options now: a store opened with wrong ones is bound to its id already. The result
        is called on the event loop. Raises ConfigError."""
        from quorumlog.broker.failover import FailoverOptions, FailoverService
        from quorumlog.coordinators import coordinator_of

        files = (self.coordinator_ca, self.coordinator_cert, self.coordinator_key)
        whose = (self.coordinator_user, self.coordinator_password_file)
        if self.failover is None:
            if any((self.coordinator, self.failover_begin, *whose, *files)):
                raise ConfigError(
                    "--coordinator, --coordinator-ca, --coordinator-user and --failover-begin need"
                    " --failover etcd, kv or zookeeper"
                )
            return None
        tls, user = _coordinator_tls(*files), _coordinator_user(*whose)
        if not self.coordinator:
            raise ConfigError("--failover needs --coordinator HOST:PORT,HOST:PORT,...")
        if not self.group or not all(c.isalnum() or c in "-_." for c in self.group):
            raise ConfigError(f"--group {self.group!r}: write letters, digits, - _ and .")
        options = FailoverOptions(lease_ms=self.lease_ms, in_sync_timeout_ms=self.in_sync_timeout_ms)
        coordinator = coordinator_of(self.failover, self.coordinator, self.group, tls, user)
        begins = self.failover_begin
        return lambda replica: FailoverService(replica, coordinator, options, begins=begins)


def _coordinator_tls(*files: Path | None) -> ClientTls | None:
    """Raises ConfigError."""
    from quorumlog.net.tls import ClientTls

    if not any(files):
        return None
    try:
        return ClientTls(*(str(each or "") for each in files))
    except ConfigError as error:
        raise ConfigError(str(error).replace("-tls-", "-coordinator-")) from None


def _coordinator_user(name: str | None, password_file: Path | None) -> ClientUser | None:
    """Raises ConfigError."""
    try:
        return user_of(name, password_file)
    except ConfigError as error:
        raise ConfigError(str(error).replace("(-", "(--coordinator")) from None


def alone(in_sync_replicas: int) -> str:
    """The warning of `serve` about a group of two, which does not survive a failure; 0: the default."""
    if in_sync_replicas == 1:
        return ""
    return (
        f" It takes messages while {in_sync_replicas or 2} brokers are in sync: with two brokers,"
        " neither takes messages without the other unless both have --in-sync-replicas 1."
    )


MESSAGES_FOLDER = "messages"
"""Of a member's directory: queues and index."""


def serve_dledger(
    directory: Path,
    topics: Mapping[str, int],
    config: MessageStoreConfig,
    brokers: str | None,
    path: str | None,
    command_line: Mapping[str, Any],
) -> None:
    """Until SIGTERM, which hands leadership over first. Raises ConfigError."""
    from quorumlog.admin.broker import look_at_member
    from quorumlog.broker.dledger.dledger_broker import DLedgerBroker, DLedgerEndpoint
    from quorumlog.broker.groups.group_service import GroupOptions, GroupService
    from quorumlog.broker.offline.old_log import OldLog, taken_over
    from quorumlog.cli.run.serve import log_as, refuse_optimised_python, run_member, tls_of
    from quorumlog.cli.run.serving_member import ServingMember
    from quorumlog.cli.run.toml_config import load_server_config
    from quorumlog.config import parse_members, within
    from quorumlog.store.disk import OsDisk

    refuse_optimised_python()
    server_config = load_server_config(path, command_line)
    if len(server_config.groups) > 1:
        raise ConfigError("--config: a broker has one group; serve the others with `quorumlog serve`")
    group = server_config.groups[0]
    if brokers is None:
        raise ConfigError("--brokers is missing; write --brokers n0=HOST:PORT,n1=HOST:PORT,...")
    with within("--brokers"):
        addresses = {each.member_id: f"{each.host}:{each.port}" for each in parse_members(brokers)}
    lacking = [m.member_id for m in group.members if m.member_id not in addresses]
    if lacking:
        raise ConfigError(
            f"--brokers names no address for {', '.join(lacking)}: every member has a broker"
        )
    log_as(server_config)
    old = taken_over(OsDisk(), str(directory))
    if old is not None and group.storage.segment_bytes != old.file_bytes:
        raise ConfigError(
            f"segment_bytes is {group.storage.segment_bytes}, and the old commit log in {directory} has"
            f" files of {old.file_bytes} bytes: set segment_bytes = {old.file_bytes} in --config"
        )
    if old is not None and group.storage.retention != "off":
        raise ConfigError(
            "retention must be off while there is an old commit log, or messages between the two would"
            ' be missing: set retention = "off" in --config'
        )
    groups = GroupService(GroupOptions(first_topics=topics), None if old is None else old.state)
    broker = DLedgerBroker(
        OsDisk(),
        str(directory / MESSAGES_FOLDER),
        config,
        member_id=group.member_id,
        brokers=addresses,
        groups=groups,
        old_log=None if old is None else OldLog(OsDisk(), str(directory), old),
    )
    tls = tls_of(server_config.tls)
    endpoint = DLedgerEndpoint(broker, addresses[group.member_id], tls=tls)
    server = ServingMember(server_config, path, command_line, endpoints=[endpoint], tls=tls)
    run_member(server, [partial(look_at_member, broker, group.group)])


def serve(
    directory: Annotated[
        Path,
        option(
            "Directory of the store (created if missing); with --role dledger, of the member.",
            "DIR",
            name="--dir",
        ),
    ],
    topics: Annotated[
        str,
        option(
            "Topics and their numbers of queues (default 4): orders:8,audit; added to the topics"
            " in the store. A slave gets them from its master; with --role dledger the master"
            " creates missing ones.",
            "LIST",
        ),
    ] = "",
    bind: Annotated[str, option("Listen here.", "HOST:PORT")] = DEFAULT_BROKER,
    members: Annotated[
        str | None,
        option(
            "dledger: every member and the address of its log: ID=HOST:PORT,... The same on all"
            " members.",
            "LIST",
        ),
    ] = None,
    brokers: Annotated[
        str | None,
        option(
            "dledger: every member and the address of its broker: ID=HOST:PORT,... The same on"
            " all; replaces --bind.",
            "LIST",
        ),
    ] = None,
    log_config: Annotated[
        Path | None,
        option(
            "TOML file: with dledger options of the log; else the tables [users] and [limits].",
            "FILE.toml",
            name="--config",
        ),
    ] = None,
    flush: Annotated[
        FlushMode,
        option("sync (SYNC_FLUSH): acknowledge once it is on disk. async: once it is written."),
    ] = "sync",
    role: Annotated[
        Literal["sync-master", "async-master", "slave", "dledger"] | None,
        option(
            "Role at the first start, until a switch; without one the broker has no slaves. sync-master:"
            " waits for slaves. async-master: does not. dledger: a member of a replicated log, whose"
            " leader is the master."
        ),
    ] = None,
    broker_id: Annotated[
        str,
        option(
            "Id of the broker among master and slaves (default: --bind); with --role dledger id of the"
            " member, ending with a number: n0.",
            "ID",
            name="--id",
        ),
    ] = "",
    master: Annotated[str, option("Slave: HOST:PORT of its master's --ha-port.", "HOST:PORT")] = "",
    ha_port: Annotated[int, option("Slaves connect here.", "PORT", min=1, max=65535)] = 10912,
    ha_advertise: Annotated[
        str,
        option(
            "Address at which slaves reach --ha-port, if the host is not that of --bind (behind a"
            " proxy).",
            "HOST:PORT",
        ),
    ] = "",
    in_sync_replicas: Annotated[
        int,
        option(
            "Copies of a message before it is acknowledged, the master's included. (default: 2 with"
            " sync-master, 1 with async-master)",
            min=0,
            max=100,
            show_default=False,
        ),
    ] = 0,
    ha_dialect: Annotated[
        Literal["quorumlog", "rocketmq"],
        option("rocketmq: RocketMQ 5's protocol, for a Java master or slave; no epochs."),
    ] = "quorumlog",
    *,
    failover: Failover,
    settings: Annotated[
        list[str] | None,
        option(
            "One of the store's options, as in flush_interval_commit_log=200; may be repeated.",
            "NAME=VALUE",
            name="--option",
        ),
    ] = None,
    admin: AdminAddress = None,
    tls_files: TlsGiven,
    tls_listen: Annotated[
        str | None,
        option(
            "Use TLS at this address, while the first port stays plain (docs/security.md).", "HOST:PORT"
        ),
    ] = None,
    insecure: Annotated[
        bool,
        option(
            "Allow RocketMQ's protocol, which has no TLS, with other machines although TLS is"
            " configured."
        ),
    ] = False,
    log_level: Level = "info",
    log_format: Format = None,
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
    path = None if log_config is None else str(log_config)
    tls_table = {**tls_files.table, "broker_listen": tls_listen}
    if role == "dledger":
        for name, is_given in (
            ("--master", master),
            ("--in-sync-replicas", in_sync_replicas),
            ("--failover", failover.failover),
        ):
            if is_given:
                raise ConfigError(f"{name} is not for --role dledger: the log elects and replicates")
        command_line = {
            "member_id": broker_id or None,
            "members": members,
            "data_dir": str(directory),
            "flush": flush if path is None else None,
            "log_level": log_level,
            "tls": tls_table,
            "admin": admin,
            "log_format": log_format,
        }
        config = store_config(flush, settings or [])
        serve_dledger(directory, topics_of(topics), config, brokers, path, command_line)
        return
    for name, given_of_log in (("--members", members), ("--brokers", brokers)):
        if given_of_log is not None:
            raise ConfigError(f"{name} is for --role dledger; other brokers have no members")
    from quorumlog.admin.broker import BrokerProcess
    from quorumlog.broker.broker_server import BrokerServer
    from quorumlog.broker.epochs import Peer
    from quorumlog.broker.replication.ha_service import HAService
    from quorumlog.broker.replication.replica import BrokerReplica
    from quorumlog.broker.replication.replica_store import ReplicaStore
    from quorumlog.broker.store.log_files import BrokerRole
    from quorumlog.broker.store.message_store import MessageStore
    from quorumlog.cli.run.log_lines import log_to_stderr
    from quorumlog.cli.run.serve import answering, end_with, refuse_optimised_python, tls_of
    from quorumlog.cli.run.toml_config import load_broker_config, tls_options
    from quorumlog.config import AdminOptions, parse_address
    from quorumlog.net.limits import raise_descriptor_limit
    from quorumlog.stray_log import is_loopback
    from quorumlog.version import DESCRIPTION

    refuse_optimised_python()
    log_to_stderr(log_level, log_format or "text")
    host, _ = parse_address(bind)
    tls = tls_of(tls_options({}, tls_table))
    has_epochs, is_elected = ha_dialect == "quorumlog", failover.failover is not None
    if tls is not None and (role is not None or is_elected):
        if has_epochs:
            tls.check_member(broker_id or bind)
        elif not (insecure or is_loopback(host)):
            raise ConfigError(
                "--ha-dialect rocketmq has no TLS: bind to the loopback interface, or give --insecure"
            )
    more = [f"in_sync_replicas={in_sync_replicas}"] if in_sync_replicas else []
    config = store_config(flush, [*(settings or ()), *more])
    users, _ = load_broker_config(path)

    def limits() -> LimitOptions:
        return load_broker_config(path)[1]

    reread = limits if path else None
    if is_elected and (role is not None or master):
        raise ConfigError("--failover decides the roles: remove --role and --master")
    if is_elected and not has_epochs:
        raise ConfigError("--failover needs --ha-dialect quorumlog: RocketMQ's protocol has no epochs")
    elect = failover.service()
    if role is None and not is_elected:
        if master or broker_id or in_sync_replicas or ha_advertise or not has_epochs:
            raise ConfigError(
                "--master, --id, --in-sync-replicas, --ha-advertise and --ha-dialect need a --role or"
                " --failover"
            )
        store = MessageStore(str(directory), config, topics=topics_of_store(topics, directory))
        server = BrokerServer(store, bind, tls=tls, users=users, limits=reread)
    else:
        is_slave = role == "slave"
        if is_slave and not master:
            raise ConfigError("--role slave needs --master HOST:PORT, the HA address of the master")
        if master and not is_slave:
            raise ConfigError("--master is for --role slave")
        for address in filter(None, (master, ha_advertise)):
            parse_address(address)
        if host in ("0.0.0.0", "::") and has_epochs:
            raise ConfigError(
                f"--bind {bind}: master and slaves give each other this address, and it is not"
                " reachable: write the address at which the others reach this machine"
            )
        ha_bind = f"{host}:{ha_port}"
        me = Peer(id=broker_id or bind, address=bind, ha_address=ha_advertise or ha_bind)
        first_role = BrokerRole[(role or "slave").replace("-", "_").upper()]
        known = topics_of(topics) if is_slave else topics_of_store(topics, directory)
        store = ReplicaStore(str(directory), config, topics=known)
        try:
            replica = BrokerReplica(
                *(store, me, first_role),
                master_ha_address=master,
                has_epochs=has_epochs,
                is_elected=is_elected,
            )
        except BaseException:
            store.close()  # so that the next start is one after a clean stop
            raise
        make_failover = None if elect is None else partial(elect, replica)
        ha_service = HAService(replica, ha_dialect, ha_bind, tls)
        server = BrokerServer(store, bind, ha_service, make_failover, tls, users, reread)

    def ready() -> None:
        what = "" if server.ha_service is None else f" {store.commit_log.role.value},"
        announce(
            f"{DESCRIPTION}: broker listens on {bind}{server.port.listener.speaks},{what}"
            f" {config.flush_disk_type}, store in {directory}."
            f"{alone(config.in_sync_replicas) if is_elected else ''}"
        )
        say_ready()
        if hung_up_before():
            server.hung_up()

    raise_descriptor_limit()
    try:
        with answering(None if admin is None else AdminOptions(admin), BrokerProcess(server), tls):
            server.run(ready)
    finally:
        store.close()
    end_with(server.failure)


def store_config(flush: FlushMode, settings: list[str]) -> MessageStoreConfig:
    """Raises ConfigError naming the option."""
    from dataclasses import fields

    from quorumlog.broker.config import ASYNC_FLUSH, SYNC_FLUSH, MessageStoreConfig

    defaults: dict[str, object] = {e.name: e.default for e in fields(MessageStoreConfig)}
    values: dict[str, object] = {}
    for text in settings:
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
        flush_disk_type=SYNC_FLUSH if flush == "sync" else ASYNC_FLUSH,
        **values,  # type: ignore[arg-type]
    )


def dev(
    members: Annotated[int, option("Number of brokers.", min=1, max=9)] = 3,
    queues: Annotated[int, option("Queues of a topic created on first use.", min=1)] = 4,
    log_level: Level = "error",
) -> None:
    """Run brokers on a replicated log until Ctrl-C, for trials only. Their data is deleted.

    Unlike elsewhere, topics are created on first use.

    Example: quorumlog broker dev --members 3
    """
    from quorumlog.broker.dledger.dledger_broker import LocalBrokers
    from quorumlog.broker.groups.group_service import GroupOptions, GroupService
    from quorumlog.cli.run.log_lines import log_to_stderr
    from quorumlog.cli.run.serve import refuse_optimised_python

    refuse_optimised_python()
    log_to_stderr(log_level)
    stop = threading.Event()
    options = GroupOptions(auto_create_queues=queues)
    with LocalBrokers(members, groups=lambda member_id: GroupService(options)) as brokers:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())

        def show() -> None:
            say(f"{members} brokers run, {brokers.cluster.leader()} leads\n\nIn another terminal:\n")
            for command in (
                f'send --topic orders --servers {brokers.servers} "one crate of tea"',
                f"consume --topic orders --group billing --servers {brokers.servers}",
                f"group show billing --servers {brokers.servers}",
            ):
                say(f"  quorumlog broker {command}")
            say("\nCtrl-C stops them.")

        tell({"servers": brokers.servers}, show)
        stop.wait()
        note("stopping")
