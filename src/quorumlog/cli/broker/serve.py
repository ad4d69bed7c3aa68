"""quorumlog broker serve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.broker.broker_options import (
    DEFAULT_SERVER,
    BrokerRoleName,
    Flush,
    topics_of,
)
from quorumlog.cli.options import named_path
from quorumlog.cli.output import EXIT_STORE, error_line
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
            help="Topics and their numbers of queues (4 where none is given): orders:8,audit. With"
            " --role dledger the master makes those that are not there.",
            metavar="LIST",
        ),
    ],
    bind: Annotated[
        str, typer.Option("--bind", help="Listen here.", metavar="HOST:PORT")
    ] = DEFAULT_SERVER,
    role: Annotated[
        BrokerRoleName,
        typer.Option(
            "--role",
            help="classic: a store of its own. dledger: a member of a replicated log, whose leader is"
            " the master.",
        ),
    ] = BrokerRoleName.CLASSIC,
    member_id: Annotated[
        str | None,
        typer.Option("--id", help="dledger: id of this member, ending with a number: n0.", metavar="ID"),
    ] = None,
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

    The first of three members whose leader is the master:

    \b
        quorumlog broker serve --role dledger --id n0 --dir /var/lib/store --topics orders:8 \\
          --members n0=10.0.0.1:20911,n1=10.0.0.2:20911,n2=10.0.0.3:20911 \\
          --brokers n0=10.0.0.1:10911,n1=10.0.0.2:10911,n2=10.0.0.3:10911
    """
    if role is BrokerRoleName.DLEDGER:
        from quorumlog.cli.broker.serve_dledger import serve_dledger

        config_of_store = store_config(flush, option or [])
        serve_dledger(
            directory,
            topics_of(topics),
            config_of_store,
            flush.value,
            member_id,
            members,
            brokers,
            None if log_config is None else str(log_config),
            log_level,
        )
        return
    for name, given in (
        ("--id", member_id),
        ("--members", members),
        ("--brokers", brokers),
        ("--config", log_config),
    ):
        if given is not None:
            raise ConfigError(f"{name} is for --role dledger; a classic broker has no members")
    from quorumlog.broker.message_store import MessageStore
    from quorumlog.broker.serving.broker_server import BrokerServer
    from quorumlog.cli.run.serve import log_to_stderr, refuse_optimised_python
    from quorumlog.config import parse_address
    from quorumlog.version import DESCRIPTION

    refuse_optimised_python()
    log_to_stderr(log_level)
    host, _ = parse_address(bind)
    config = store_config(flush, option or [])
    store = MessageStore(str(directory), config, topics=topics_of(topics))
    server = BrokerServer(store, bind)

    def ready() -> None:
        reach = "" if host in ("127.0.0.1", "::1", "localhost") else (
            " ANYBODY who reaches this address can read and write."
        )  # fmt: skip
        print(
            f"{DESCRIPTION}: broker listens on {bind}, {config.flush_disk_type}, store in {directory}."
            f" It has no authentication yet.{reach}",
            flush=True,
        )

    try:
        server.run(ready)
    finally:
        store.close()
    if server.failure is not None:
        error_line(f"stopped: {type(server.failure).__name__}: {server.failure}")
        raise typer.Exit(EXIT_STORE)
    print("stopped cleanly", flush=True)


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
