"""Ctrl-C and SIGTERM at any moment: status 130 or 143 and no traceback; and SIGHUP before a member can
read its file again.

Imported before everything else, so it imports nothing that Python has not loaded by then: `signal` loads
`enum`, and during that nothing is caught. A KeyboardInterrupt inside an import may end in any other
error, and before and after the command it is not caught: there the process ends at once.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

EXIT_OF_SIGNAL = 128
"""Plus the number of the signal, as shells have it."""

_is_running = False
"""A command runs that may have something to give back."""
_ended_by: int = _signal.SIGINT
_hung_up = False


def watch_signals() -> None:
    """From here on, for the life of the process. A signal that is ignored, by `nohup` say, stays so."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _interrupted)
    # The first process of a container gets no signal without a handler: it would wait for SIGKILL.
    if _signal.getsignal(_signal.SIGTERM) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGTERM, _interrupted)
    if "serve" in sys.argv[1:3] and _signal.getsignal(_signal.SIGHUP) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGHUP, _note_hang_up)


class Running:
    """Inside, an interrupt is a KeyboardInterrupt, so that open files and connections are closed."""

    def __enter__(self) -> None:
        global _is_running
        _is_running = True

    def __exit__(self, *error: object) -> None:
        global _is_running
        _is_running = False


def interrupted_status() -> int:
    """The exit status of a command that a KeyboardInterrupt has ended."""
    return EXIT_OF_SIGNAL + _ended_by


def hung_up_before() -> bool:
    """SIGHUP came before a member listened for it."""
    return _hung_up


def _interrupted(number: int, frame: FrameType | None) -> None:
    global _ended_by
    _ended_by = number
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
