"""quorumlog kv: the commands of the store."""

from __future__ import annotations

import typer

from quorumlog.cli.kv.keys import delete, get, put, range_, txn
from quorumlog.cli.kv.kv_serve import serve
from quorumlog.cli.kv.leases import lease_app
from quorumlog.cli.kv.waiting import elect, lock, watch
from quorumlog.cli.kv.whole_store import compact, health, snapshot, status
from quorumlog.cli.output import CommandGroup

kv_app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True)


@kv_app.callback()
def kv() -> None:
    """A highly available key-value store on the log: keys with history, leases, watches, locks.

    Example: quorumlog kv put color blue --servers 127.0.0.1:20921
    """


kv_app.command()(serve)
kv_app.command()(put)
kv_app.command()(get)
kv_app.command()(delete)
kv_app.command("range")(range_)
kv_app.command()(watch)
kv_app.command()(txn)
kv_app.command()(lock)
kv_app.command()(elect)
kv_app.add_typer(lease_app, name="lease")
kv_app.command()(health)
kv_app.command()(status)
kv_app.command()(compact)
kv_app.command()(snapshot)
