"""Every option that a message names exists: on the command line, or as a field of the configuration.

Messages are the strings of src/ that are no docstrings. Where the option is to be found follows from
where the message stands: a command speaks of its own options, and what lies below speaks to whoever runs
`quorumlog serve`, unless the message itself says `quorumlog COMMAND`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

import quorumlog
import quorumlog.broker
from quorumlog.broker.config import MessageStoreConfig
from quorumlog.cli.log.status import KEYS
from quorumlog.cli.main import app
from quorumlog.cli.run.toml_config import ServerConfig
from quorumlog.config import ConsensusConfig, GroupConfig, KafkaOptions, KvOptions, StoreConfig
from quorumlog.wire.client_messages import WhyKeptResponse
from quorumlog.wire.read_promise import CONSISTENCIES
from tests.docs.markdown import DOCS

SOURCE = Path(__file__).resolve().parents[2] / "src"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
FIELD = re.compile(r"(?<![\w/.`{])[a-z]+(?:_[a-z0-9]+)+(?![\w(.])")
COMMAND = re.compile(r"quorumlog ([a-z]+)\b")
BESIDE_OTHERS = re.compile(r"quorumlog ([a-z]+-[a-z]+)\b")
"""A command that messages name beside options of what they are of."""
NOT_OURS = {"--add-modules", "--server"}
"""Options of other programs, Java's; and of the releases before."""
ALL_COMMANDS = ("__main__.py", "cli/options.py", "cli/output.py")
"""What all commands share may name what any of them has."""
BESIDE = {"append": "ask", "backup": "restore", "status": "readers"}
"""By file, the second command in it."""
NOT_FOR_USERS = "testing/"
"""Its messages are for who wrote the code: they name its attributes."""


class Message(NamedTuple):
    place: str
    """`FOLDER/FILE.py:LINE` below the package."""
    text: str
    """What is filled in at run time is `{}`."""


def messages_of(source: str, file: str) -> Iterator[Message]:
    """Strings that are no docstrings: f-strings whole, with `{}` for each value."""
    tree = ast.parse(source)
    parts: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            parts.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
            yield Message(f"{file}:{node.lineno}", text)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield Message(f"{file}:{node.lineno}", node.value)


MESSAGES = [
    message
    for path in sorted((SOURCE / "quorumlog").rglob("*.py"))
    for message in messages_of(path.read_text(), str(path.relative_to(SOURCE / "quorumlog")))
]


def _options(command: Any) -> set[str]:
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*map(_options, getattr(command, "commands", {}).values()))


GROUP: Any = typer.main.get_group(app)
OPTIONS = {name: _options(command) for name, command in GROUP.commands.items()}
TYPERS = {"--help", "--install-completion", "--show-completion"}
EVERY_OPTION = TYPERS | _options(GROUP)


def options_for(message: Message) -> set[str]:
    """Those that whoever reads the message can set."""
    named = [name for name in COMMAND.findall(message.text) if name in OPTIONS]
    if named:
        return set().union(*(OPTIONS[name] for name in named))
    file = message.place.partition(":")[0]
    if file in ALL_COMMANDS or "quorumlog {}" in message.text:
        return EVERY_OPTION
    if file.startswith("bench/") or file.startswith("cli/bench"):
        return OPTIONS["bench"]
    if file.startswith(("broker/", "cli/broker/", "coordinators/")):
        return OPTIONS["broker"]
    if file.startswith(("kv/", "cli/kv/")):
        return OPTIONS["kv"]
    stem = Path(file).stem
    if file.startswith("cli/") and stem != "toml_config":
        return OPTIONS.get(stem, EVERY_OPTION) | OPTIONS.get(BESIDE.get(stem, ""), set())
    return OPTIONS["serve"] | OPTIONS["status"]


def unknown_options(messages: list[Message]) -> list[str]:
    return [
        f"{message.place}: {option} in {message.text!r}"
        for message in messages
        for option in OPTION.findall(message.text)
        if option not in options_for(message) | NOT_OURS | {"--help"}
        if not any(option in OPTIONS[name] for name in BESIDE_OTHERS.findall(message.text))
    ]


def known_names() -> set[str]:
    """Options of the configuration; then what else has a name with an underscore that users know:
    arguments of the clients' verbs and what they may say of reads, keys of `status` and of `why kept`,
    fields of the formats."""
    parts: tuple[Any, ...] = (
        GroupConfig,
        ConsensusConfig,
        StoreConfig,
        KafkaOptions,
        KvOptions,
        MessageStoreConfig,
    )
    names = {field.name for part in parts for field in fields(part)} | set(ServerConfig._fields)
    clients = quorumlog.LedgerClient, quorumlog.AsyncLedgerClient, quorumlog.broker.AsyncConsumer
    for client in clients:
        for _, verb in inspect.getmembers(client, inspect.isfunction):
            names |= set(inspect.signature(verb).parameters)
    formats = (DOCS / "formats.md").read_text()
    names |= set(quorumlog.broker.__all__)
    names.add("timeout_s")  # of a release before, and said to be so
    names |= set(WhyKeptResponse.__struct_fields__) | set(CONSISTENCIES)
    return names | set(KEYS) | set(re.findall(r"(?m)^\| \d+ \| \d+ \| (\w+) \|", formats))


def unknown_names(messages: list[Message]) -> list[str]:
    known = known_names()
    return [
        f"{message.place}: {name} in {message.text!r}"
        for message in messages
        if " " in message.text and not message.place.startswith(NOT_FOR_USERS)
        for name in FIELD.findall(message.text)
        if name not in known
    ]


def test_every_option_of_the_command_line_that_a_message_names_exists() -> None:
    assert unknown_options(MESSAGES) == []


def test_every_option_of_the_configuration_that_a_message_names_exists() -> None:
    assert unknown_names(MESSAGES) == []


def test_there_are_messages_that_name_options() -> None:
    assert sum(bool(OPTION.search(message.text)) for message in MESSAGES) > 50
    assert sum(bool(FIELD.search(message.text)) for message in MESSAGES) > 50


@pytest.mark.parametrize(
    ("file", "text", "is_known"),
    [
        ("config/options.py", "--data-dir is missing", True),
        ("config/options.py", "--directory is missing", False),
        ("config/options.py", "--raw-dir is missing", False),
        ("bench/raw_limit.py", "name another (--raw-dir)", True),
        ("cli/run/dev.py", "--dir holds a log", True),
        ("cli/run/dev.py", "--data-dir holds a log", False),
        ("cli/run/dev.py", "see quorumlog serve --data-dir", True),
    ],
)
def test_an_option_is_looked_for_where_the_message_is_read(file: str, text: str, is_known: bool) -> None:
    assert (unknown_options([Message(f"{file}:1", text)]) == []) is is_known


def test_a_name_that_is_none_is_noticed() -> None:
    assert unknown_names([Message("a.py:1", "segment_bytes (7) must be at least 512")]) == []
    assert unknown_names([Message("a.py:1", "above the limit (server option max_frame_bytes)")])


def test_strings_are_collected_whole_and_docstrings_not() -> None:
    source = """def f():\n    'no --message'\n    raise E(f'--a {b}' ' and --c')\n"""
    assert [message.text for message in messages_of(source, "a.py")] == ["--a {} and --c"]
