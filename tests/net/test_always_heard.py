"""A connection whose other side says little and is sent much, as a slave of a broker."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.frame import Frame


class Paused:
    """A transport that counts whether it is read."""

    def __init__(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


@pytest.mark.parametrize("is_always_heard", [False, True])
def test_who_is_always_heard_is_heard_while_it_does_not_read(is_always_heard: bool) -> None:
    """A master gave up a slave on a slow line, whose reports it did not read, as a silent one."""
    heard: list[Frame] = []
    loop = asyncio.new_event_loop()
    turn = LoopTurn(loop)
    connection = Connection(turn, lambda connection, frame: heard.append(frame), lambda *lost: None)
    transport = Paused()
    connection._transport = cast(Any, transport)
    connection.is_always_heard = is_always_heard
    connection.pause_writing()
    connection._take([Frame("", cast(Any, b"report"), None)])
    assert bool(heard) is transport.is_read is is_always_heard
    loop.close()
