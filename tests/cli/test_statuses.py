"""The table of exit statuses in docs/operations.md holds for every command; an error is one sentence on
standard error, or with --json one object."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import typer.main

from quorumlog.cli import options as shared_options
from quorumlog.cli.main import app
from tests.cli.named_options import options_that_do_not_exist

GROUP: Any = typer.main.get_group(app)
NOBODY = "127.0.0.1:1"
NOT_UTF8 = "a\udcff"
"""What Python makes of such an argument."""
SERVERS = ("--servers", "--from-servers", "--to-servers")


def _commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    for name in group.commands:
        command = group.get_command(None, name)
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield " ".join((*path, name)), command
        if hasattr(command, "commands"):
            yield from _commands(command, *path, name)


EVERY = dict(_commands(GROUP))
"""By what is written behind `quorumlog`."""

VALUES = {"LIST": f"n0={NOBODY}", "HOST:PORT": NOBODY, "PLACE": "latest", "ID=DIR": "n0=/none/such"}
"""By metavar, of what a command cannot do without: names of nobody, paths where nothing is."""
MORE = {
    "read": ["--servers", NOBODY],
    "why kept": ["--servers", NOBODY],
    "export": ["--servers", NOBODY],
    "bench": ["--servers", NOBODY],
    "broker query": ["--key", "k"],
    "broker topic update": ["--queues", "9"],
    "broker dlq resend": ["--all"],
    "pipeline audit": ["--servers", NOBODY],
}
"""What one of several options has to say."""


def _value(parameter: Any) -> str:
    if parameter.opts[0] in SERVERS:
        return NOBODY
    if parameter.type_descriptor.annotation in (int, float):
        return "1"
    if parameter.type_descriptor.annotation is Path:
        return "/none/such"
    return VALUES.get(parameter.metavar, "/none/such" if "DIR" in str(parameter.metavar) else "x")


def _line(path: str, but: Any = None, value: str = "") -> list[str]:
    """A command line with a value for all that is required; of parameter `but` it is `value`."""
    options, arguments = [*path.split(), *MORE.get(path, ())], []
    for each in EVERY[path].params:
        if each is not but and not each.required:
            if each.opts[0] == "--timeout":
                options += ["--timeout", "0.1"]
            if each.opts[0] == "--servers" and path.startswith("broker "):
                options += ["--servers", NOBODY]
            continue
        given = value if each is but else _value(each)
        if each.param_type_name == "option":
            options += [each.opts[0], given]
        else:
            arguments.append(given)
    return [*options, *arguments]


def _of_type(path: str, kind: type) -> list[Any]:
    return [each for each in EVERY[path].params if each.type_descriptor.annotation is kind]


NEVER_END = ("dev", "broker dev", "bench flush")
"""With what is required alone they work."""


def _unknown_option(path: str) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    yield [*path.split(), "--no-such-option"], (2,)


def _number_above_64_bits(path: str) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    for each in _of_type(path, int):
        for value in (str(1 << 64), "1e400", "nan"):
            yield _line(path, each, value), (2,)
    for each in _of_type(path, float):
        for value in ("1e400", "nan"):
            yield _line(path, each, value), (2,)


def _text_that_is_none(path: str) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """Keys of the key-value store are bytes: there nobody is asked, since nobody listens."""
    for each in _of_type(path, str) if path not in NEVER_END else ():
        if each.opts[0] not in ("--log-level", "--help"):
            yield _line(path, each, NOT_UTF8), (1, 2)


def _nobody_listens(path: str) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    if any(each.opts[0] in SERVERS for each in EVERY[path].params) and path not in ("kv serve",):
        yield _line(path), (1, 2) if _of_type(path, Path) or path == "kv txn" else (1,)


def _path_where_nothing_is(path: str) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    for each in _of_type(path, Path) if path not in NEVER_END else ():
        yield _line(path, each, "/none/such\udcff/x"), (1, 2)


SITUATIONS = (
    _unknown_option,
    _number_above_64_bits,
    _text_that_is_none,
    _nobody_listens,
    _path_where_nothing_is,
)
WITH_JSON = [path for path in EVERY if any(each.name == "json" for each in EVERY[path].params)]
AS_JSON = (_unknown_option, _number_above_64_bits, _nobody_listens)
"""How an error is written does not depend on what it is."""
ANSWERS = ("status", "kv status", "kv health", "append")
"""Of a cluster that cannot be reached these have an answer all the same: it is on standard output."""


@pytest.mark.parametrize(
    ("path", "as_json"), [*((path, False) for path in EVERY), *((path, True) for path in WITH_JSON)]
)
def test_what_is_wrong_is_a_sentence_and_a_status_of_the_table(
    path: str, as_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUORUMLOG_SERVERS", raising=False)
    # So long commands would wait for servers that are not there.
    monkeypatch.setattr(shared_options, "DEAD_AFTER_S", 0.0)
    for situation in AS_JSON if as_json else SITUATIONS:
        lines = situation(path)
        for line, statuses in islice(lines, 1) if as_json else lines:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
            status = GROUP.main([*line, "--json"] if as_json else line, standalone_mode=False)
            said = capsys.readouterr()
            assert status in statuses, (line, said)
            if status == 1 and path in ANSWERS:
                continue
            assert said.out == "", (line, said)
            assert options_that_do_not_exist(line, said.err) == [], (line, said)
            last = said.err.splitlines()[-1]
            if as_json:
                error = json.loads(last)
                assert error["status"] == status and error["error"], (line, said)
            else:
                assert last.startswith("quorumlog: "), (line, said)


@pytest.mark.parametrize("path", ["serve", "kv serve", "broker serve"])
def test_a_store_on_a_read_only_disk_has_failed(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = os.mkdir
    option = "--dir" if path == "broker serve" else "--data-dir"

    def mkdir(name: Any, *mode: Any, **options: Any) -> None:
        if str(name).startswith(str(tmp_path)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
        refused(name, *mode, **options)

    monkeypatch.setattr(os, "mkdir", mkdir)
    line = [*path.split(), option, str(tmp_path / "new")]
    line += (
        ["--topics", "a"] if path == "broker serve" else ["--id", "n0", "--members", "n0=127.0.0.1:2"]
    )
    assert GROUP.main(line, standalone_mode=False) == 3
    assert "Read-only file system" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.parametrize("path", ["append", "kv put", "kv txn"])
def test_a_standard_input_that_is_closed_is_named(path: str) -> None:
    command = f"exec {sys.executable} -m quorumlog {' '.join(_line(path))} <&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode in (1, 2), done
    assert done.stderr.startswith("quorumlog: "), done


def test_completion_needs_a_home(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert GROUP.main(["--install-completion", "bash"], standalone_mode=False) == 2
    assert "no home directory" in capsys.readouterr().err
