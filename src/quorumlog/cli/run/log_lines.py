"""The log of a serving process: a line an event, repeats folded."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from quorumlog.cli.options import LogFormat, LogLevel
from quorumlog.cli.output import log_errors
from quorumlog.figures import without_figures

EVENTS = (
    *("connection_begins", "connection_closed", "connection_ends", "connection_refused", "data_lost"),
    *("directory", "handover", "listens", "member_stops", "over_limit", "peer_connected", "peer_lost"),
    *("problem", "problem_over", "reload", "request_refused", "role"),
)
"""As the caller of the logger says in `extra`. Of other records `broker`, `store` or `log`, after the
part that they are of, and of other packages `other`."""
ALL_EVENTS = frozenset(EVENTS) | {"broker", "store", "log", "other"}
_PARTS = {"quorumlog.broker": "broker", "quorumlog.kv": "store"}
FOLDS_AFTER = 5
"""So many of the same in a minute are written."""
MINUTE_S = 60.0
MOST_KNOWN = 256


def event_of(record: logging.LogRecord) -> str:
    if not record.name.startswith("quorumlog"):
        return "other"
    event: str = getattr(record, "event", "") or _PARTS.get(record.name, "log")
    return event


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": event_of(record),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLines(logging.Formatter):
    """Times are UTC: logs of machines in several time zones are read side by side."""

    converter = staticmethod(time.gmtime)
    default_time_format, default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")


class Folding(logging.Filter):
    """Lines that differ only in their figures are written five times in a minute, and then their count,
    once another line is written."""

    def __init__(self, emit: Callable[[logging.LogRecord], object]) -> None:
        super().__init__()
        self._emit = emit
        self._known: dict[tuple[int, str], tuple[float, int, logging.LogRecord]] = {}
        """Since when, how often, and the last of each."""
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        with self._lock:
            return self._is_said(record)

    def _is_said(self, record: logging.LogRecord) -> bool:
        for key, (since_s, times, last) in list(self._known.items()):
            if record.created - since_s >= MINUTE_S:
                del self._known[key]
                if times > FOLDS_AFTER:
                    last.msg = f"{last.getMessage()} ({times - FOLDS_AFTER} more in the last minute)"
                    last.args = None
                    self._emit(last)
        key = (record.levelno, without_figures(record.getMessage()))
        since_s, times, _ = self._known.get(key, (record.created, 0, record))
        if times == 0 and len(self._known) >= MOST_KNOWN:
            return True
        self._known[key] = since_s, times + 1, record
        return times < FOLDS_AFTER


def log_to_stderr(level: LogLevel, form: LogFormat = "text") -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    handler.addFilter(Folding(handler.emit))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if form == "json":
        logging.captureWarnings(True)
        log_errors()
