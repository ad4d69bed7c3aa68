"""Ctrl-C at any moment: status 130 and no traceback; and SIGHUP before a member can read its file again.

Imported before everything else, so it imports next to nothing. Python's own handler raises
KeyboardInterrupt wherever the program is. Inside an import that may end in any other error, and before
and after the command nobody catches it: there the process ends at once. Nothing is under way yet, or any
more.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_OF_SIGNAL = 128
"""Plus the number of the signal, as shells have it."""

_is_running = False
"""A command runs that may have something to give back."""
_hung_up = False


def watch_signals() -> None:
    """From here on, for the life of the process. A signal that is ignored, by `nohup` say, stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    if sys.argv[1:2] == ["serve"] and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _note_hang_up)


@contextmanager
def running() -> Iterator[None]:
    """Inside, an interrupt is a KeyboardInterrupt, so that what is open is closed."""
    global _is_running
    _is_running = True
    try:
        yield
    finally:
        _is_running = False


def hung_up_before() -> bool:
    """SIGHUP came before a member listened for it."""
    return _hung_up


def _interrupted(number: int, frame: FrameType | None) -> None:
    if _is_running and not _is_importing(frame):
        raise KeyboardInterrupt
    os._exit(EXIT_OF_SIGNAL + number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False


def _note_hang_up(number: int, frame: FrameType | None) -> None:
    global _hung_up
    _hung_up = True
