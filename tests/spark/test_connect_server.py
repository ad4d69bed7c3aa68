"""A Connect server that does not answer is told in a sentence, soon, and no token is."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from quorumlog.errors import ConfigError
from quorumlog.server.free_ports import free_ports
from quorumlog.spark.session import _started, check_answers, session

pytestmark = pytest.mark.spark


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of something that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_nobody_or_somebody_else_answers(monkeypatch: pytest.MonkeyPatch, silent: int) -> None:
    monkeypatch.setitem(check_answers.__globals__, "ANSWER_S", 0.2)
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda _: None))
    for port in (*free_ports(1), silent):
        url = f"sc://127.0.0.1:{port}"
        for begin in (session, _started):
            with pytest.raises(ConfigError, match=f"no Connect server answers at {url} within") as told:
                begin("app", f"{url}/;token=SECRET")
            assert "SECRET" not in str(told.value)


@pytest.mark.parametrize("url", ["sc://:99", "sc://host:port", "sc://host/path", "sc://host/;token"])
def test_what_names_no_server(url: str) -> None:
    with pytest.raises(ConfigError, match="names no Connect server; write sc://HOST") as told:
        check_answers(f"{url};token=SECRET")
    assert "SECRET" not in str(told.value)
