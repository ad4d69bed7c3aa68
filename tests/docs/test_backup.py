"""docs/backup.md: its drill runs as it is printed, its keys are real, its messages are said."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from quorumlog import LocalCluster, StoreConfig, connect
from quorumlog.backups import BackupTaken
from quorumlog.server.free_ports import free_ports
from tests.docs.markdown import DOCS, ROOT, code_blocks, section, tables
from tests.docs.test_readme import Terminal
from tests.waiting import eventually

TEXT = (DOCS / "backup.md").read_text()


def test_the_keys_of_json() -> None:
    (rows,) = tables(section(TEXT, "Taking one"))
    assert [row["key"] for row in rows] == [each.name for each in msgspec.structs.fields(BackupTaken)]


def test_what_it_says_when_it_is_refused_is_said() -> None:
    (rows,) = tables(section(TEXT, "When it is refused"))
    source = "".join(
        re.sub(r"\{[^}]*\}", "N", path.read_text()) for path in (ROOT / "src").rglob("*.py")
    )
    source = re.sub(r'"\s*\n\s*f?"', "", source)
    for row in rows:
        assert row["message"] in source, row


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    yield Terminal(tmp_path)


def test_the_drill_runs_as_it_is_printed(terminal: Terminal) -> None:
    drill = section(TEXT, "A drill")
    for printed, port in zip(("21911", "21912", "21913"), free_ports(3), strict=True):
        drill = drill.replace(printed, str(port))
    copied, served, looked_at = (
        block.replace("\\\n", " ").splitlines() for block in code_blocks(drill, "sh")
    )
    with LocalCluster(members=3, storage=StoreConfig()) as cluster:
        terminal.environment["QUORUMLOG_SERVERS"] = cluster.servers
        with connect(cluster.servers) as log:
            log.append_batch([b"line %d" % number for number in range(100)])
        for command in copied:
            terminal.run(command)
    members: list[subprocess.Popen[str]] = []
    try:
        members += [terminal.start(command) for command in served]
        check, *reads = looked_at
        servers = check.rpartition(" ")[2]
        with connect(servers) as log:
            eventually(
                lambda: sum(row.reachable for row in log.status()) == 3, what="three members that answer"
            )
            assert log.get(100).body == b"line 99"
            eventually(lambda: len({row.committed_index for row in log.status()}) == 1)
        assert len(terminal.run(check)) == 4
        of_cluster, of_backup = (terminal.run(command) for command in reads)
        assert of_cluster == of_backup == [f"line {number}" for number in range(80, 100)]
    finally:
        for member in members:
            member.send_signal(signal.SIGTERM)
        for member in members:
            print(*member.communicate(timeout=60))  # shown where the test fails
    assert [member.returncode for member in members] == [0, 0, 0]
