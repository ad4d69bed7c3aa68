"""Whoever catches an error finds it in the package, without loading more than errors."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

import quorumlog
from quorumlog import client, errors


def kinds_of(root: type[Exception]) -> Iterator[type[Exception]]:
    yield root
    for kind in root.__subclasses__():
        yield from kinds_of(kind)


def test_every_error_is_imported_from_the_package() -> None:
    for module in pkgutil.walk_packages(client.__path__, "quorumlog.client."):
        importlib.import_module(module.name)
    roots = (errors.LedgerError, errors.ConfigError, errors.ProtocolViolation, errors.StoreFailure)
    ours = ("quorumlog.errors", "quorumlog.client")  # Spark's, if loaded, are told by Spark
    kinds = {kind for root in roots for kind in kinds_of(root) if kind.__module__.startswith(ours)}
    assert {quorumlog.StreamOutcomeUnknown, quorumlog.LeaderNotReady} <= kinds
    for kind in kinds:
        assert kind.__name__ in quorumlog.__all__, kind
        assert getattr(quorumlog, kind.__name__) is kind


@pytest.mark.processes
def test_an_error_loads_errors_alone() -> None:
    program = "import sys, quorumlog; quorumlog.NotLeader, quorumlog.Unreachable; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("quorumlog")}
    assert loaded == {"quorumlog", "quorumlog.errors", "quorumlog.version"}
