"""Every `--option` in an error sentence is one of the command that says it, or of the command that the
sentence names before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer.main

from quorumlog.cli.main import app

GROUP: Any = typer.main.get_group(app)
_WORDS = re.compile(r"quorumlog((?: [a-z-]+)+)|(?<![\w-])(--[a-z][a-z-]*)")


def _command_of(words: Sequence[str]) -> Any:
    command = GROUP
    for word in words:
        if not hasattr(command, "commands") or word not in command.commands:
            break
        command = command.get_command(None, word)
    return command


def _options_of(command: Any) -> set[str]:
    found = {"--help", "--version", "--install-completion", "--show-completion"}
    for parameter in command.params:
        found.update((*parameter.opts, *parameter.secondary_opts))
    return found


def options_that_do_not_exist(arguments: Sequence[str], said: str) -> list[str]:
    """In the errors among what `quorumlog ARGUMENTS` said."""
    sentences = [line for line in said.splitlines() if line.startswith(("quorumlog: ", '{"error"'))]
    return [option for sentence in sentences for option in _not_there(arguments, sentence)]


def _not_there(arguments: Sequence[str], sentence: str) -> list[str]:
    own = known = _options_of(_command_of(arguments))
    given = {word.partition("=")[0] for argument in arguments for word in argument.split()}
    missing = []
    for found in _WORDS.finditer(sentence):
        named, option = found.groups()
        if named is not None:
            known = own | _options_of(_command_of(named.split()))
        elif option not in known and option not in given:
            missing.append(option)
    return missing
