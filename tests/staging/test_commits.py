"""A sink's commit on a real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from quorumlog import LocalCluster, connect
from quorumlog.batch import EntryBatch
from quorumlog.cli.main import app
from quorumlog.errors import ConfigError, ProducerFenced
from quorumlog.staging import (
    Batch,
    BatchRules,
    NewestManifest,
    RowDigest,
    RowsNotHeld,
    SinkCommits,
    open_sink_logs,
    stage,
)
from quorumlog.staging.commits import SinkLogs

STAGING = "default.staging"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(members=3) as cluster:
        yield cluster


@pytest.fixture
def logs(cluster: LocalCluster) -> Iterator[SinkLogs]:
    with open_sink_logs(cluster.servers, "default", 10_000) as logs:
        yield logs


def rows_of(batch_id: int, name: str = "row") -> list[bytes]:
    return [b"%s %d-%d" % (name.encode(), batch_id, row) for row in range(100)]


def staged(cluster: LocalCluster, batch_id: int, name: str = "row", parts: int = 3) -> Batch:
    rows = rows_of(batch_id, name)
    size = -(-len(rows) // parts)
    batches = [EntryBatch.from_bodies(rows[at : at + size]) for at in range(0, len(rows), size)]
    digest = RowDigest()
    for each in batches:
        digest = digest.plus(RowDigest.of_entries(each))
    with connect(cluster.servers, group=STAGING) as log:
        ranges = stage(log, batches)
    return Batch("q", batch_id, len(rows), digest, ranges)


def bodies(cluster: LocalCluster, name: str) -> list[bytes]:
    with connect(cluster.servers) as log:
        return [entry.body for entry in log.read(0) if entry.body.startswith(name.encode())]


class DiesBeforeReplay(SinkCommits):
    def _replay(self, standing: NewestManifest) -> None:
        raise SystemExit


def test_batches_come_into_the_log_and_a_repetition_is_nothing(
    cluster: LocalCluster, logs: SinkLogs
) -> None:
    commits = SinkCommits(logs, "plain")
    assert commits.begin() is None
    for batch_id in range(3):
        commits.begin()
        assert commits.commit(staged(cluster, batch_id, "plain"), BatchRules()).was_new
        again = staged(cluster, batch_id, "plain", parts=5)
        assert not commits.commit(again, BatchRules()).was_new
    assert bodies(cluster, "plain") == [row for number in range(3) for row in rows_of(number, "plain")]


def test_what_a_crash_has_left_is_finished_by_a_person(cluster: LocalCluster, logs: SinkLogs) -> None:
    commits = DiesBeforeReplay(logs, "left")
    commits.begin()
    with pytest.raises(SystemExit):
        commits.commit(staged(cluster, 0, "left"), BatchRules())
    assert bodies(cluster, "left") == []
    command = ["producers", "resume", "--servers", cluster.servers, "left"]
    first = CliRunner().invoke(app, command)
    assert first.output == "left: batch 0 of query q, 100 rows, is in the log now\n"
    assert bodies(cluster, "left") == rows_of(0, "left")
    second = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(second.output)["resumed"] is False
    assert bodies(cluster, "left") == rows_of(0, "left")


def test_what_a_crash_has_left_is_finished_by_the_next_batch(
    cluster: LocalCluster, logs: SinkLogs
) -> None:
    commits = DiesBeforeReplay(logs, "next")
    commits.begin()
    with pytest.raises(SystemExit):
        commits.commit(staged(cluster, 0, "next"), BatchRules())
    SinkCommits(logs, "next").commit(staged(cluster, 1, "next"), BatchRules())
    assert bodies(cluster, "next") == rows_of(0, "next") + rows_of(1, "next")


def test_a_driver_that_connects_fences_the_one_before(cluster: LocalCluster, logs: SinkLogs) -> None:
    commits = SinkCommits(logs, "fenced")
    commits.begin()
    with logs.staging.session("fenced") as session:
        commits.commit(staged(cluster, 0, "fenced"), BatchRules())
        with pytest.raises(ProducerFenced):
            session.append(session.last_sequence + 1, [EntryBatch.from_bodies([b"late"])])


def test_the_newest_manifest_and_what_is_staged_behind_it_are_held(
    cluster: LocalCluster, logs: SinkLogs
) -> None:
    commits = SinkCommits(logs, "held")
    commits.begin()
    index = commits.commit(staged(cluster, 0, "held"), BatchRules()).manifest_index
    with connect(cluster.servers, group=STAGING) as log:
        row = next(row for row in log.readers() if row.name == "sink.held")
    assert (row.position, row.hold) == (index, "archive")


def test_rows_that_nobody_holds_are_not_committed(cluster: LocalCluster, logs: SinkLogs) -> None:
    commits = SinkCommits(logs, "unheld")
    commits.begin()
    batch = staged(cluster, 0, "unheld")
    with connect(cluster.servers, group=STAGING) as log:
        log.reader("sink.unheld").end()
    with pytest.raises(RowsNotHeld, match="run the batch again"):
        commits.commit(batch, BatchRules())
    commits.begin()
    commits.commit(staged(cluster, 0, "unheld"), BatchRules())
    assert bodies(cluster, "unheld") == rows_of(0, "unheld")


def test_a_cluster_without_a_staging_group_says_how_to_get_one() -> None:
    with (
        LocalCluster(members=1, staging=False) as cluster,
        pytest.raises(ConfigError, match="staging = true"),
        open_sink_logs(cluster.servers, "default", 2000) as logs,
    ):
        SinkCommits(logs, "none").begin()


def test_a_write_that_is_given_up_holds_nothing_and_one_that_stands_does(
    cluster: LocalCluster, logs: SinkLogs
) -> None:
    commits = SinkCommits(logs, "given-up")
    commits.begin()
    commits.abandon()
    assert logs.staging.hold("sink.given-up") is None
    commits.begin()
    commits.commit(staged(cluster, 0, "given-up"), BatchRules())
    commits.abandon()
    assert logs.staging.hold("sink.given-up") is not None
    commits.forget()
    assert logs.staging.hold("sink.given-up") is None
    assert logs.staging.producer("given-up") is None
    assert logs.log.producer("given-up/rows") is None


def test_nobody_has_committed_under_that_name(cluster: LocalCluster) -> None:
    told = CliRunner().invoke(app, ["producers", "resume", "--servers", cluster.servers, "nobody"])
    assert told.exit_code != 0
    assert "no sink has committed a batch as nobody" in told.output


def test_an_id_that_cannot_name_a_reader_is_refused(logs: SinkLogs) -> None:
    with pytest.raises(ConfigError, match="producerId must have 1 to 48 letters"):
        SinkCommits(logs, "a/b")
