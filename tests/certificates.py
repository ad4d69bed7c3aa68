"""Certificates for tests, good ones and bad ones, of a CA that is made once a run."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from quorumlog.cli import certificates
from quorumlog.config.tables import TlsOptions

NAME = "orders"
HOSTS = ("127.0.0.1", "localhost")


def directory(cluster: str = NAME, number: int = 0) -> Path:
    """Of one CA; another `number`: another CA of the same name."""
    return _directory(cluster, number)


@cache
def _directory(cluster: str, number: int) -> Path:
    made = Path(tempfile.mkdtemp(prefix="quorumlog-ca-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    certificates.init(made, cluster)
    return made


@cache
def member(member_id: str, cluster: str = NAME, number: int = 0) -> certificates.Pair:
    return certificates.member(directory(cluster, number), member_id, HOSTS)


@cache
def user(name: str) -> certificates.Pair:
    return certificates.client(directory(), name)


@cache
def member_valid(from_days: int, to_days: int, member_id: str) -> certificates.Pair:
    """Counted from now."""
    within = Path(tempfile.mkdtemp(dir=directory()))
    for name in ("ca.crt", "ca.key"):
        shutil.copy(directory() / name, within / name)
    starts = datetime.now(UTC) + timedelta(days=from_days)
    return certificates.member(within, member_id, HOSTS, to_days - from_days, starts)


def options_of(pair: certificates.Pair, **given: Any) -> TlsOptions:
    return TlsOptions(str(pair.cert), str(pair.key), str(directory() / "ca.crt"), **given)
