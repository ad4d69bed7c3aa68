"""A work runs anywhere: it is told all that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from quorumlog.cli.pipeline import engine_of
from quorumlog.errors import ConfigError
from quorumlog.pipelines.archiving import PartWork, archive, write_part
from quorumlog.pipelines.auditing import audit
from quorumlog.pipelines.compacting import FoldWork, compact, fold
from quorumlog.pipelines.engine import LocalEngine
from quorumlog.pipelines.places import Place
from quorumlog.pipelines.statistics import statistics
from quorumlog.spark import pipelines as spark_engine
from quorumlog.spark.pipelines import SparkEngine, _row
from tests.spark.made_directories import write_directory


class Elsewhere:
    """As an executor: with a working directory of its own."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory

    def map(
        self, run: Callable[[Any], Any], works: Sequence[Any], result_bytes: int = 0
    ) -> Iterator[Any]:
        for work in works:
            with chdir(self._directory):
                result = run(work)
            yield result


def test_names_relative_to_the_caller_mean_the_same_in_every_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_directory(tmp_path / "d", [b"%03d" % n for n in range(500)], committed_index=499)
    monkeypatch.chdir(tmp_path)
    engine = Elsewhere(tmp_path / "work")
    log, kept = Place(path="d"), Place(archive="a")
    archive(log, "a", stop_index=400, engine=engine)
    archive(log, "a", verify=True, engine=engine)
    found = audit([log, kept], engine=engine)
    assert not found.differences and [each.place for each in found.places] == ["d", "a"]
    for place in (log, kept):
        assert statistics(place, engine=engine).entries == 500
        compact(place, "c.parquet", "prefix:1", engine=engine)
        assert pq.read_table("c.parquet").num_rows == 5
    assert not list((tmp_path / "work").iterdir())


class Sized(msgspec.Struct):
    size: int


class Held(msgspec.Struct):
    content: bytes


def make(work: Sized) -> Held:
    return Held(bytes(work.size))


def test_large_results_are_taken_one_after_the_other() -> None:
    """So many are not held at once, and come in the order of the works all the same."""
    done: list[int] = []

    def noting(work: Sized) -> Held:
        done.append(work.size)
        return make(work)

    works = [Sized(number) for number in range(100)]
    results = LocalEngine(2).map(noting, works, result_bytes=1 << 20)
    assert len(next(results).content) == 0 and len(done) <= 5
    assert [len(result.content) for result in results] == [*range(1, 100)]


def test_a_job_of_spark_has_as_many_works_as_their_results_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the works before gave says how many are next. If those give more all the same, they are run
    once more, in jobs that are smaller."""
    jobs: list[int] = []

    def job(
        _: object, run: Callable[[Sized], Held], works: Sequence[Sized], most: int
    ) -> list[dict[str, Any]]:
        jobs.append(len(works))
        rows = [_row(number, run, work, most).to_pylist()[0] for number, work in enumerate(works)]
        assert len(works) == 1 or not most or sum(len(row["result"]) for row in rows) <= 1_000
        return rows

    monkeypatch.setattr(SparkEngine, "_job", job)
    monkeypatch.setattr(spark_engine, "RESULT_BYTES", 1_000)
    engine = SparkEngine(None)  # type: ignore[arg-type]
    empty = len(msgspec.msgpack.encode(Held(b"")))

    def jobs_of(sizes: list[int], most: int) -> list[int]:
        """Of results of `sizes`."""
        jobs.clear()
        works = [Sized(size - empty) for size in sizes]
        assert [len(each.content) for each in engine.map(make, works, most)] == [
            each.size for each in works
        ]
        return jobs

    assert jobs_of([20] * 60, 500) == [2, 25, 25, 8]
    assert jobs_of([400, 400, 20, 400, 20], 2_000) == [1, 1, 1, 1, 1]
    assert jobs_of([400] * 5, 0) == [5]
    assert jobs_of([20] * 5, 500) == [2, 3]
    assert jobs_of([], 500) == []
    assert jobs_of([20, 20, *[30] * 20, *[200] * 5], 500) == [2, 25, 2, 2, 1]
    assert jobs_of([20, 20, 2_000, 20, 2_000, 20], 500) == [2, 4, 1, 1, 1, 1]


def test_a_place_that_cannot_be_opened_is_left_to_the_pipeline(tmp_path: Path) -> None:
    """An audit takes it for a difference, and looks at the others."""
    (tmp_path / "manifest.json").write_text("torn")
    with engine_of("auto", [Place(archive=str(tmp_path))]) as engine:
        assert isinstance(engine, LocalEngine)


def test_a_folder_that_an_executor_does_not_see_is_told(tmp_path: Path) -> None:
    """Also where another one lies under its name, with an archive of an earlier run."""
    write_directory(tmp_path / "d", [b"a", b"b"], committed_index=1)
    log, missing, another = (str(tmp_path / name) for name in ("d", "other-disk", "a"))
    archive(Place(path=log), another, stop_index=1)
    for run, work in (
        (write_part, PartWork(Place(path=log), missing, "run-a", 0, 2, None)),
        (write_part, PartWork(Place(path=log), f"{another}/_attempts", "run-a", 0, 2, None)),
        (fold, FoldWork(Place(path=log), 0, 2, "prefix:1", missing)),
    ):
        with pytest.raises(ConfigError, match=r"is not there on .*the folder is not shared"):
            run(work)
