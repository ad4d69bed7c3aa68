"""Stats, replay and compaction of one small log; each repeated, and gone on with after a crash."""

from __future__ import annotations

import errno
import fcntl
import importlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quorumlog import LocalCluster, connect
from quorumlog.cli.pipeline import engine_of
from quorumlog.client import LedgerClient
from quorumlog.errors import BadRequest, ConfigError
from quorumlog.log_state.control_entries import TimeMark
from quorumlog.log_state.log_state import EMPTY
from quorumlog.pipelines import compacting, replaying
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.compacting import FoldWork, compact, fold
from quorumlog.pipelines.engine import LocalEngine
from quorumlog.pipelines.places import Place
from quorumlog.pipelines.replaying import filter_of, replay
from quorumlog.pipelines.statistics import statistics
from quorumlog.spark.pipelines import SparkEngine
from quorumlog.store.disk import OsDisk
from quorumlog.store.log_points import LogStart
from quorumlog.store.member_directory import open_member_directory
from tests.cli.conftest import Cli, cli, objects, plain  # noqa: F401
from tests.spark.made_directories import SMALL_SEGMENTS, write_directory

BODIES = [json.dumps({"who": {"id": n % 7}, "n": n}).encode() for n in range(60)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Place:
    stored = [
        None,
        *BODIES[:20],
        TimeMark(60_000),
        *BODIES[20:40],
        TimeMark(125_000),
        None,
        *BODIES[40:],
    ]
    path = write_directory(tmp_path_factory.mktemp("made") / "d", stored, committed_index=63)
    return Place(path=str(path), batch_bytes=500)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(members=1, directory=tmp_path / "target") as cluster:
        yield cluster


def bodies_in(cluster: LocalCluster) -> list[bytes]:
    with connect(cluster.servers) as log:
        return [entry.body for entry in log.read(0)]


def test_statistics_count_by_minute_term_size_and_key(source: Place) -> None:
    found = statistics(source, key="json:who.id", top=2)
    assert (found.entries, found.control_entries, found.last_index) == (60, 4, 63)
    assert [(m.time_ms, m.entries) for m in found.minutes] == [(-1, 20), (60_000, 20), (120_000, 20)]
    assert [(t.term, t.entries) for t in found.terms] == [(1, 40), (2, 20)]
    assert found.body_bytes == sum(map(len, BODIES)) == sum(t.bytes for t in found.terms)
    assert sum(size.entries for size in found.sizes) == 60
    assert found.distinct_keys == 7 and {k.key for k in found.keys} <= set("0123")
    assert statistics(source, key="prefix:3").distinct_keys == 1


def test_a_lock_that_the_run_before_has_removed_keeps_nobody_out(
    source: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was opened while that run had it."""
    file, flock = tmp_path / "c.parquet", fcntl.flock

    def behind_its_end(lock: int, how: int) -> None:
        shutil.rmtree(tmp_path / "c.parquet.attempts", ignore_errors=True)
        flock(lock, how)

    with monkeypatch.context() as ended:
        ended.setattr(fcntl, "flock", behind_its_end)
        with pytest.raises(ConfigError, match="being written by another compaction"):
            compact(source, str(file), "json:who.id")
    assert compact(source, str(file), "json:who.id")


def test_a_compaction_that_was_killed_leaves_what_the_next_one_removes(
    source: Place, tmp_path: Path
) -> None:
    file, left = tmp_path / "c.parquet", tmp_path / "c.parquet.attempts"

    def again(done: int, in_all: int) -> None:
        with pytest.raises(ConfigError, match="being written by another compaction"):
            compact(source, str(file), "json:who.id")

    left.mkdir()
    (left / "of-the-killed.arrow").write_bytes(b"half")
    assert compact(source, str(file), "json:who.id", report=again).keys == 7
    assert [path.name for path in tmp_path.iterdir()] == ["c.parquet"]


def test_a_work_of_a_compaction_that_is_over_leaves_nothing(source: Place, tmp_path: Path) -> None:
    works: list[FoldWork] = []

    class Abandoned(LocalEngine):
        def map(self, run: Any, given: Sequence[Any]) -> Iterator[Any]:
            works.extend(given)
            raise KeyboardInterrupt

    file = str(tmp_path / "c.parquet")
    real = shutil.rmtree
    with pytest.MonkeyPatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(shutil, "rmtree", lambda *_, **__: None)
        killed.setattr(compacting, "_clear", lambda _: None)
        compact(source, file, "json:who.id", engine=Abandoned())

    def late(path: str, **options: Any) -> None:
        """A file comes between the listing and the end of the folder."""
        patched.setattr(shutil, "rmtree", real)
        fold(works[0])
        raise OSError(errno.ENOTEMPTY, "not empty", path)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shutil, "rmtree", late)
        compact(source, file, "json:who.id")
        assert shutil.rmtree is real
    with pytest.raises(ConfigError, match="is not there on"):
        fold(works[0])
    assert [path.name for path in tmp_path.iterdir()] == ["c.parquet"]


@pytest.mark.parametrize("key", ["yaml:x", "json:", "prefix:none", "prefix:0"])
def test_a_key_that_is_none_is_refused(source: Place, key: str) -> None:
    with pytest.raises(ConfigError, match="must be"):
        statistics(source, key=key)


@pytest.mark.parametrize("key", ["json:a", "prefix:2", "arrow:c"])
def test_control_entries_alone_have_no_key(tmp_path: Path, key: str) -> None:
    """As the newest entries often are: a batch of them has no row."""
    path = write_directory(tmp_path / "d", [None, TimeMark(60_000), None], committed_index=2)
    log = Place(path=str(path))
    assert statistics(log, key=key).distinct_keys == 0
    assert compact(log, str(tmp_path / "c.parquet"), key).keys == 0


def test_a_body_without_the_form_of_the_key_is_named(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "d", [None, b'{"a": "x"}', b"not so"], committed_index=2)
    with pytest.raises(BadRequest, match="entry 2"):
        statistics(Place(path=str(path)), key="json:a")


def test_a_range_that_ends_before_it_begins_is_refused(source: Place, tmp_path: Path) -> None:
    told = "begin at 50 and stop before 40"
    with pytest.raises(ConfigError, match=told):
        statistics(source, first_index=50, stop_index=40)
    with pytest.raises(ConfigError, match=told):
        archive(source, str(tmp_path / "a"), first_index=50, stop_index=40)


def test_a_replay_that_was_cut_goes_on_and_repeats_nothing(
    source: Place, target: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "BATCH_RECORDS", 7)
    real, count = LedgerClient.append_batch, 0

    def cut_off(self: LedgerClient, *given: object, **named: object) -> object:
        nonlocal count
        count += 1
        receipt = real(self, *given, **named)  # type: ignore[arg-type]
        if count == 3:
            raise ConnectionError("after it was appended")
        return receipt

    to = Place(servers=target.servers)
    with monkeypatch.context() as patch:
        patch.setattr(LedgerClient, "append_batch", cut_off)
        with pytest.raises(ConnectionError):
            replay(source, to, "again", transform=filter_of("contains:1"))
    done = replay(source, to, "again", transform=filter_of("contains:1"))
    wanted = [body for body in BODIES if b"1" in body]
    assert bodies_in(target) == wanted
    assert done.rows == len(wanted) > done.appended > 0
    assert replay(source, to, "again", transform=filter_of("contains:1")).appended == 0
    with pytest.raises(BadRequest, match="another id"):
        replay(source, to, "again", stop_index=10)
    assert bodies_in(target) == wanted


def test_a_replay_is_not_continued_where_its_first_rows_are_deleted_from_the_source(
    source: Place, target: LocalCluster, tmp_path: Path
) -> None:
    path = shutil.copytree(source.path, tmp_path / "d")
    rest, to = Place(path=str(path), batch_bytes=500), Place(servers=target.servers)
    replay(rest, to, "again", stop_index=10)
    directory = open_member_directory(
        OsDisk(), str(path), group="default", member_id="n0", config=SMALL_SEGMENTS, group_size=3
    )
    point = directory.store.boundaries.newest(63)
    assert point is not None
    start = LogStart(point, EMPTY.encode())
    directory.save_start(start)
    directory.store.drop_before(start)()
    directory.close(clean=True)
    begin_index = point.index + 1
    with pytest.raises(BadRequest, match=f"before index {begin_index}.*--from {begin_index}"):
        replay(rest, to, "again")
    assert bodies_in(target) == BODIES[:9]
    other = replay(rest, to, "from there")
    more = replay(rest, to, "from there", first_index=begin_index)
    assert (other.rows, more.rows, more.appended) == (other.appended, other.rows, 0)


def test_a_compaction_keeps_the_newest_of_each_key_and_appends_them_once(
    source: Place, target: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.pipelines.compacting.FOLD_BYTES", 1_000)
    file, to = str(tmp_path / "out.parquet"), Place(servers=target.servers)
    half = compact(source, file, "json:who.id", into=to, compaction_id="c", stop_index=30)
    again = compact(source, file, "json:who.id", into=to, compaction_id="c", stop_index=30)
    assert (half.keys, half.appended, again.appended) == (7, 7, 0)
    done = compact(source, file, "json:who.id", into=to, compaction_id="c")
    assert (done.entries, done.keys, done.appended) == (60, 7, 7)
    assert pq.read_table(file).column("body").to_pylist() == BODIES[53:]
    assert bodies_in(target)[7:] == BODIES[53:]


def test_a_log_that_has_grown_by_what_has_no_key_is_compacted_to_the_same_and_appended_no_more(
    target: LocalCluster, tmp_path: Path
) -> None:
    file, to, told = str(tmp_path / "out.parquet"), Place(servers=target.servers), []
    for number, more in enumerate([[], [TimeMark(60_000), None], [TimeMark(60_000), None, b"{}"]]):
        stored = [None, *BODIES, *more]
        path = write_directory(tmp_path / f"d{number}", stored, committed_index=len(stored) - 1)
        told.append(compact(Place(path=str(path)), file, "json:who.id", into=to, compaction_id="c"))
    assert [done.appended for done in told] == [7, 0, 0]
    assert [done.last_index for done in told] == [60, 62, 63]
    assert bodies_in(target) == BODIES[53:]


def test_what_is_none_of_ours_is_not_replaced(source: Place, tmp_path: Path) -> None:
    others = tmp_path / "others.parquet"
    pq.write_table(pa.table({"index": [1]}), others)
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "folder").mkdir()
    for name in ("others.parquet", "notes", "folder"):
        with pytest.raises(ConfigError, match="is not replaced"):
            compact(source, str(tmp_path / name), "json:who.id")
    assert (tmp_path / "notes").read_text() == "mine" and pq.read_table(others).num_rows == 1
    with pytest.raises(ConfigError, match="is a file; name a directory"):
        archive(source, str(tmp_path / "notes"))


def test_what_lies_elsewhere_is_refused_before_anything_is_written(
    source: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for calling in (
        lambda: archive(source, "gs://bucket/orders"),
        lambda: archive(source, "s3:/bucket/orders"),
        lambda: compact(source, "s3://bucket/orders.parquet", "json:who.id"),
        lambda: compact(source, "hdfs:/orders.parquet", "json:who.id"),
        lambda: statistics(Place(archive="dbfs:/orders")),
    ):
        with pytest.raises(ConfigError, match="local paths only"):
            calling()
    assert not list(tmp_path.iterdir())
    assert compact(source, f"file:{tmp_path}/c.parquet", "json:who.id").keys == 7


def test_the_command_line_archives_audits_and_counts(
    cli: Cli,  # noqa: F811
    source: Place,
    tmp_path: Path,
) -> None:
    place, directory = ("--path", source.path), tmp_path / "archive"
    result = cli("pipeline", "archive", directory, *place, "--json")
    assert result.exit_code == 0, result.output
    assert objects(result.stdout)[0]["last_index"] == 63
    sound = cli("pipeline", "audit", *place, "--archive", directory)
    assert sound.exit_code == 0 and "all places agree" in plain(sound.stdout), sound.output
    counted = cli("pipeline", "stats", "--archive", directory, "--key", "json:who.id", "--json")
    assert objects(counted.stdout)[0]["distinct_keys"] == 7, counted.output
    (part,) = (directory / "parts").iterdir()
    part.write_bytes(part.read_bytes()[:-40])
    damaged = cli("pipeline", "audit", *place, "--archive", directory, "--json")
    assert damaged.exit_code == 1 and objects(damaged.stdout)[0]["differences"], damaged.output
    assert cli("pipeline", "stats").exit_code == 2
    assert "--to-servers" in cli("pipeline", "replay", *place, "--id", "x").stderr


def test_what_can_be_refused_before_spark_has_started_is(
    source: Place,
    cli: Cli,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def start(*_: str) -> None:
        raise AssertionError("half a minute for nothing")

    monkeypatch.setattr(importlib.import_module("quorumlog.spark.session"), "running", start)
    file, kept = tmp_path / "kept.parquet", tmp_path / "a"
    with LocalCluster(members=1, directory=tmp_path / "target", staging=False) as cluster:
        of, to = ("--path", source.path), ("--to-servers", cluster.servers)
        nowhere = (*to, "--to-group", "none", "--id", "c")
        mistakes = {
            ("replay", *of, *to, "--id", "a"): "staging group",
            ("replay", *of, *to): "a replay needs an id",
            ("replay", *of, *nowhere): "group 'none' is not served here",
            ("replay", *of, *to, "--id", "a", "--only", "x"): "a filter must be",
            ("stats", *of, "--key", "x"): "a key must be",
            ("compact", file, *of, "--key", "x"): "a key must be",
            ("compact", file, *of, "--key", "json:n", *nowhere): "group 'none' is not served here",
            (
                "archive",
                kept,
                "--servers",
                cluster.servers,
                "--group",
                "none",
            ): "group 'none' is not served here",
            ("audit", "--servers", cluster.servers, "--group", "none"): "no member answers",
        }
        for line, sentence in mistakes.items():
            result = cli("pipeline", *line, "--spark", "local[1]")
            assert result.exit_code in (1, 2), (line, result.output, result.exception)
            assert sentence in plain(result.stderr), line


def test_spark_is_started_by_the_first_work_once_and_stopped_if_it_was(
    source: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    @contextmanager
    def running(*_: str) -> Iterator[Any]:
        told.append("started")
        yield SimpleNamespace()
        told.append("stopped")

    monkeypatch.setattr(importlib.import_module("quorumlog.spark.session"), "running", running)
    with engine_of("local[1]", [source]) as engine:
        assert isinstance(engine, SparkEngine)
    assert told == []
    with engine_of("local[1]", [source]) as engine:
        assert isinstance(engine, SparkEngine)
        assert engine.spark is engine.spark
        assert told == ["started"]
    assert told == ["started", "stopped"]
