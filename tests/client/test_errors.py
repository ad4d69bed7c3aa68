"""Whoever catches an error finds it in the package, without loading more than errors."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

import quorumlog
from quorumlog import broker, client, errors, kv


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


PUBLIC_ERRORS = [
    kind
    for product in (quorumlog, kv, broker)
    for kind in (getattr(product, name) for name in product.__all__)
    if isinstance(kind, type) and issubclass(kind, Exception) and kind is not broker.SuspendQueue
]
"""Which a caller may get."""


def made(kind: type[Exception]) -> Exception:
    if issubclass(kind, errors.DirectoryDamaged):
        return kind("segment 0 is torn", path="n0/data", position=7, index=5)
    if issubclass(kind, quorumlog.StreamOutcomeUnknown):
        return kind("no answer", quorumlog.StreamProgress(1, 2, 3))
    return kind("no answer")


@pytest.mark.parametrize("kind", PUBLIC_ERRORS)
def test_an_error_of_a_worker_process_arrives_in_its_parent(kind: type[Exception]) -> None:
    error = made(kind)
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is kind
    assert (str(copied), vars(copied)) == (str(error), vars(error))


@pytest.mark.processes
def test_an_error_loads_errors_alone() -> None:
    program = "import sys, quorumlog; quorumlog.NotLeader, quorumlog.Unreachable; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("quorumlog")}
    assert loaded == {"quorumlog", "quorumlog.errors", "quorumlog.version"}
