"""Real etcds and clients of them, built from the Go module proxy into a cache outside the repository."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

CACHE = Path.home() / ".cache" / "quorumlog-etcd"
MODULES = Path(__file__).parent / "go"
VERSIONS = ("3.5", "3.6", "3.7")
_SERVER, _CTL = "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/etcdctl/v3"


class Unavailable(Exception):
    """Nothing can be built here; the message says why."""


class Etcd(NamedTuple):
    version: str
    server: Path
    etcdctl: Path


@cache
def etcd(version: str) -> Etcd:
    """`version`: one of VERSIONS. Raises Unavailable."""
    module = f"etcd-{version}"
    return Etcd(_pinned(module), _built(module, _SERVER, "etcd"), _built(module, _CTL, "etcdctl"))


@cache
def recipes() -> Path:
    """The program of go/recipes, with clientv3. Raises Unavailable."""
    return _built("recipes", ".", "recipes")


def definitions_of(version: str) -> list[Path]:
    """The .proto files of that etcd. Raises Unavailable."""
    module = "go.etcd.io/etcd/api/v3"
    folder = Path(
        _go("list", "-m", "-f", "{{.Dir}}", module, folder=MODULES / f"etcd-{version}").strip()
    )
    return [folder / f"{name}.proto" for name in ("etcdserverpb/rpc", "mvccpb/kv", "authpb/auth")]


@cache
def environment(requirements: Path) -> Path:
    """The Python of a virtual environment with what a file of requirements pins. Raises Unavailable."""
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = CACHE / f"{requirements.stem}-{digest}"
    python = folder / "bin" / "python"
    done = folder / "installed"
    with _only_one():
        if not done.exists():
            uv = Path(__file__).parents[2] / ".uv" / "bin" / "uv"
            if not uv.exists():
                raise Unavailable("uv is missing: run `make setup`")
            _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder])
            _run([uv, "pip", "install", "--quiet", "--python", python, "-r", requirements])
            done.touch()
    return python


def _pinned(module: str) -> str:
    words = (MODULES / module / "go.mod").read_text().split()
    return words[words.index(_SERVER) + 1].removeprefix("v")


def _built(module: str, package: str, name: str) -> Path:
    """With the versions that go/MODULE/go.mod and go.sum pin; Go itself knows what is up to date."""
    target = CACHE / "bin" / f"{name}-{module}"
    with _only_one():
        _go("build", "-trimpath", "-o", target, package, folder=MODULES / module)
    return target


def _go(*arguments: str | Path, folder: Path) -> str:
    go = shutil.which("go")
    if go is None:
        raise Unavailable("go is not installed")
    # Writable modules can be removed with the folder.
    own = {"GOFLAGS": "-modcacherw", "GOWORK": "off", "GOPATH": str(CACHE / "go")}
    return _run([go, *arguments], folder, {**os.environ, **own})


@contextmanager
def _only_one() -> Iterator[None]:
    """A build fills every core, and two would make the same."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(
    command: Sequence[str | Path], folder: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise Unavailable(f"{' '.join(map(str, command))}: {ended.stderr.strip()[-500:]}")
    return ended.stdout
