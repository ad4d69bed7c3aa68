"""The examples of docs/exactly-once.md run, and its table names errors that there are."""

from __future__ import annotations

import re
from typing import Any

import quorumlog
from quorumlog import LocalCluster, connect, errors
from quorumlog.client.protocol import appending
from quorumlog.log_state.control_entries import MOST_PRODUCERS
from tests.docs.markdown import DOCS, section, tables

TEXT = (DOCS / "exactly-once.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_examples_append_each_entry_once_whoever_runs_them_again() -> None:
    first, resuming = PROGRAMS
    (servers,) = re.findall(r'connect\("([^"]*)"', first)
    resumed: dict[str, Any] = {}
    exec(compile(resuming, "resuming", "exec"), resumed)
    with LocalCluster(members=3) as cluster:
        exec(compile(first.replace(servers, cluster.servers), "first", "exec"), {})
        rows = [b"one", b"two", b"three", b"four"]
        for known in (rows[:3], rows, rows):
            with connect(cluster.servers, producer_id="orders") as log:
                resumed["send"](log, known)
        with connect(cluster.servers) as log:
            assert [entry.body for entry in log.read(0)] == rows


def test_the_table_of_failures_names_what_there_is() -> None:
    text = section(TEXT, "What a program sees")
    (rows,) = tables(text)
    names = set(re.findall(r"`([A-Z]\w+)`", text))
    known = {*dir(errors), *dir(quorumlog), *dir(appending), "CancelledError"}
    assert names <= known, names - known
    told = {"OutcomeUnknown", "ProducerFenced", "ProducerExpired", "SequenceGap", "AlreadyCommitted"}
    assert told | {"TooManyProducers"} <= names
    assert any(f"{MOST_PRODUCERS:,}" in row["fault"] for row in rows)
