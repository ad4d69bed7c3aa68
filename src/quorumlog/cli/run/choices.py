"""What options of a member that have a few words to choose from may say."""

from __future__ import annotations

from enum import StrEnum


class FlushMode(StrEnum):
    SYNC = "sync"
    ASYNC = "async"


class Store(StrEnum):
    FILE = "file"
    MEMORY = "memory"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
