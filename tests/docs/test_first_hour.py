"""docs/first-hour.md runs as it is printed. In each section `sh` blocks are servers, a line each."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest

from quorumlog.server.free_ports import free_ports
from tests.docs.markdown import DOCS, section
from tests.docs.test_readme import Terminal, session_of, shape
from tests.waiting import eventually

TEXT = (DOCS / "first-hour.md").read_text()
BLOCK = re.compile(r"^```(sh|console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def terminal(tmp_path: object) -> Iterator[Terminal]:
    yield Terminal(tmp_path)  # type: ignore[arg-type]


def three_in_a_row() -> int:
    while True:
        (first,) = free_ports(1)
        try:
            for port in range(first, first + 3):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


def on_free_ports(text: str) -> str:
    """`dev` takes three ports in a row."""
    first = three_in_a_row()
    ports = {str(21000 + each): str(first + each) for each in range(3)}
    if printed := sorted(set(re.findall(r"\b219\d\d\b", text))):
        ports |= dict(zip(printed, map(str, free_ports(len(printed))), strict=True))
    return re.sub(r"\b21[09]\d\d\b", lambda found: ports[found[0]], text)


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def as_printed(line: str) -> str:
    line = re.sub(r"\d{4}-\d\d-\d\dT[\d:.+]+", "TIME", line)
    line = re.sub(r"\b[0-9A-F]{32}\b", "ID", line)
    return shape(
        re.sub(r"\b(from n\d|\d (?:B|KiB)\))", "VARIES", line).replace(" leads already", " leads")
    )


@pytest.mark.processes
@pytest.mark.parametrize("heading", ["A log", "A key-value store", "A message store"])
def test_a_section_prints_what_is_printed(heading: str, terminal: Terminal) -> None:
    running: list[subprocess.Popen[str]] = []
    try:
        for language, block in BLOCK.findall(on_free_ports(section(TEXT, heading))):
            if language == "sh":
                running += [terminal.start(command) for command in block.splitlines()]
            elif language == "python":
                exec(compile(block, heading, "exec"), {})
            else:
                run(terminal, session_of(block))
                if len(running) == 3:  # "Now press Ctrl-C in the first terminal."
                    stop(running.pop(0))
    finally:
        for each in running:
            stop(each)


def run(terminal: Terminal, session: list[tuple[str, list[str]]]) -> None:
    for command, expected in session:
        if command.startswith("export "):
            name, _, servers = command.removeprefix("export ").partition("=")
            terminal.environment[name] = servers
            eventually(lambda servers=servers: all(map(listens, servers.split(","))))
            continue
        printed = terminal.run(command)
        assert [as_printed(line) for line in printed] == [as_printed(line) for line in expected], command


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
