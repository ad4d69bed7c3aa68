"""A Spark session with what Python data sources need, on a machine that may have no Java.

docs/spark.md has the table of what is set, and why.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from quorumlog.errors import ConfigError, Unreachable, the_extra
from quorumlog.spark.connect_server import bound_retries, check_answers, is_connect, shown
from quorumlog.spark.java import JavaNotFound, prepare_java_home, publish_folder, user_cache_dir
from quorumlog.spark.short_errors import EXPECTED

_LOOPBACK = "127.0.0.1"
_FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Spark's default starts programs of the shell for each of a micro-batch's two files."""


def session(
    app_name: str = "quorumlog", master: str = "local[*]", **conf: str | int | bool
) -> SparkSession:
    """A session ready for `spark.read.format("quorumlog")`; the active one if there is one, with
    those settings of `conf` that can still be changed. `master` may be the URL of a Connect server,
    `sc://HOST:PORT`.

    `conf`: further Spark settings, which win over those made here; names with dots go in as
    `session(**{"spark.sql.shuffle.partitions": 4})`. Environment variables that are set already
    (PYSPARK_PYTHON, SPARK_HOME, SPARK_LOCAL_IP) are kept. Raises JavaNotFound, and ConfigError if no
    Connect server answers.
    """
    builder: Any = SparkSession.builder
    settings: Mapping[str, str | int | bool] = conf
    if SparkSession.getActiveSession() is None:
        if is_connect(master):  # a server has Java, and settings of its own
            check_answers(master)
            builder = builder.appName(app_name).remote(master)
        else:
            is_local = master.startswith("local")
            prepare_environment(is_local=is_local)
            builder = builder.appName(app_name).master(master)
            settings = {**default_settings(_scratch_dir(), is_local=is_local), **conf}
    for name, value in settings.items():
        builder = builder.config(name, _text(value))
    spark: SparkSession = builder.getOrCreate()
    return spark


@contextmanager
def running(app_name: str, master: str) -> Iterator[SparkSession]:
    """A session for a command. Raises ConfigError, in a sentence, where Spark does not start, and
    Unreachable where it is lost."""
    spark = _started(app_name, master)
    try:
        yield spark
    except EXPECTED:
        raise
    except Exception as error:
        sentence = _lost(error)
        if not sentence:
            raise
        if is_connect(master):
            bound_retries(spark, 0)  # of the farewell
        raise Unreachable(
            f"Spark at {shown(master)} failed at work: {sentence}. What is written stays; repeat the"
            " command"
        ) from None
    finally:
        spark.stop()


def _started(app_name: str, master: str) -> SparkSession:
    try:
        spark = session(app_name, master)
        if is_connect(master):
            bound_retries(spark)
        return spark
    except ImportError:
        raise ConfigError(f"Spark at {shown(master)} needs {the_extra('spark-connect')}") from None
    except JavaNotFound as error:
        raise ConfigError(str(error)) from None
    except ConfigError:
        raise
    except Exception as error:  # of py4j, or of a Connect client
        raise ConfigError(
            f"Spark at {shown(master)} does not start, is its master there? {_first_lines(error)}"
        ) from None


def _lost(error: Exception) -> str:
    """Empty: it is not Spark that has failed, but what ran on it."""
    module, text = type(error).__module__.partition(".")[0], str(error)
    is_of_spark = module in ("pyspark", "py4j", "grpc") or isinstance(error, ConnectionError)
    return "" if not is_of_spark or "Traceback (most recent call last)" in text else _first_lines(error)


def _first_lines(error: Exception) -> str:
    details: Any = getattr(error, "details", None)  # of grpc, whose text is the whole of a call
    text = (details() if callable(details) else "") or str(error)
    return " ".join(text.splitlines()[:2]).rstrip(". ")


def prepare_environment(*, is_local: bool) -> None:
    """What the JVM and the workers take from the environment, before the JVM starts."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = prepare_java_home()
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        if "SPARK_HOME" not in os.environ:
            os.environ["SPARK_HOME"] = make_shadow_home(user_cache_dir())


def default_settings(scratch_dir: str, *, is_local: bool) -> dict[str, str | int | bool]:
    settings: dict[str, str | int | bool] = {
        "spark.python.unix.domain.socket.enabled": True,
        "spark.sql.python.filterPushdown.enabled": True,
        "spark.ui.showConsoleProgress": False,
    }
    if is_local:
        settings |= {
            "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.local.dir": scratch_dir,
            "spark.sql.warehouse.dir": os.path.join(scratch_dir, "warehouse"),
            # Artifacts and sockets go to java.io.tmpdir. A socket's path has at most 107 bytes, so
            # the scratch directory must have a short name.
            "spark.driver.defaultJavaOptions": f"-Djava.io.tmpdir={scratch_dir}",
        }
    return settings


def make_shadow_home(cache_dir: str) -> str:
    """A SPARK_HOME of links into the installed pyspark. Without `python/lib/pyspark.zip` every worker
    imports the compiled pyspark of this environment, and does not compile the zip's at each start."""
    installed = os.path.dirname(os.path.realpath(pyspark.__file__))
    digest = hashlib.sha256(installed.encode()).hexdigest()[:12]

    def fill(folder: str) -> None:
        for name in ("jars", "bin", "sbin"):
            os.symlink(os.path.join(installed, name), os.path.join(folder, name))

    return publish_folder(cache_dir, f"spark-home-{pyspark.__version__}-{digest}", fill)


def _scratch_dir() -> str:
    folder = tempfile.mkdtemp(prefix="quorumlog-spark-")
    atexit.register(_clean_up, folder)
    return folder


def _clean_up(folder: str) -> None:
    """The session goes first: a running JVM would complain about folders that vanish."""
    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()
    shutil.rmtree(folder, ignore_errors=True)


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
