"""Connections of strangers are a line a minute, and ports on loopback are no warning."""

from __future__ import annotations

import logging

import pytest

from quorumlog.server.strangers import QUIET_S, StrayLog, open_port_level


def test_strangers_get_a_line_a_minute_that_counts_those_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = [0.0]
    strays = StrayLog(logging.getLogger("quorumlog.tests.strays"), lambda: clock[0])
    for second in range(int(2 * QUIET_S) + 1):
        clock[0] = second
        strays.closing(f"10.0.0.1:{second}", "no frame")
    assert caplog.messages == [
        "closing the connection of 10.0.0.1:0: no frame",
        "closing the connection of 10.0.0.1:60: no frame (and 59 more since the last line of these)",
        "closing the connection of 10.0.0.1:120: no frame (and 59 more since the last line of these)",
    ]


@pytest.mark.parametrize(
    ("host", "level"),
    [
        ("127.0.0.1", "INFO"),
        ("::1", "INFO"),
        ("localhost", "INFO"),
        ("0.0.0.0", "WARNING"),
        ("h", "WARNING"),
    ],
)
def test_a_port_that_others_reach_is_warned_of(host: str, level: str) -> None:
    assert logging.getLevelName(open_port_level(host)) == level
