"""quorumlog kv: the commands of the store."""

from __future__ import annotations

from quorumlog.cli.kv.keys import (
    compact,
    delete,
    get,
    health,
    lease_app,
    put,
    range_,
    snapshot,
    status,
    txn,
)
from quorumlog.cli.kv.serve import serve
from quorumlog.cli.kv.waiting import elect, lock, watch
from quorumlog.cli.options import App

kv_app = App(
    "A highly available key-value store on the log: keys with history, leases, watches, locks.",
    "quorumlog kv put color blue --servers 127.0.0.1:20921",
)


kv_app.command(has_json=False)(serve)
kv_app.commands(put, get, delete)
kv_app.command("range")(range_)
kv_app.commands(watch, txn, lock, elect)
kv_app.add_typer(lease_app, name="lease")
kv_app.command()(health)
kv_app.command(timeout_s=2.0)(status)
kv_app.commands(compact, snapshot)
