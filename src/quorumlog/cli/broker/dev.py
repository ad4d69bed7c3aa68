"""quorumlog broker dev: three brokers in one terminal."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from quorumlog.cli.options import Json
from quorumlog.cli.output import note, print_json, say
from quorumlog.cli.run.choices import LogLevel


def dev(
    members: Annotated[int, typer.Option(help="How many brokers.", min=1, max=9)] = 3,
    queues: Annotated[
        int,
        typer.Option("--queues", help="Of a topic that is made because somebody asks for it.", min=1),
    ] = 4,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="What goes to standard error.")
    ] = LogLevel.ERROR,
    json: Json = False,
) -> None:
    """Run brokers on a replicated log until Ctrl-C, for trying things out. Their data goes with them.

    Topics are made when somebody asks for them, which happens nowhere else.

    Example: quorumlog broker dev --members 3
    """
    from quorumlog.broker.dledger.dledger_door import LocalBrokers
    from quorumlog.broker.groups.group_service import GroupOptions, GroupService
    from quorumlog.cli.run.serve import log_to_stderr, refuse_optimised_python

    refuse_optimised_python()
    log_to_stderr(log_level)
    stop = threading.Event()
    options = GroupOptions(auto_create_queues=queues)
    with LocalBrokers(members, groups=lambda member_id: GroupService(options)) as brokers:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        if json:
            print_json({"servers": brokers.servers})
        else:
            say(f"{members} brokers run, {brokers.cluster.leader()} leads\n\nIn another terminal:\n")
            for command in (
                f'send --topic orders --server {brokers.servers} "one crate of tea"',
                f"consume --topic orders --group billing --server {brokers.servers}",
                f"group show billing --server {brokers.servers}",
            ):
                say(f"  quorumlog broker {command}")
            say("\nCtrl-C stops them.")
        stop.wait()
        note("stopping")
