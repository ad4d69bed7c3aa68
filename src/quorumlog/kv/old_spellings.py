"""Former names of the previous release."""

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
    def taking(*arguments: Any, **keywords: Any) -> Any:
        if len(arguments) == most + 1:
            *arguments, keywords["timeout_s"] = arguments  # type: ignore[assignment]
        if "timeout_s" in keywords:
            warning = "timeout_s is now timeout_ms; the next release knows timeout_ms only"
            warnings.warn(warning, DeprecationWarning, stacklevel=2)
            timeout_s = keywords.pop("timeout_s")
            keywords["timeout_ms"] = None if timeout_s is None else 1000 * timeout_s
        return function(*arguments, **keywords)

    return cast(F, taking)
