"""Cache: the folder outside the repository that everything downloaded and built lies in.

Every download goes through its registry's own client (go, cargo, mvn, apt-get, pip), which checks
hashes: against go.sum, Cargo.lock, the registry's checksums, the signed package lists, the hashes in a
requirements file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

PEERS_FOLDER = Path(__file__).resolve().parent
REPOSITORY = PEERS_FOLDER.parents[1]
DEFAULT_CACHE = Path.home() / ".cache" / "quorumlog-bench-peers"
_SET_UP_TIMEOUT_S = 1200.0
_LAST_LINES = 3


class Unavailable(Exception):
    """A system cannot be installed here; the message says why."""


class Cache:
    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().resolve()
        self.bin = self.folder / "bin"
        self._compiled: Path | None = None

    def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Standard output of a command that must succeed; `env` adds to the environment."""
        program = os.fspath(command[0])
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")
        self.bin.mkdir(parents=True, exist_ok=True)
        try:
            done = run_to_end(command, _SET_UP_TIMEOUT_S, cwd=cwd, env=env)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{program} did not end within {_SET_UP_TIMEOUT_S:g} s") from None
        if done.returncode != 0:
            raise Unavailable(f"{program} failed: {last_lines(done.stderr or done.stdout)}")
        return done.stdout

    def go_build(self, module: str, package: str, binary: str) -> Path:
        """Build `package` with the versions that go/MODULE/go.mod pins; Go itself knows what is new."""
        target = self.bin / binary
        self.run(
            ["go", "build", "-trimpath", "-o", target, package],
            cwd=PEERS_FOLDER / "go" / module,
            env={
                "GOPATH": str(self.folder / "go"),
                "GOCACHE": str(self.folder / "go-build"),
                # Without it Go makes its downloads read-only, and the folder cannot be removed.
                "GOFLAGS": "-modcacherw",
                "GOWORK": "off",
            },
        )
        return target

    def cargo_build(self, package: str, binary: str) -> Path:
        """Build what is in rust/PACKAGE with the versions that its Cargo.lock pins."""
        target = self.folder / "cargo-target"
        self.run(
            ["cargo", "build", "--release", "--locked"],
            cwd=PEERS_FOLDER / "rust" / package,
            env={"CARGO_HOME": str(self.folder / "cargo"), "CARGO_TARGET_DIR": str(target)},
        )
        return target / "release" / binary

    def compiled_wheel(self) -> Path:
        """This tree's wheel with a compiled core, unpacked; built once."""
        if self._compiled is not None:
            return self._compiled
        wheels, package = self.folder / "wheel", self.folder / "compiled"
        uv = REPOSITORY / ".uv" / "bin" / "uv"
        if not uv.exists():
            raise Unavailable("uv is missing: run `make setup`")
        self.run(
            [uv, "build", "--clear", "--python", sys.executable, "--out-dir", wheels],
            cwd=REPOSITORY,
            env={"HATCH_BUILD_HOOK_ENABLE_MYPYC": "1"},
        )
        (wheel,) = wheels.glob("*.whl")
        shutil.rmtree(package, ignore_errors=True)
        shutil.unpack_archive(wheel, package, "zip")
        if not list(package.glob("*__mypyc*.so")):
            raise Unavailable(f"nothing in {wheel.name} is compiled")
        self._compiled = package
        return package

    def maven_classpath(self, module: str) -> str:
        """Every jar that java/MODULE/pom.xml needs, as Java's classpath."""
        target = self.folder / f"{module}.classpath"
        self.run(
            [
                *("mvn", "-q", "-B", f"-Dmaven.repo.local={self.folder / 'm2'}"),
                *("dependency:build-classpath", f"-Dmdep.outputFile={target}"),
            ],
            cwd=PEERS_FOLDER / "java" / module,
        )
        return target.read_text().strip()

    def javac(self, module: str, classpath: str) -> str:
        """Compile what is in java/MODULE; returns the classpath with it."""
        target = self.folder / "classes" / module
        sources = sorted((PEERS_FOLDER / "java" / module).glob("*.java"))
        self.run(["javac", "-cp", classpath, "-d", target, *sources])
        return f"{target}{os.pathsep}{classpath}"


def run_to_end(
    command: Sequence[str | os.PathLike[str]],
    timeout_s: float,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Without input, with what it prints; `env` adds to the environment. Raises TimeoutExpired."""
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=timeout_s,
    )


def last_lines(text: str, count: int = _LAST_LINES) -> str:
    """The end of what a program printed, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-count:]) or "it printed nothing"


def go_version(module: str, dependency: str) -> str:
    """The version of `dependency` that go/MODULE/go.mod pins."""
    return pinned_go_version((PEERS_FOLDER / "go" / module / "go.mod").read_text(), dependency)


def pinned_go_version(go_mod: str, dependency: str) -> str:
    found = re.search(rf"^(?:\s|require\s)\s*{re.escape(dependency)}\s+v(\S+)", go_mod, re.MULTILINE)
    assert found, f"{dependency} is not in go.mod"
    return found[1]


def cargo_version(package: str, dependency: str) -> str:
    """The version of `dependency` that rust/PACKAGE/Cargo.lock pins."""
    lock = tomllib.loads((PEERS_FOLDER / "rust" / package / "Cargo.lock").read_text())
    return str(next(found["version"] for found in lock["package"] if found["name"] == dependency))


def maven_version(module: str, artifact: str) -> str:
    """The version of `artifact` that java/MODULE/pom.xml pins."""
    return pinned_maven_version((PEERS_FOLDER / "java" / module / "pom.xml").read_text(), artifact)


def pinned_maven_version(pom: str, artifact: str) -> str:
    found = re.search(
        rf"<artifactId>{re.escape(artifact)}</artifactId>\s*<version>([^<]+)</version>", pom
    )
    assert found, f"{artifact} is not in pom.xml"
    return found[1]
