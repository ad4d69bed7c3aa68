"""What the release before called otherwise."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from inspect import unwrap
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def takes_seconds(function: F) -> F:
    """`timeout_s`, as in the release before, in the place of `timeout_ms`, with a warning; also where
    it is given without its name."""
    most = unwrap(function).__code__.co_argcount

    @wraps(function)
    def taking(*arguments: Any, **given: Any) -> Any:
        if len(arguments) == most + 1:
            *arguments, given["timeout_s"] = arguments  # type: ignore[assignment]
        if "timeout_s" in given:
            said = "timeout_s is now timeout_ms; the next release knows timeout_ms only"
            warnings.warn(said, DeprecationWarning, stacklevel=2)
            timeout_s = given.pop("timeout_s")
            given["timeout_ms"] = None if timeout_s is None else 1000 * timeout_s
        return function(*arguments, **given)

    return cast(F, taking)
