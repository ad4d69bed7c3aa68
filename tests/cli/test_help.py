"""Every command explains itself with an example; a slip is answered with what was probably meant."""

from __future__ import annotations

import re

import pytest
import typer.main

from quorumlog.cli.main import app
from quorumlog.version import DESCRIPTION
from tests.cli.conftest import Cli, plain
from tests.cli.test_statuses import EVERY

COMMANDS = sorted(typer.main.get_group(app).commands)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_explains_itself_with_an_example_and_all_its_options(cli: Cli, command: str) -> None:
    result = cli(command, "--help")
    assert result.exit_code == 0
    text = plain(result.stdout)
    assert "[[" not in text
    assert " object at 0x" not in text
    assert re.search(rf"Example.*: .*quorumlog {command} ", text), text
    for parameter in typer.main.get_group(app).commands[command].params:
        assert getattr(parameter, "help", None), (command, parameter.name)


@pytest.mark.parametrize("command", [*COMMANDS, "bench flush"])
def test_an_example_can_be_pasted_as_it_is_printed(cli: Cli, command: str) -> None:
    """A shell takes the end of a line for the end of a command."""
    text = cli(*command.split(), "--help").stdout
    explained = re.split(r"\n\n(?=\S)", text.partition("Example")[2])[0]
    *continued, last = explained.partition(":")[2].strip().splitlines()
    assert last
    assert all(line.endswith("\\") for line in continued), explained


def test_without_arguments_it_lists_the_commands(cli: Cli) -> None:
    text = plain(cli().output)
    for command in COMMANDS:
        assert f" {command} " in text


def test_it_knows_its_version(cli: Cli) -> None:
    assert cli("--version").stdout == f"{DESCRIPTION}\n"


def test_a_slip_in_an_option_or_a_command_is_answered_with_the_nearest(cli: Cli) -> None:
    result = cli("status", "--server", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "--servers" in plain(result.stderr)
    result = cli("stats")
    assert result.exit_code == 2
    assert "status" in plain(result.stderr)


@pytest.mark.parametrize(
    "path", sorted({"", *EVERY, *(path.rpartition(" ")[0] for path in EVERY if " " in path)})
)
def test_help_has_no_words_of_python_and_cuts_none(cli: Cli, path: str) -> None:
    text = cli(*path.split(), "--help").stdout
    assert not re.search(r"<(int|float|str|path)|range>|list\[", text), text
    assert not re.search(r"^  +[a-z-]+  .*\.\.\.$", text, re.MULTILINE), text
    assert re.search(rf"quorumlog {path}".strip(), text)
