"""The image and the package of Debian, on a Debian that is made here, without a registry of images."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from quorumlog import connect
from quorumlog.server.free_ports import free_ports
from tests.waiting import eventually

ROOT = Path(__file__).parent.parent.parent
UNIT = ROOT / "packaging" / "systemd" / "quorumlog.service"
ADMIN_PORT = 9464
"""That of the image's health check: the network here is the machine's."""
PYTHON_OF = {"bookworm": "3.11", "trixie": "3.13"}
pytestmark = [pytest.mark.ship, pytest.mark.timeout(1800)]


class Buildah:
    def __init__(self, folder: Path) -> None:
        self._options = [
            *("--storage-driver", "vfs"),
            *("--root", str(folder / "storage"), "--runroot", str(folder / "run")),
        ]

    def command(self, *arguments: str | Path) -> list[str]:
        return ["buildah", *self._options, *map(str, arguments)]

    def __call__(self, *arguments: str | Path) -> str:
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout.strip()


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """With the image `quorumlog`, on the Debian that this machine runs."""
    folder = tmp_path_factory.mktemp("buildah")
    base, context = folder / "base", folder / "context"
    base.mkdir()
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    include = "--include=python3,python3-venv,systemd-standalone-sysusers"
    made = ["mmdebstrap", "--quiet", "--variant=minbase", include, release, str(base / "base.tar")]
    subprocess.run(made, check=True)
    (base / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
    # All that pip is to find: the isolation here has no network of its own to ask over.
    (context / "dist").mkdir(parents=True)
    shutil.copytree(ROOT / "packaging", context / "packaging")
    python = PYTHON_OF[release]
    (wheel,) = (ROOT / "dist").glob(f"quorumlog-*-cp{python.replace('.', '')}-*manylinux*.whl")
    shutil.copy(wheel, context / "dist")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [folder / "venv" / "bin" / "pip", "download", "--quiet", "--only-binary=:all:"]
    of = ["--python-version", python, "--dest", context / "dist", f"{wheel}[admin,tls]"]
    subprocess.run([*pip, *of], check=True)
    buildah = Buildah(folder)
    try:
        build = ("bud", "--isolation", "chroot", "--format", "docker", "--quiet")
        buildah(*build, "--tag", "base", base)
        dockerfile = ("--file", context / "packaging" / "docker" / "Dockerfile")
        given = ("--build-arg", "BASE=localhost/base", "--build-arg", "PIP_NO_INDEX=1")
        buildah(*build, *given, *dockerfile, "--tag", "quorumlog", context)
        yield buildah
    finally:
        with suppress(AssertionError):
            buildah("rm", "--all")
            buildah("rmi", "--all", "--force")
        shutil.rmtree(folder, ignore_errors=True)


def test_a_member_runs_in_it_without_root_and_says_how_it_is(buildah: Buildah) -> None:
    config = json.loads(buildah("inspect", "--type", "image", "quorumlog"))["Docker"]["config"]
    assert config["User"] == "10001"
    kind, *check = config["Healthcheck"]["Test"]
    assert kind == "CMD"
    container = buildah("from", "quorumlog")
    run = ("run", "--isolation", "chroot", container, "--")
    assert buildah(*run, "id", "-u") == "10001"
    assert "compiled" in buildah(*run, "quorumlog", "--version")
    answers(buildah.command(*run, "quorumlog", "serve"), then=buildah.command(*run, *check))
    # Nobody is there any more.
    assert subprocess.run(buildah.command(*run, *check), capture_output=True, check=False).returncode


def test_the_package_of_debian_installs_and_its_member_runs(buildah: Buildah) -> None:
    (package,) = (ROOT / "dist").glob("quorumlog_*.deb")
    container = buildah("from", "base")
    buildah("copy", container, package, "/tmp/")
    run = ("run", "--isolation", "chroot")
    buildah(*run, container, "--", "dpkg", "--install", f"/tmp/{package.name}")
    assert "compiled" in buildah(*run, container, "--", "quorumlog", "--version")
    unit = buildah(*run, container, "--", "cat", "/usr/lib/systemd/system/quorumlog.service")
    assert unit == UNIT.read_text().strip()
    (program,) = re.findall(r"^ExecStart=(\S+)", unit, re.MULTILINE)
    made = ("install", "--directory", "--owner=quorumlog", "/var/lib/quorumlog")
    buildah(*run, container, "--", *made)  # as StateDirectory= does
    answers(buildah.command(*run, "--user", "quorumlog", container, "--", program, "serve"))
    buildah(*run, container, "--", "dpkg", "--purge", "quorumlog")


def answers(serve: list[str], then: Sequence[str] = ()) -> None:
    """It commits an entry, and says that it is ready; `then`: a command, which succeeds."""
    (port,) = free_ports(1)
    member = ("--id=n0", f"--members=n0=127.0.0.1:{port}", "--data-dir=/var/lib/quorumlog/n0")
    with subprocess.Popen(
        [*serve, *member, f"--admin=127.0.0.1:{ADMIN_PORT}"], stdout=subprocess.PIPE, process_group=0
    ) as process:
        try:
            with connect(f"127.0.0.1:{port}") as log:
                assert log.append(b"shipped", timeout_ms=60_000).first_index >= 0

            def is_ready() -> bool:
                with suppress(OSError):
                    url = f"http://127.0.0.1:{ADMIN_PORT}/readyz"
                    return bool(urllib.request.urlopen(url, timeout=5).status == 200)
                return False

            eventually(is_ready, what="a member that says it is ready")
            assert not then or subprocess.run(then, check=False).returncode == 0
        finally:
            os.killpg(process.pid, 15)
            process.communicate(timeout=60)
