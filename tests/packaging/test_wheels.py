"""What `make wheels` has made, in environments without a compiler that have nothing else in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
UV = ROOT / ".uv" / "bin" / "uv"
DIST = ROOT / "dist"
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}
WHEELS = sorted(DIST.glob("quorumlog-*-cp31[123]-*.whl"))
"""That of `make wheel-3.14` is tried where it is made."""

pytestmark = [pytest.mark.ship, pytest.mark.timeout(900)]

PROGRAM = """
import importlib.metadata, tempfile, threading
from quorumlog import connect
from quorumlog.kv.testing import LocalStores
from quorumlog.server import LocalCluster

with LocalCluster(3) as cluster, connect(cluster.servers) as log:
    end = log.append_batch([b"a", b"b"]).last_index
    assert [entry.body for entry in log.read(end - 1, end + 1)] == [b"a", b"b"]
about = importlib.metadata.metadata("quorumlog")
print(about["Version"], len(about.get_all("Project-URL")), len(about.get_all("Classifier")))
"""


def installed(python: str, what: Path, folder: Path) -> Path:
    environment = {**os.environ, **NO_COMPILER}
    subprocess.run([UV, "venv", "--quiet", "--python", python, folder], check=True, env=environment)
    subprocess.run(
        [UV, "pip", "install", "--quiet", "--python", folder / "bin" / "python", what],
        check=True,
        env=environment,
    )
    return folder / "bin"


def said(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def python_of(wheel: Path) -> str:
    tag = wheel.name.split("-")[2]
    return f"{tag[2]}.{tag[3:]}"


def test_there_is_a_wheel_for_each_python() -> None:
    assert WHEELS, "run make wheels first"
    assert all("manylinux" in wheel.name for wheel in WHEELS)


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.name.split("-")[2])
def test_a_wheel_is_installed_without_a_compiler_and_is_compiled(wheel: Path, tmp_path: Path) -> None:
    bin_folder = installed(python_of(wheel), wheel, tmp_path / "venv")
    assert "compiled" in said(bin_folder / "quorumlog", "--version")
    assert said(bin_folder / "python", "-c", PROGRAM)


def test_the_source_archive_is_built_without_a_compiler(tmp_path: Path) -> None:
    (archive,) = DIST.glob("quorumlog-*.tar.gz")
    bin_folder = installed(sys.executable, archive, tmp_path / "venv")
    assert "compiled" not in said(bin_folder / "quorumlog", "--version")
    assert said(bin_folder / "python", "-c", PROGRAM)
