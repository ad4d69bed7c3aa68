"""Pipelines on Spark give what they give in one process, to the row and to the byte."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from quorumlog import LocalCluster, connect
from quorumlog.cli.pipeline import engine_of
from quorumlog.errors import (
    BadRequest,
    ConfigError,
    DirectoryDamaged,
    ProtocolViolation,
    StoreFailure,
    Unreachable,
)
from quorumlog.pipelines import archiving, auditing, compacting, statistics
from quorumlog.pipelines.archive import PARTS, Archive
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.auditing import audit
from quorumlog.pipelines.compacting import compact
from quorumlog.pipelines.engine import LocalEngine
from quorumlog.pipelines.places import Place
from quorumlog.pipelines.replaying import Replayed, filter_of, replay
from quorumlog.pipelines.statistics import CountWork
from quorumlog.spark import pipelines as spark_engine
from quorumlog.spark.pipelines import SparkEngine, frame_filter_of, replay_frames
from quorumlog.spark.session import JavaNotFound, _started, running
from tests.cli.conftest import Cli, cli  # noqa: F401

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with LocalCluster(members=2, directory=tmp_path_factory.mktemp("members")) as cluster:
        with connect(cluster.servers) as log:
            for first in range(0, 3000, 500):
                log.append_batch(
                    [
                        json.dumps({"id": f"k{n * 7919 % 53}", "n": n}).encode()
                        for n in range(first, first + 500)
                    ]
                )
        yield Place(servers=cluster.servers)


def test_an_archive_is_the_same_to_the_byte(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    for name, engine in (("here", LocalEngine()), ("there", SparkEngine(spark))):
        archive(place, str(tmp_path / name), part_bytes=40_000, stop_index=3_000, engine=engine)
    here, there = (Archive.open(str(tmp_path / name)) for name in ("here", "there"))
    assert here.manifest == there.manifest and len(here.manifest.parts) > 3
    for part in here.manifest.parts:
        one, other = (tmp_path / name / PARTS / part.file for name in ("here", "there"))
        assert one.read_bytes() == other.read_bytes()
    again = archive(place, str(tmp_path / "there"), verify=True, engine=SparkEngine(spark))
    assert again.last_index >= 2_999 and not list((tmp_path / "there" / "_attempts").iterdir())


def test_of_two_runs_at_once_one_goes_on(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    ended: list[str] = []

    class Meanwhile(SparkEngine):
        def map(self, run: Any, works: Any, result_bytes: int = 0) -> Iterator[Any]:
            for number, result in enumerate(super().map(run, works, result_bytes)):
                if number == 0:
                    with pytest.raises(ConfigError) as refused:
                        archive(place, str(tmp_path / "a"), engine=SparkEngine(spark))
                    ended.append(str(refused.value))
                yield result

    kept = archive(place, str(tmp_path / "a"), part_bytes=40_000, engine=Meanwhile(spark))
    assert ended == [f"{tmp_path / 'a'} is being written by another archive run; wait for it"]
    assert not audit([place, Place(archive=kept.archive)], engine=SparkEngine(spark)).differences


def test_an_audit_names_the_first_difference(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    kept = tmp_path / "a"
    archive(place, str(kept), part_bytes=40_000)
    places = [place, Place(archive=str(kept))]
    assert audit(places, engine=SparkEngine(spark)) == audit(places)
    part = Archive.open(str(kept)).manifest.parts[1]
    content = bytearray((kept / PARTS / part.file).read_bytes())
    content[len(content) // 2] ^= 1
    (kept / PARTS / part.file).write_bytes(content)
    [found] = audit(places, engine=SparkEngine(spark)).differences
    assert (found.place, part.first_index <= found.index < part.stop_index) == (str(kept), True)
    with pytest.raises(DirectoryDamaged, match=part.file):
        archive(place, str(kept), verify=True, engine=SparkEngine(spark))


def test_counts_and_compactions_are_the_same(
    spark: SparkSession, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (statistics, compacting):
        monkeypatch.setattr(module, "PART_BYTES", 40_000)
    assert statistics.statistics(place, key="json:id", engine=SparkEngine(spark)) == (
        statistics.statistics(place, key="json:id")
    )
    monkeypatch.setattr(spark_engine, "RESULT_BYTES", 10_000)  # a few of them, and at times one alone
    assert statistics.statistics(place, key="json:n", engine=SparkEngine(spark)) == (
        statistics.statistics(place, key="json:n")
    )
    for name, engine in (("here", LocalEngine()), ("there", SparkEngine(spark))):
        compact(place, str(tmp_path / f"{name}.parquet"), "json:id", engine=engine)
    here, there = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("here", "there"))
    assert here.equals(there) and here.num_rows == 53
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here.parquet", "there.parquet"]


def test_what_a_work_refuses_is_raised_where_the_pipeline_was_called(
    spark: SparkSession, place: Place
) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        statistics.statistics(place, key="prefix:0", engine=SparkEngine(spark))
    with pytest.raises(BadRequest, match="is shorter than the prefix"):
        statistics.statistics(place, key="prefix:4000", engine=SparkEngine(spark))


def test_a_connect_server_is_named_like_a_master(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    class Session:
        def stop(self) -> None: ...

    def session(*given: str) -> Session:
        asked.append(given)
        return Session()

    monkeypatch.setitem(_started.__globals__, "session", session)
    monkeypatch.setitem(_started.__globals__, "bound_retries", lambda _: None)
    with engine_of("sc://spark.example.com:15002", []) as engine:
        assert isinstance(engine, SparkEngine)
        assert isinstance(engine.spark, Session)
    assert asked == [("quorumlog pipeline", "sc://spark.example.com:15002")]
    with pytest.raises(ConfigError, match=r"name .*, sc://HOST of a Connect server"):
        engine_of("http://spark.example.com", []).__enter__()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Exception("An error occurred:\n: all masters are silent\n\tat java"), "is its master there"),
        (JavaNotFound("no Java 17 or later: install one"), "no Java 17 or later: install one"),
        (ImportError("no grpc"), "needs the extra `spark-connect`"),
    ],
)
def test_a_spark_that_does_not_start_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def session(*_: str) -> None:
        raise error

    monkeypatch.setitem(_started.__globals__, "session", session)
    with (
        pytest.raises(ConfigError, match=told) as found,
        engine_of("spark://127.0.0.1:9", []) as engine,
    ):
        assert isinstance(engine, SparkEngine)
        assert engine.spark is None
    assert "\n" not in str(found.value) and "\tat" not in str(found.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SparkConnectGrpcException("the channel is closed.\nmore"), "failed at work: .*closed"),
        (Py4JNetworkError("Answer from Java side is empty"), "failed at work: Answer"),
        (ConnectionRefusedError(111, "Connection refused"), "failed at work: .*refused"),
        (PySparkException("Traceback (most recent call last):\n  in a task"), ""),
        (AssertionError("ours"), ""),
        (BadRequest("a short body"), ""),
    ],
)
def test_a_spark_that_is_lost_at_work_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    class Session:
        def stop(self) -> None: ...

    monkeypatch.setitem(_started.__globals__, "session", lambda *_: Session())
    with pytest.raises(Exception) as found, running("app", "spark://127.0.0.1:7077"):
        raise error
    if not told:
        assert found.value is error
    else:
        assert isinstance(found.value, Unreachable) and re.search(told, str(found.value))
        assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "error",
    [
        DirectoryDamaged("torn", path="/d/x", position=7, index=9, stop_index=12),
        StoreFailure("the disk is full"),
        ProtocolViolation("entry 3 did not come"),
        ConfigError("no such key"),
        BadRequest("a short body"),
    ],
)
def test_a_refusal_is_the_same_here_as_it_was_there(error: Exception) -> None:
    def run(_: object) -> CountWork:
        raise error

    [refused] = spark_engine._row(0, run, CountWork(Place(), 0, 1, ""), 0).column("refusal").to_pylist()
    found = spark_engine._raised(refused)
    assert (type(found), str(found)) == (type(error), str(error))
    if isinstance(found, DirectoryDamaged):
        assert vars(found) == vars(error)


def test_every_work_names_the_type_of_its_result() -> None:
    """An executor sends it as bytes, and the driver has to know what they are."""
    for run in (
        archiving.write_part,
        archiving.verify_part,
        auditing.digests_of,
        statistics.count,
        compacting.fold,
    ):
        assert run.__annotations__["return"]


def bodies_in(servers: str) -> list[bytes]:
    with connect(servers) as log:
        return [bytes(entry.body) for entry in log.read(0)]


def test_a_replay_that_was_broken_off_goes_on_and_repeats_nothing(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    calls = 0

    def odd(rows: DataFrame) -> DataFrame:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ConnectionResetError
        body = f.col("body").cast("string")
        return rows.where(f.get_json_object(body, "$.n") % 2 == 1).select(
            f.concat(f.lit("odd "), body).cast("binary").alias("body")
        )

    with LocalCluster(members=1, directory=tmp_path / "target") as cluster:
        target = Place(servers=cluster.servers)

        def run(**given: Any) -> Replayed:
            return replay_frames(spark, place, target, "odd", transform=odd, part_bytes=60_000, **given)

        with pytest.raises(ConnectionResetError):
            run(stop_index=2_000)
        begun = bodies_in(cluster.servers)
        assert 0 < len(begun) < 900
        done = run(stop_index=2_000)
        assert done.rows == done.appended + len(begun) <= 1000
        ended = run()
        assert ended.rows == 1500 and run().appended == 0
        with connect(place.servers) as log:
            source = [bytes(entry.body) for entry in log.read(0)]
        assert bodies_in(cluster.servers) == [
            b"odd " + body for body in source if json.loads(body)["n"] % 2
        ]
        with pytest.raises(BadRequest, match=r"has reached index .* outside the range"):
            run(stop_index=1_000)
        with pytest.raises(ConfigError, match="was begun by Spark, which numbers its rows differently"):
            replay(place, target, "odd")
        replay(place, target, "alone", stop_index=100)
        with pytest.raises(ConfigError, match="was begun without Spark"):
            replay_frames(spark, place, target, "alone")
        with pytest.raises(ConfigError, match="its rows would be there twice"):
            replay_frames(spark, target, target, "own")


def test_the_filters_of_the_command_are_the_same_on_spark(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    with LocalCluster(members=1, directory=tmp_path / "target") as cluster:
        for number, only in enumerate(("contains:k7", 'prefix:{"id": "k1')):
            target = Place(servers=cluster.servers)
            replay_frames(spark, place, target, f"r{number}", transform=frame_filter_of(only))
            replay(place, target, f"alone{number}", transform=filter_of(only))
        with connect(place.servers) as log:
            source = [bytes(entry.body) for entry in log.read(0)]
        k7, k1 = ([body for body in source if text in body] for text in (b"k7", b'{"id": "k1'))
        assert k7 and k1 and bodies_in(cluster.servers) == [*k7, *k7, *k1, *k1]


def test_a_rate_is_not_for_spark(cli: Cli) -> None:  # noqa: F811
    given = ["--servers", "h:1", "--to-servers", "h:2", "--spark", "local[1]", "--id", "a"]
    refused = cli("pipeline", "replay", *given, "--rate", "5")
    assert refused.exit_code == 2 and "--rate limits one process" in refused.stderr


@pytest.mark.long
def test_the_command_replays_on_spark(place: Place, tmp_path: Path) -> None:
    with LocalCluster(members=1, directory=tmp_path / "target") as cluster:
        given = ["--servers", place.servers, "--to-servers", cluster.servers, "--spark", "local[1]"]
        replay = [sys.executable, "-m", "quorumlog", "pipeline", "replay"]
        for appended in (3000, 0):
            done = subprocess.run(
                [*replay, *given, "--id", "a", "--json"], capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["appended"] == appended
        assert len(bodies_in(cluster.servers)) == 3000
