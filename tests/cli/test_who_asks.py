"""Every command that asks servers says as whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from quorumlog.cli.main import app

SERVERS = {"--servers", "--to-servers", "--coordinator"}
OTHERS = {"quorumlog broker takeover"}
OF_COORDINATOR = {"--coordinator-user", "--coordinator-password-file"}
OF_CLIENTS = {"--user", "--password-file"}


def commands(command: Any, name: str) -> Iterator[tuple[str, set[str]]]:
    inner = getattr(command, "commands", {})
    for each, found in inner.items():
        yield from commands(found, f"{name} {each}")
    if not inner:
        yield name, {option for parameter in command.params for option in parameter.opts}


def test_every_command_that_asks_servers_names_a_user() -> None:
    found = dict(commands(typer.main.get_group(app), "quorumlog"))
    asking = OTHERS | {name for name, options in found.items() if options & SERVERS}
    assert len(asking) > 60, sorted(asking)
    for name in asking:
        wanted = OF_COORDINATOR if "--coordinator" in found[name] else OF_CLIENTS
        assert wanted <= found[name], name


def test_a_password_is_no_word_of_a_command() -> None:
    """Whoever lists processes sees the words of each."""

    def parameters(command: Any) -> Iterator[Any]:
        yield from command.params
        for inner in getattr(command, "commands", {}).values():
            yield from parameters(inner)

    named = [
        each
        for each in parameters(typer.main.get_group(app))
        if any("password" in option for option in each.opts)
    ]
    assert len(named) > 60
    assert {each.metavar for each in named} == {"FILE"}, [each.opts for each in named]
