"""Pipelines on Spark whose works wait in the middle, so that something can be killed then.

    python -m harness.halted_pipelines MASTER SERVERS STOP_INDEX FOLDER PIPELINE...

One runs after the other. Each of its works reads one batch, leaves a file with the name of its process
in the folder `gate-PIPELINE`, and waits until a file `open` is there. Results are printed as JSON, one a
line.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

import quorumlog.spark
from harness.spark_cluster import SETTINGS
from quorumlog.pipelines import auditing, compacting, statistics
from quorumlog.pipelines.engine import Engine
from quorumlog.spark.pipelines import Place, SparkEngine, archive, audit, compact

PIPELINES = ("archive", "audit", "stats", "compact")
HOLD = "kept"


def run(
    pipeline: str, servers: str, stop_index: int, folder: Path, hold: str, engine: Engine | None
) -> str:
    """The result, as JSON. What is written lies in `folder`. Works are small, so that there are many."""
    place = Place(servers=servers, batch_bytes=8_000)
    statistics.PART_BYTES = compacting.PART_BYTES = 30_000
    auditing.BLOCK_ENTRIES, auditing.CHUNK_BLOCKS = 64, 8
    found: Any
    if pipeline == "archive":
        target = os.fspath(folder / "archive")
        found = archive(
            place, target, part_bytes=30_000, stop_index=stop_index, hold=hold, engine=engine
        )
    elif pipeline == "audit":
        found = audit([place], engine=engine)
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

    def map(self, run: Callable[[Any], Any], works: Sequence[Any]) -> Iterator[Any]:
        return super().map(_halting(run, self._gate), works)


def _halting(run: Callable[[Any], Any], gate: Path) -> Callable[[Any], Any]:
    def halting(work: Any) -> Any:
        from quorumlog.pipelines.places import ServedLog

        whole = ServedLog.batches

        def halted(log: ServedLog, first_index: int, stop_index: int) -> Iterator[Any]:
            for number, batch in enumerate(whole(log, first_index, stop_index)):
                yield batch
                if number == 0:
                    (gate / str(os.getpid())).touch()
                    while not (gate / "open").exists():
                        time.sleep(0.01)

        ServedLog.batches = halted  # type: ignore[method-assign, assignment]
        try:
            return run(work)
        finally:
            ServedLog.batches = whole  # type: ignore[method-assign]

    halting.__annotations__ = {"return": get_type_hints(run)["return"]}
    return halting


if __name__ == "__main__":
    master, servers, stop_index, folder, *pipelines = sys.argv[1:]
    quiet: dict[str, str | int | bool] = {"spark.ui.enabled": False, "spark.log.level": "OFF"}
    spark = quorumlog.spark.session("halting", master, **SETTINGS, **quiet)
    for pipeline in pipelines:
        engine = HaltingEngine(spark, Path(folder, f"gate-{pipeline}"))
        print(run(pipeline, servers, int(stop_index), Path(folder), HOLD, engine), flush=True)
