"""A standalone cluster of Spark on this machine: a master and workers, each on a loopback address of its
own, so that Spark takes them for several hosts and lets attempts of one task run on two of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from quorumlog.errors import ConfigError
from quorumlog.server.free_ports import free_ports
from quorumlog.spark.session import check_answers, make_shadow_home, prepare_java_home, user_cache_dir

_DEPLOY = "org.apache.spark.deploy"
_POLL_S = 0.1
_CONNECT_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


class SparkCluster:
    """`with SparkCluster(folder) as cluster:` starts them; none is left. Executors take the Python
    environment of this process, with what is installed in it."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        [port] = free_ports(1)
        self.master = f"spark://127.0.0.1:{port}"
        self._folder = folder
        self._port = port
        self._workers = workers
        self._stack = ExitStack()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        """Workers, by number."""
        self.environment = {
            **os.environ,
            "SPARK_HOME": make_shadow_home(user_cache_dir()),
            "JAVA_HOME": prepare_java_home(),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        master = self._start("127.0.0.1", "master.Master", "--port", str(self._port))
        while not _listens(self._port):  # a driver gives up after a minute
            assert master.poll() is None, self.log.read_text()[-3000:]
            time.sleep(_POLL_S)
        for number in range(1, self._workers + 1):  # they dial the master until it answers
            self.start_worker(number)
        return self

    def start_worker(self, number: int) -> None:
        work = str(self._folder / f"work{number}")
        sizes = ("--cores", "2", "--memory", "1g", "--work-dir", work)
        started = self._start(f"127.0.0.{number}", "worker.Worker", *sizes, self.master)
        self._running[number] = started

    def kill_worker(self, number: int) -> None:
        """Its executors end themselves."""
        self._running[number].kill()
        self._running[number].wait()

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    @property
    def log(self) -> Path:
        return self._folder / "spark.log"

    def _start(self, host: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [f"{self.environment['SPARK_HOME']}/bin/spark-class", f"{_DEPLOY}.{kind}"]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*command, "--host", host, "--webui-port", "0", *arguments],
                env={**self.environment, "SPARK_LOCAL_IP": host},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


SETTINGS: dict[str, str | int | bool] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}
"""Of a driver beside it: it waits for all executors."""


class ConnectServer:
    """`with ConnectServer(cluster, folder) as server:` is a driver on the cluster that clients share."""

    def __init__(self, cluster: SparkCluster, folder: Path) -> None:
        [self._port] = free_ports(1)
        self.url = f"sc://127.0.0.1:{self._port}"
        self.log = folder / "connect.log"
        self._folder = folder
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def wait_until_it_answers(self) -> None:
        while True:
            assert self._process is not None and self._process.poll() is None, self.log.read_text()[
                -3000:
            ]
            with suppress(ConfigError):
                return check_answers(self.url)

    def start(self) -> None:
        environment = self._cluster.environment
        settings = {
            **SETTINGS,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": self._port,
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": self._folder / "warehouse",
        }
        command = [f"{environment['SPARK_HOME']}/bin/spark-class", "org.apache.spark.deploy.SparkSubmit"]
        command += ["--master", self._cluster.master, "--class", _CONNECT_SERVER]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "spark-internal"],
                env={**environment, "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "700m"},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __exit__(self, *reason: object) -> None:
        self.kill()
