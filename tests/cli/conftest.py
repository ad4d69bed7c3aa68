"""A running cluster, the directories of a stopped one, and two ways to run a command."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from typer.testing import CliRunner, Result

from quorumlog import LocalCluster, StoreConfig, connect
from quorumlog.cli.main import app
from quorumlog.config import MIB
from quorumlog.server.free_ports import free_ports
from tests.cli.named_options import options_that_do_not_exist
from tests.waiting import wait_until_identical

STORAGE = StoreConfig(segment_bytes=1 * MIB, index_segment_bytes=64 * 1024)
LINES = [f"line {number}" for number in range(500)]
NOT_TEXT = b"\xff\x00\xfe"

Cli = Callable[..., Result]


def objects(text: str) -> list[dict[str, Any]]:
    """What --json printed: one object a line."""
    return [json.loads(line) for line in text.splitlines()]


def plain(text: str) -> str:
    """Without the line breaks and frames that a terminal's width brings in."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", text)


def unread_bytes(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    count = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
    return int.from_bytes(count, sys.byteorder)


@pytest.fixture
def cli() -> Cli:
    """Run a command in this process; `input` is its standard input."""

    def run(*arguments: object, input: bytes | None = None) -> Result:  # noqa: A002
        line = [str(argument) for argument in arguments]
        result = CliRunner().invoke(app, line, input=input)
        assert options_that_do_not_exist(line, result.stderr) == [], result.stderr
        return result

    return run


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a command as a process of its own; what still runs at the end of the test is killed."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(
        *arguments: object,
        python: tuple[str, ...] = (),
        stderr: int = subprocess.PIPE,
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, *python, "-m", "quorumlog", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "COLUMNS": "200"},
            **options,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three running members that hold nothing to begin with."""
    with LocalCluster(members=3, storage=STORAGE) as running:
        yield running


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Directories of three members that hold LINES and NOT_TEXT and were stopped cleanly."""
    directory = tmp_path_factory.mktemp("stopped")
    with LocalCluster(members=3, directory=directory, storage=STORAGE) as running:
        with connect(running.servers) as log:
            log.append_batch([line.encode() for line in LINES])
            log.append(NOT_TEXT)
            wait_until_identical(log)
        # The leader last: without a quorum nobody opens another term, so all three logs end alike.
        leader = running.leader()
        for member in running.members:
            if member.member_id != leader:
                running.stop(member.member_id)
        return [running.data_dir(f"n{number}") for number in range(3)]


@pytest.fixture
def free_address() -> str:
    """An address of this machine at which nobody listens."""
    (port,) = free_ports(1)
    return f"127.0.0.1:{port}"
