"""The image, on a Debian that is made here, without root's runtime and without a registry of images."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from quorumlog import connect
from quorumlog.server.free_ports import free_ports
from tests.waiting import eventually

ROOT = Path(__file__).parent.parent.parent
PYTHON_OF = {"bookworm": "3.11", "trixie": "3.13"}
TOOLS = ("buildah", "mmdebstrap")
pytestmark = [
    pytest.mark.ship,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        any(shutil.which(tool) is None for tool in TOOLS),
        reason=f"apt-get install --no-install-recommends {' '.join(TOOLS)}",
    ),
]


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
    include = "--include=python3,python3-venv"
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
    look = ("inspect", "--type", "image", "--format")
    assert buildah(*look, "{{.Docker.Config.User}}", "quorumlog") == "10001"
    assert "/healthz" in buildah(*look, "{{.Docker.Config.Healthcheck.Test}}", "quorumlog")
    container = buildah("from", "quorumlog")
    port, admin = free_ports(2)
    run = ("run", "--isolation", "chroot", container, "--")
    assert buildah(*run, "id", "-u") == "10001"
    assert "compiled" in buildah(*run, "quorumlog", "--version")
    member = ("--id=n0", f"--members=n0=127.0.0.1:{port}", "--data-dir=/var/lib/quorumlog")
    with subprocess.Popen(
        buildah.command(*run, "quorumlog", "serve", *member, f"--admin=127.0.0.1:{admin}"),
        stdout=subprocess.PIPE,
        process_group=0,
    ) as process:
        try:
            with connect(f"127.0.0.1:{port}") as log:
                assert log.append(b"from an image", timeout_ms=60_000).first_index >= 0

            def is_ready() -> bool:
                with suppress(OSError):
                    url = f"http://127.0.0.1:{admin}/readyz"
                    return bool(urllib.request.urlopen(url, timeout=5).status == 200)
                return False

            eventually(is_ready, what="a member that says it is ready")
        finally:
            os.killpg(process.pid, 15)
            process.communicate(timeout=60)
