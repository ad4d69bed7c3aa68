"""quorumlog serve: one member of one or more groups, until SIGTERM."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from quorumlog.cli.options import (
    AdminAddress,
    DataDir,
    FlushMode,
    Format,
    LogLevel,
    MemberId,
    Members,
    TlsGiven,
    option,
)
from quorumlog.cli.output import EXIT_STORE, announce, error_line
from quorumlog.cli.run.log_lines import log_to_stderr
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.admin import Process
    from quorumlog.admin.looks import TakeLook
    from quorumlog.cli.run.serving_member import ServingMember
    from quorumlog.cli.run.toml_config import ServerConfig
    from quorumlog.config import AdminOptions, TlsOptions
    from quorumlog.net.tls import Tls

log = logging.getLogger("quorumlog.server")


def serve(
    member_id: MemberId = None,
    members: Members = None,
    data_dir: DataDir = None,
    group: Annotated[
        str | None, option("Name of the replicated log. (default: default)", "NAME")
    ] = None,
    flush: Annotated[
        FlushMode | None,
        option("sync: acknowledge once an entry is on disk; async: once it is written. (default: sync)"),
    ] = None,
    store: Annotated[
        Literal["file", "memory"] | None,
        option("memory: all data is lost with the process. (default: file)"),
    ] = None,
    preferred_leader: Annotated[
        list[str] | None, option("Preferred leader, by member id; may be repeated.", "ID")
    ] = None,
    bind: Annotated[
        str | None, option("Listen here instead of at the member's own address.", "HOST:PORT")
    ] = None,
    config: Annotated[
        Path | None, option("Options and several groups from a TOML file.", "FILE.toml")
    ] = None,
    state_machine: Annotated[
        list[str] | None,
        option(
            "Run this state machine, the same on all members; may be repeated.", "[NAME=]MODULE:FACTORY"
        ),
    ] = None,
    hold_machine: Annotated[
        list[str] | None,
        option("Do not run this state machine (a command crashes it); may be repeated.", "NAME"),
    ] = None,
    kafka: Annotated[
        str | None,
        option("Port for clients of Kafka, on this group's log (extra `kafka`).", "HOST:PORT"),
    ] = None,
    kafka_servers: Annotated[
        str | None,
        option(
            "Where clients reach the --kafka port of each member. (default: the same port on the host of"
            " each)",
            "ID=HOST:PORT,...",
        ),
    ] = None,
    admin: AdminAddress = None,
    *,
    tls: TlsGiven,
    log_level: Annotated[
        LogLevel | None, option("Level of the log on standard error. (default: info)")
    ] = None,
    log_format: Format = None,
) -> None:
    """Run one member until SIGTERM, which hands leadership over, flushes and ends with status 0.

    SIGHUP reads the file of --config again and applies options that can change at run time.

    Example, the first of three:

    \b
        quorumlog serve --id n0 --data-dir /var/lib/quorumlog \\
          --members n0=10.0.0.1:20911,n1=10.0.0.2:20911,n2=10.0.0.3:20911
    """
    from quorumlog.cli.run.serving_member import ServingMember, named_machines
    from quorumlog.cli.run.toml_config import load_server_config

    refuse_optimised_python()
    command_line = {
        "member_id": member_id,
        "members": members,
        "data_dir": None if data_dir is None else str(data_dir),
        "group": group,
        "flush": flush,
        "store": store,
        "preferred_leader_ids": tuple(preferred_leader) if preferred_leader else None,
        "bind": bind,
        "log_level": log_level,
        "state_machines": named_machines(state_machine) if state_machine else None,
        "hold_machines": tuple(hold_machine) if hold_machine else None,
        "tls": tls.table,
        "admin": admin,
        "kafka_listen": kafka,
        "kafka_servers": kafka_servers,
        "log_format": log_format,
    }
    path = None if config is None else str(config)
    server_config = load_server_config(path, command_line)
    log_as(server_config)
    run_member(ServingMember(server_config, path, command_line, tls=tls_of(server_config.tls)))


def tls_of(options: TlsOptions | None) -> Tls | None:
    """Raises ConfigError."""
    from quorumlog.net.tls import Tls

    return None if options is None else Tls(options)


@contextmanager
def answering(options: AdminOptions | None, process: Process, tls: Tls | None) -> Iterator[None]:
    """With its admin port, meanwhile. Raises ConfigError."""
    if options is None:
        yield
        return
    from quorumlog.admin import AdminPort

    with AdminPort(options.listen, process, tls=tls, insecure=options.insecure) as port:
        log.info("health, metrics and a page are at %s", port.url, extra={"event": "listens"})
        yield


def run_member(server: ServingMember, beside: Sequence[TakeLook] = ()) -> None:
    """Until it ends; its status is that of the command. `beside`: services that the page shows besides
    the log."""
    from quorumlog.admin.process import LogProcess
    from quorumlog.net.limits import raise_descriptor_limit

    raise_descriptor_limit()
    if server.kafka is not None:
        from quorumlog.admin.kafka import look_at_kafka

        beside = [*beside, partial(look_at_kafka, server.kafka)]
    with answering(server.admin, LogProcess(server, beside), server.tls):
        status = server.run()
    if isinstance(server.failure, ConfigError):
        raise server.failure
    end_with(server.failure)
    raise typer.Exit(status)


def end_with(failure: BaseException | None) -> None:
    """Of a server that has ended."""
    if failure is not None:
        error_line(f"stopped: {type(failure).__name__}: {failure}", EXIT_STORE)
        raise typer.Exit(EXIT_STORE)
    announce("stopped cleanly")


def log_as(config: ServerConfig) -> None:
    log_to_stderr(config.log_level or "info", config.log_format or "text")


def refuse_optimised_python() -> None:
    """Assertions are part of the safety argument: a broken invariant must stop the member."""
    if not __debug__:
        raise ConfigError(
            "quorumlog refuses to serve under python -O, which removes its assertions:"
            " start python without -O and unset PYTHONOPTIMIZE"
        )
