"""A misspelt option of the client is an error of types, and one when it runs.

mypy checks this folder, and refuses a `type: ignore` that is not needed: each is the first half of that.
"""

from __future__ import annotations

import pytest

from quorumlog.kv import connect

NOBODY = "127.0.0.1:1"


def test_of_connect() -> None:
    with pytest.raises(TypeError, match="codecc"):
        connect(NOBODY, codecc="json")  # type: ignore[call-arg]


def test_of_reading_and_watching() -> None:
    with connect(NOBODY) as kv:
        with pytest.raises(TypeError, match="lmit"):
            kv.range("a", "b", lmit=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="lmit"):
            kv.prefix("a", lmit=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="page_item"):
            next(kv.scan(page_item=3))  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="prev"):
            kv.watch("a", prev=True)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="prev"):
            kv.watch_prefix("a", prev=True)  # type: ignore[call-arg]
