"""What a pipeline on Spark loses while its works are under way, it makes good; a driver that is gone is
started again, and nothing of the first one is left. A master and two workers as processes, a Connect
server beside them, and an archive in an object store, on the way to which requests are cut off and
repeated."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from msgspec import UNSET

from harness.halted_pipelines import HOLD, PIPELINES, run
from harness.object_store import Fault, ObjectStore, Rule, no_fault
from harness.spark_cluster import ConnectServer, SparkCluster
from quorumlog import LocalCluster, connect
from quorumlog.pipelines.archive import ATTEMPTS, PARTS, Archive
from quorumlog.pipelines.archive_folders import folder_at
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
def objects() -> Iterator[ObjectStore]:
    """Executors have its environment, so it is there before them."""
    with ObjectStore("lake") as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        yield store


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, objects: ObjectStore) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark")) as running:
        yield running


def cut_and_repeated() -> Rule:
    """Each request that changes something meets one of the faults, once."""
    met: set[tuple[str, str]] = set()
    faults: Iterator[Fault] = itertools.cycle(("cut", "repeat", "refuse"))

    def rule(method: str, path: str) -> Fault:
        if method in ("GET", "HEAD") or (method, path) in met:
            return "pass"
        met.add((method, path))
        return next(faults)

    return rule


class Driver:
    """A process, with the JVM that it starts."""

    def __init__(self, cluster: SparkCluster, master: str, log: Path, *arguments: object) -> None:
        self._log = log
        with log.open("wb") as problems:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.halted_pipelines", master, *map(str, arguments)],
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
        self._process.wait()

    def last_words(self) -> str:
        """Once it has ended by itself."""
        assert self._process.wait(600) == 1
        return self._log.read_text().splitlines()[-1]

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


def without_places(result: str, target: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(result.replace(target, "TARGET"))
    return {name: value for name, value in found.items() if name not in ("archive", "file", "hold")}


IN_OBJECTS = ("archive", "audit")
"""What meets an object store."""


@pytest.mark.parametrize(
    ("victim", "kind"),
    [
        *itertools.product(("executor", "worker", "driver"), ("folder",)),
        *itertools.product(("executor of Connect", "client", "Connect server"), ("folder",)),
        *itertools.product(("worker", "driver", "client"), ("objects",)),
    ],
)
def test_a_kill_in_the_middle_of_each_pipeline_changes_no_result_and_leaves_nothing(
    servers: str, cluster: SparkCluster, objects: ObjectStore, tmp_path: Path, victim: str, kind: str
) -> None:
    there, here, log = tmp_path / "there", tmp_path / "here", tmp_path / "driver.log"
    for folder in (there, here, *(there / f"gate-{pipeline}" for pipeline in PIPELINES)):
        folder.mkdir()
    replay_id = victim.replace(" ", "-")
    target = f"s3://lake/{replay_id}" if kind == "objects" else str(there / "archive")
    pipelines = IN_OBJECTS if kind == "objects" else PIPELINES
    before = end_of(servers)
    with ExitStack() as stack:
        server, master = None, cluster.master
        if "Connect" in victim or victim == "client":
            server = stack.enter_context(ConnectServer(cluster, tmp_path / "connect"))
            server.wait_until_it_answers()
            master = server.url
        stack.callback(setattr, objects, "rule", no_fault)
        objects.rule = cut_and_repeated()

        def started(*pipelines: str) -> Driver:
            given = (servers, STOP_INDEX, there, target, replay_id, *pipelines)
            driver = Driver(cluster, master, log, *given)
            stack.callback(driver.kill)
            return driver

        driver = started(*pipelines)
        for number, pipeline in enumerate(pipelines):
            gate = there / f"gate-{pipeline}"
            halted = eventually(
                lambda: driver.is_running() and [*gate.iterdir()],  # noqa: B023
                timeout_s=300,
                what=f"a work of {pipeline} in its middle",
            )
            executor = executor_of(int(halted[0].name))
            if victim.startswith("executor"):
                os.kill(executor, signal.SIGKILL)
            elif victim == "worker":
                worker = worker_of(executor)
                cluster.kill_worker(worker)
                cluster.start_worker(worker)
            elif server is not None and victim == "Connect server":
                server.kill()
                assert f"Unreachable: Spark at {master} failed at work: " in driver.last_words()
                server.start()
                server.wait_until_it_answers()
                driver = started(*pipelines[number:])
            else:  # works that it had under way on Connect go on
                driver.kill()
                driver = started(*pipelines[number:])
            (gate / "open").touch()
            told = driver.result()
            if pipeline == "replay":
                check_replayed(servers, before, json.loads(told)["rows"])
                continue
            ours = str(here / "archive")
            expected = run(pipeline, servers, STOP_INDEX, here, ours, "", None)
            assert without_places(told, target) == without_places(expected, ours)
            check_files(pipeline, here, there, target)
        left = eventually(
            lambda: not folder_at(target).sizes(ATTEMPTS), timeout_s=60, what="no attempt is left"
        )
        assert left
    names = sorted(path.name for path in there.iterdir() if not path.name.startswith("gate-"))
    assert names == ([] if kind == "objects" else ["archive", "latest.parquet"])
    with connect(servers) as client:
        [held] = [reader for reader in client.readers() if reader.name == HOLD]
    assert held.position == STOP_INDEX


def end_of(servers: str) -> int:
    with connect(servers) as log:
        return log.end_index() + 1


def check_replayed(servers: str, before: int, rows: int) -> None:
    with connect(servers) as log:
        source = [bytes(entry.body) for entry in log.read(0, STOP_INDEX)]
        assert [bytes(entry.body) for entry in log.read(before)] == source and rows == len(source)


def check_files(pipeline: str, here: Path, there: Path, target: str) -> None:
    """Those of the killed one are the same, and no attempt counts."""
    if pipeline == "archive":
        ours, theirs = Archive.open(str(here / "archive")).manifest, Archive.open(target).manifest
        assert ours == msgspec.structs.replace(theirs, commit=UNSET) and len(ours.parts) > 4
        for part in ours.parts:
            with folder_at(target).open(os.path.join(PARTS, part.file)) as other:
                assert (here / "archive" / PARTS / part.file).read_bytes() == other.read()
    elif pipeline == "compact":
        latest, again = (pq.read_table(folder / "latest.parquet") for folder in (here, there))
        assert latest.equals(again) and latest.num_rows == 53
