"""in_short(): errors with a remedy reach the user without the stack of a Spark worker.

A worker that runs a data source sends any exception with its whole traceback, and ends. Only its
environment could change that, and a worker has one of its own.

A worker whose answer Spark does not wait for (it has planned, or a LIMIT has enough) prints that the
pipe is broken, and ends: nothing is wrong then, so a worker that reads or writes a log prints nothing.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from quorumlog.errors import ConfigError, LedgerError, ProtocolViolation, StoreFailure

_WORKER_PREFIX = "PYTHON_WORKER_FACTORY_"
"""Of variables that Spark sets for a Python worker."""
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


class RangeMismatch(Exception):
    """The entries read are not those planned, or are damaged."""


EXPECTED = (LedgerError, ConfigError, StoreFailure, ProtocolViolation, RangeMismatch)
"""They say all that there is to say."""

F = TypeVar("F", bound=Callable[..., Any])


def in_short(call: F) -> F:
    """For methods that Spark calls. An error of another kind is a bug here, and keeps its traceback."""

    @wraps(call)
    def calling(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except EXPECTED:
            hide_traceback()
            raise

    return cast(F, calling)


def hide_traceback() -> None:
    """Of the error that ends this process, if it is a worker."""
    if _is_worker():
        os.environ[_HIDE_TRACEBACK] = "1"


def _is_worker() -> bool:
    return any(name.startswith(_WORKER_PREFIX) for name in os.environ)


def _be_silent_of_broken_pipes() -> None:
    print_exc = traceback.print_exc

    def print_others(*args: Any, **kwargs: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            print_exc(*args, **kwargs)

    traceback.print_exc = print_others


if _is_worker():
    _be_silent_of_broken_pipes()
