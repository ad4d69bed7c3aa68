"""Whoever ends a program of the repository ends it in order: members are processes of their own."""

from __future__ import annotations

import signal
from types import FrameType


def end_as_ctrl_c_does() -> None:
    """From here on SIGTERM and SIGHUP raise KeyboardInterrupt too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
