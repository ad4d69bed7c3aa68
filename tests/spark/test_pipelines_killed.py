"""What a pipeline on Spark loses while its works are under way, it makes good; a driver that is gone is
started again, and nothing of the first one is left. A master and two workers as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.halted_pipelines import HOLD, PIPELINES, run
from harness.spark_cluster import SparkCluster
from quorumlog import LocalCluster, connect
from quorumlog.pipelines.archive import ATTEMPTS, PARTS, Archive
from tests.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]

STOP_INDEX = 3_000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(members=2, directory=tmp_path_factory.mktemp("members")) as cluster:
        with connect(cluster.servers) as log:
            for first in range(0, STOP_INDEX, 500):
                bodies = [b'{"id": "k%d", "n": %d}' % (n % 53, n) for n in range(first, first + 500)]
                log.append_batch(bodies)
        yield cluster.servers


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark")) as running:
        yield running


class Driver:
    """A process, with the JVM that it starts."""

    def __init__(self, cluster: SparkCluster, log: Path, *arguments: object) -> None:
        self._log = log
        with log.open("wb") as problems:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.halted_pipelines", cluster.master, *map(str, arguments)],
                env=cluster.environment,
                stdout=subprocess.PIPE,
                stderr=problems,
                text=True,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        return True

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def result(self) -> str:
        """Of the pipeline that is under way."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()[-3000:]
        return line


def parent_of(process_id: int) -> int:
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def executor_of(worker_process: int) -> int:
    """The JVM above a Python worker and the daemon that it is a fork of."""
    return parent_of(parent_of(worker_process))


def worker_of(executor: int) -> int:
    """Number of the worker that has started it."""
    command = Path(f"/proc/{executor}/cmdline").read_text().split("\0")
    return int(command[command.index("--hostname") + 1].rpartition(".")[2])


def without_places(result: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(result)
    return {name: value for name, value in found.items() if name not in ("archive", "file", "hold")}


@pytest.mark.parametrize("victim", ["executor", "worker", "driver"])
def test_a_kill_in_the_middle_of_each_pipeline_changes_no_result_and_leaves_nothing(
    servers: str, cluster: SparkCluster, tmp_path: Path, victim: str
) -> None:
    there, here, log = tmp_path / "there", tmp_path / "here", tmp_path / "driver.log"
    for folder in (there, here, *(there / f"gate-{pipeline}" for pipeline in PIPELINES)):
        folder.mkdir()
    driver = Driver(cluster, log, servers, STOP_INDEX, there, *PIPELINES)
    try:
        for number, pipeline in enumerate(PIPELINES):
            gate = there / f"gate-{pipeline}"
            halted = eventually(
                lambda: driver.is_running() and [*gate.iterdir()],  # noqa: B023
                timeout_s=300,
                what=f"a work of {pipeline} in its middle",
            )
            executor = executor_of(int(halted[0].name))
            if victim == "executor":
                os.kill(executor, signal.SIGKILL)
            elif victim == "worker":
                worker = worker_of(executor)
                cluster.kill_worker(worker)
                cluster.start_worker(worker)
            else:
                driver.kill()
                driver = Driver(cluster, log, servers, STOP_INDEX, there, *PIPELINES[number:])
            (gate / "open").touch()
            told = driver.result()
            assert without_places(told) == without_places(
                run(pipeline, servers, STOP_INDEX, here, "", None)
            )
            check_files(pipeline, here, there)
    finally:
        driver.kill()
    assert sorted(path.name for path in there.iterdir() if not path.name.startswith("gate-")) == [
        "archive",
        "latest.parquet",
    ]
    with connect(servers) as client:
        [held] = [reader for reader in client.readers() if reader.name == HOLD]
    assert held.position == STOP_INDEX


def check_files(pipeline: str, here: Path, there: Path) -> None:
    """Those of the killed one are the same, and no attempt is left."""
    if pipeline == "archive":
        ours, theirs = (Archive.open(str(folder / "archive")) for folder in (here, there))
        assert ours.manifest == theirs.manifest and len(ours.manifest.parts) > 4
        for part in ours.manifest.parts:
            one, other = (folder / "archive" / PARTS / part.file for folder in (here, there))
            assert one.read_bytes() == other.read_bytes()
        assert not [*(there / "archive" / ATTEMPTS).iterdir()]
    elif pipeline == "compact":
        latest, again = (pq.read_table(folder / "latest.parquet") for folder in (here, there))
        assert latest.equals(again) and latest.num_rows == 53
