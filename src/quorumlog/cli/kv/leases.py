"""quorumlog kv lease grant, keep-alive, show, revoke, list."""

from __future__ import annotations

from typing import Annotated

import typer

from quorumlog.cli.kv.kv_options import TIMEOUT_S, Servers, connected
from quorumlog.cli.kv.rows import text_of
from quorumlog.cli.options import Json, Timeout
from quorumlog.cli.output import CommandGroup, print_json, say

lease_app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True)
LeaseId = Annotated[int, typer.Argument(help="Id of a lease.", metavar="ID", min=1)]


@lease_app.callback()
def lease() -> None:
    """Grant, keep, show and end leases: keys that are put with one end with it.

    Example: quorumlog kv lease grant 30 --servers 127.0.0.1:20921
    """


@lease_app.command()
def grant(
    ttl: Annotated[float, typer.Argument(help="Seconds.", metavar="SECONDS", min=0.001)],
    servers: Servers,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Prints its id. A time below three election time-outs is raised.

    Example: quorumlog kv lease grant 30 --servers 127.0.0.1:20921
    """
    with connected(servers, timeout) as kv:
        granted = kv.grant(ttl, keeps_alive=False)
    print_json({"lease": granted.id, "ttl_ms": granted.ttl_ms}) if json else say(str(granted.id))


@lease_app.command("keep-alive")
def keep_alive(
    lease_id: LeaseId, servers: Servers, timeout: Timeout = TIMEOUT_S, json: Json = False
) -> None:
    """Once: it lasts for its whole time again.

    Example: quorumlog kv lease keep-alive 17 --servers 127.0.0.1:20921
    """
    with connected(servers, timeout) as kv:
        ttl_ms = kv.keep_alive(lease_id)
    print_json({"lease": lease_id, "ttl_ms": ttl_ms}) if json else say(f"{ttl_ms} ms")


@lease_app.command()
def show(lease_id: LeaseId, servers: Servers, timeout: Timeout = TIMEOUT_S, json: Json = False) -> None:
    """What is left of it, and its keys.

    Example: quorumlog kv lease show 17 --servers 127.0.0.1:20921
    """
    with connected(servers, timeout) as kv:
        ttl_ms, left_ms, keys = kv.time_to_live(lease_id)
    if json:
        rows = [text_of("key", key) for key in keys]
        print_json({"lease": lease_id, "ttl_ms": ttl_ms, "left_ms": left_ms, "keys": rows})
        return
    say(f"{left_ms} of {ttl_ms} ms are left")
    for key in keys:
        say(key.decode(errors="backslashreplace"))


@lease_app.command()
def revoke(
    lease_id: LeaseId, servers: Servers, timeout: Timeout = TIMEOUT_S, json: Json = False
) -> None:
    """End it, with its keys; prints how many there were.

    Example: quorumlog kv lease revoke 17 --servers 127.0.0.1:20921
    """
    with connected(servers, timeout) as kv:
        deleted = kv.revoke(lease_id)
    print_json({"lease": lease_id, "deleted": deleted}) if json else say(str(deleted))


@lease_app.command("list")
def list_leases(servers: Servers, timeout: Timeout = TIMEOUT_S, json: Json = False) -> None:
    """All that stand: id and time.

    Example: quorumlog kv lease list --servers 127.0.0.1:20921
    """
    with connected(servers, timeout) as kv:
        found = kv.leases()
    for number, ttl_ms, _ in found:
        print_json({"lease": number, "ttl_ms": ttl_ms}) if json else say(f"{number}\t{ttl_ms} ms")
