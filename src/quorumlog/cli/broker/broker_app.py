"""The commands below `quorumlog broker`."""

from __future__ import annotations

import typer

from quorumlog.cli.broker.consuming.consume import consume
from quorumlog.cli.broker.consuming.dead_letters import dlq_app
from quorumlog.cli.broker.consuming.groups import group_app
from quorumlog.cli.broker.consuming.topics import topic_app
from quorumlog.cli.broker.dev import dev
from quorumlog.cli.broker.failover import resign
from quorumlog.cli.broker.look import convert, dump, inspect, recover, verify
from quorumlog.cli.broker.replicas import add, copies, remove, switch
from quorumlog.cli.broker.serve import serve
from quorumlog.cli.broker.takeover import takeover
from quorumlog.cli.broker.use import pull, query, send, status
from quorumlog.cli.output import CommandGroup

broker_app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True)


@broker_app.callback()
def broker() -> None:
    """Run and use a message store in RocketMQ's formats.

    Example: quorumlog broker serve --dir store --topics orders
    """


broker_app.command()(serve)
broker_app.command()(dev)
broker_app.add_typer(topic_app, name="topic")
broker_app.command()(send)
broker_app.command()(consume)
broker_app.command()(pull)
broker_app.command()(query)
broker_app.add_typer(group_app, name="group")
broker_app.add_typer(dlq_app, name="dlq")
broker_app.command()(status)
broker_app.command()(switch)
broker_app.command()(resign)
broker_app.command()(add)
broker_app.command()(remove)
broker_app.command()(copies)
broker_app.command()(inspect)
broker_app.command()(verify)
broker_app.command()(dump)
broker_app.command()(recover)
broker_app.command()(convert)
broker_app.command()(takeover)
