"""docs/operations.md: its TOML file is what `serve` takes, its keys and statuses are real."""

from __future__ import annotations

import re
from pathlib import Path

from quorumlog.cli import output
from quorumlog.cli.log import status
from quorumlog.cli.run.toml_config import load_server_config
from quorumlog.config import LARGEST_ENTRY_BYTES, LARGEST_PUSH_BYTES, RELOADABLE
from quorumlog.server import ledger_server
from tests.docs.markdown import DOCS, code_blocks, section, tables

TEXT = (DOCS / "operations.md").read_text()


def test_the_toml_file_is_what_serve_takes(tmp_path: Path) -> None:
    (block,) = code_blocks(section(TEXT, "One file, several groups"), "toml")
    path = tmp_path / "server.toml"
    path.write_text(block)
    config = load_server_config(str(path), {})
    assert config.bind == "0.0.0.0:20911"
    orders, audit = config.groups
    assert (orders.group, audit.group) == ("orders", "audit")
    assert orders.members == audit.members
    assert len(orders.members) == 3
    assert (orders.member_id, audit.member_id) == ("n0", "n0")
    assert orders.consensus.preferred_leader_ids == ("n0",)
    assert audit.consensus.preferred_leader_ids == ()
    assert (orders.storage.flush, audit.storage.flush) == ("sync", "async")
    assert audit.storage.segment_bytes == 256 * 1024 * 1024
    assert orders.storage.disk_full_ratio == audit.storage.disk_full_ratio == 0.95


def test_the_bounds_of_what_a_frame_carries() -> None:
    for bound in (LARGEST_ENTRY_BYTES, LARGEST_PUSH_BYTES):
        assert f"above {bound:,}" in section(TEXT, "One file, several groups")


def test_the_options_that_sighup_reloads() -> None:
    sentence = section(TEXT, "Changing options while it runs").partition(". The log")[0]
    named = set(re.findall(r"`(\w+)`", sentence.partition("can: ")[2]))
    assert named == RELOADABLE | {"log_level"}


def test_the_keys_of_status() -> None:
    (rows,) = tables(section(TEXT, "Status"))
    assert sorted(row["key"] for row in rows) == sorted(status.KEYS)


def test_the_exit_statuses() -> None:
    rows = next(t for t in tables(section(TEXT, "Signals and exit status")) if "exit status" in t[0])
    stated = {int(row["exit status"]) for row in rows}
    assert stated == {
        ledger_server.EXIT_CLEAN,
        output.EXIT_REFUSED,
        output.EXIT_CONFIG,
        output.EXIT_STORE,
        output.EXIT_INTERRUPTED,
        output.EXIT_TERMINATED,
    }
    assert ledger_server.EXIT_FAILED == output.EXIT_STORE
