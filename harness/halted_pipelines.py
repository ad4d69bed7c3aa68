"""Pipelines on Spark whose works wait in the middle, so that something can be killed then.

    python -m harness.halted_pipelines MASTER SERVERS STOP_INDEX FOLDER ARCHIVE REPLAY_ID PIPELINE...

One runs after the other; MASTER may be the URL of a Connect server. Each of their works reads one batch,
leaves a file with the name of its process in the folder `gate-PIPELINE`, and waits until a file `open`
is there. Results are printed as JSON, one a line. ARCHIVE is where that lies, in FOLDER or an object
store. replay, as REPLAY_ID, goes into the log that it is of.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

import quorumlog.spark
from harness.spark_cluster import SETTINGS
from quorumlog import connect
from quorumlog.pipelines import auditing, compacting, statistics
from quorumlog.pipelines.engine import WorkEngine
from quorumlog.spark.pipelines import Place, SparkEngine, archive, audit, compact, replay_frames
from quorumlog.spark.session import is_connect, running

PIPELINES = ("archive", "audit", "stats", "compact", "replay")
HOLD = "kept"


def run(
    pipeline: str,
    servers: str,
    stop_index: int,
    folder: Path,
    target: str,
    hold: str,
    engine: WorkEngine | None,
) -> str:
    """The result, as JSON; not of replay. `target`: of the archive. Works are small, so that there are
    many."""
    place = Place(servers=servers, batch_bytes=8_000)
    statistics.PART_BYTES = compacting.PART_BYTES = 30_000
    auditing.BLOCK_ENTRIES, auditing.CHUNK_BLOCKS = 64, 8
    found: Any
    if pipeline == "archive":
        found = archive(
            place, target, part_bytes=30_000, stop_index=stop_index, hold=hold, engine=engine
        )
    elif pipeline == "audit":
        with connect(servers) as log:  # a member that does not know its end yet is read less far
            while len({row.committed_index for row in log.status()}) > 1:
                time.sleep(0.01)
        found = audit([place, Place(archive=target)], engine=engine)
    elif pipeline == "stats":
        found = statistics.statistics(place, key="json:id", stop_index=stop_index, engine=engine)
    else:
        file = os.fspath(folder / "latest.parquet")
        found = compact(place, file, "json:id", stop_index=stop_index, engine=engine)
    return msgspec.json.encode(found).decode()


class HaltingEngine(SparkEngine):
    def __init__(self, spark: Any, gate: Path) -> None:
        super().__init__(spark)
        self._gate = gate

    def replay(self, servers: str, stop_index: int, replay_id: str) -> str:
        gate, place = self._gate, Place(servers=servers)

        def halting(rows: Any) -> Any:
            def halted(batches: Iterator[Any]) -> Iterator[Any]:
                for number, batch in enumerate(batches):
                    yield batch
                    if number == 0:
                        _wait_at(gate)

            return rows.select("body").mapInArrow(halted, "body binary")

        options: dict[str, Any] = {"part_bytes": 60_000, "again": True, "stop_index": stop_index}
        found = replay_frames(self.spark, place, place, replay_id, transform=halting, **options)
        return msgspec.json.encode(found).decode()

    def map(
        self, run: Callable[[Any], Any], works: Sequence[Any], result_bytes: int = 0
    ) -> Iterator[Any]:
        return super().map(_halting(run, self._gate), works, result_bytes)


def _halting(run: Callable[[Any], Any], gate: Path) -> Callable[[Any], Any]:
    def halting(work: Any) -> Any:
        from quorumlog.pipelines.places import ServedLog

        whole = ServedLog.batches

        def halted(log: ServedLog, first_index: int, stop_index: int) -> Iterator[Any]:
            for number, batch in enumerate(whole(log, first_index, stop_index)):
                yield batch
                if number == 0:
                    _wait_at(gate)

        ServedLog.batches = halted  # type: ignore[method-assign, assignment]
        try:
            return run(work)
        finally:
            ServedLog.batches = whole  # type: ignore[method-assign]

    halting.__annotations__ = {"return": get_type_hints(run)["return"]}
    return halting


def _wait_at(gate: Path) -> None:
    (gate / str(os.getpid())).touch()
    while not (gate / "open").exists():
        time.sleep(0.01)


@contextmanager
def _session(master: str) -> Iterator[Any]:
    if is_connect(master):
        with running("halting", master) as spark:
            yield spark
        return
    quiet: dict[str, str | int | bool] = {"spark.ui.enabled": False, "spark.log.level": "OFF"}
    yield quorumlog.spark.session("halting", master, **SETTINGS, **quiet)


if __name__ == "__main__":
    master, servers, stop, folder, target, replay_id, *pipelines = sys.argv[1:]
    with _session(master) as spark:
        for pipeline in pipelines:
            engine = HaltingEngine(spark, Path(folder, f"gate-{pipeline}"))
            if pipeline == "replay":
                print(engine.replay(servers, int(stop), replay_id), flush=True)
                continue
            given = (servers, int(stop), Path(folder), target, HOLD, engine)
            print(run(pipeline, *given), flush=True)
