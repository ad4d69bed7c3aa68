"""The commands below `quorumlog broker`."""

from __future__ import annotations

from quorumlog.cli.broker.groups import consume, dlq_app, group_app, topic_app
from quorumlog.cli.broker.look import convert, dump, inspect, recover, takeover, verify
from quorumlog.cli.broker.replicas import add, copies, remove, resign, switch
from quorumlog.cli.broker.serve import dev, serve
from quorumlog.cli.broker.use import pull, query, send, status
from quorumlog.cli.options import App

broker_app = App(
    "Run and use a message store in RocketMQ's formats.",
    "quorumlog broker serve --dir store --topics orders",
)


broker_app.command(has_json=False)(serve)
broker_app.command()(dev)
broker_app.add_typer(topic_app, name="topic")
broker_app.commands(send, consume, pull, query)
broker_app.add_typer(group_app, name="group")
broker_app.add_typer(dlq_app, name="dlq")
broker_app.command()(status)
broker_app.command(timeout_help="Seconds for the new master to catch up.")(switch)
broker_app.command()(resign)
broker_app.commands(add, remove, copies, timeout_help="Seconds until the list must be on enough disks.")
broker_app.commands(inspect, verify, dump, recover, convert, takeover)
