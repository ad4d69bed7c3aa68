from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import quorumlog.spark
from quorumlog.spark.session import default_settings, make_shadow_home

pytestmark = pytest.mark.spark


def test_the_session_has_what_python_data_sources_need(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert conf.get("spark.ui.showConsoleProgress") == "false"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert conf.get("spark.sql.shuffle.partitions") == "2"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_workers_run_this_interpreter_with_the_compiled_pyspark(spark: SparkSession) -> None:
    def where(_: object) -> list[tuple[str, str]]:
        import pyspark

        return [(sys.executable, pyspark.__file__)]

    [(executable, file)] = spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect()
    assert executable == sys.executable
    assert file == pyspark.__file__


def test_a_second_call_gives_the_same_session_and_sets_what_it_names(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.ansi.enabled")
    conf: dict[str, Any] = {"spark.sql.ansi.enabled": before == "false"}
    again = quorumlog.spark.session(**conf)
    assert again is spark
    assert spark.conf.get("spark.sql.ansi.enabled") != before
    spark.conf.set("spark.sql.ansi.enabled", before or "")
    assert spark.conf.get("spark.sql.ansi.enabled") == before


def test_scratch_files_stay_in_one_short_folder(spark: SparkSession) -> None:
    scratch = spark.sparkContext.getConf().get("spark.local.dir")
    assert scratch is not None
    assert Path(scratch).is_dir()
    assert len(scratch) < 60, "a socket's path has at most 107 bytes"


def test_a_cluster_keeps_its_own_addresses_and_folders() -> None:
    settings = default_settings("/scratch", is_local=False)
    assert not [name for name in settings if name.startswith(("spark.driver.", "spark.local."))]
    assert settings["spark.python.unix.domain.socket.enabled"] is True


def test_the_shadow_home_has_programs_and_jars_but_no_python(tmp_path: Path) -> None:
    home = Path(make_shadow_home(str(tmp_path)))
    assert sorted(path.name for path in home.iterdir()) == ["bin", "jars", "sbin"]
    assert (home / "bin" / "spark-submit").is_file()
    assert make_shadow_home(str(tmp_path)) == str(home)


def test_the_format_is_found_without_a_register_call_and_names_a_wrong_option(
    spark: SparkSession,
) -> None:
    with pytest.raises(
        AnalysisException, match="unknown option 'topic' of format quorumlog; valid are"
    ) as error:
        spark.read.format("quorumlog").option("servers", "127.0.0.1:1").option("topic", "x").load()
    assert len(str(error.value).splitlines()) <= 3, "no traceback of a worker"
    with pytest.raises(AnalysisException, match="Write CREATE TEMPORARY VIEW log USING quorumlog"):
        spark.sql("CREATE TABLE log USING quorumlog OPTIONS (servers '127.0.0.1:1')")


def test_a_wrong_schema_is_an_error_that_names_the_columns(spark: SparkSession) -> None:
    reading = spark.read.format("quorumlog").schema("key BINARY").option("path", "/nowhere")
    with pytest.raises(AnalysisException, match="names the column 'key'; format quorumlog has group"):
        reading.load().count()


@pytest.fixture
def path_without_java(tmp_path: Path) -> Path:
    """A folder with every program of this machine but Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("/usr/bin", "/bin"):
        for program in Path(name).iterdir():
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return folder


@pytest.mark.long
def test_spark_starts_on_a_machine_without_java(path_without_java: Path, tmp_path: Path) -> None:
    """The first use on a fresh machine: nothing but this environment, and a cache that is empty."""
    program = """
import os, shutil
import quorumlog.spark
assert shutil.which("java") is None
spark = quorumlog.spark.session(master="local[1]", **{"spark.ui.enabled": False})
print("rows", spark.range(10).count())
print("java", os.environ["JAVA_HOME"])
"""
    environment = {
        "PATH": str(path_without_java),
        "HOME": str(tmp_path),
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rows 10" in done.stdout
    assert f"java {tmp_path}/.cache/quorumlog/java-shim-" in done.stdout


def test_a_connect_server_is_a_master_that_needs_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its URL goes to `remote`, and the settings of a driver are none of its client's."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda _: None))
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda self: made.append(self._options))
    monkeypatch.setitem(quorumlog.spark.session.__globals__, "prepare_environment", None)
    monkeypatch.setitem(quorumlog.spark.session.__globals__, "check_answers", lambda _: None)
    quorumlog.spark.session("app", "sc://spark.example.com:15002", **{"spark.a": 1})
    assert made == [
        {"spark.app.name": "app", "spark.remote": "sc://spark.example.com:15002", "spark.a": "1"}
    ]
