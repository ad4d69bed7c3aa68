"""Verbs of asyncio clients as methods of their blocking shells: with the same arguments, docstrings and
errors, and types that follow from those of the verb."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from quorumlog.net.loop_thread import LoopThread, Shell

A = TypeVar("A")
H = TypeVar("H")
P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Verb(Protocol[P, R]):
    """A method, as type checkers see it."""

    @overload
    def __get__(self, shell: None, kind: type) -> Self: ...
    @overload
    def __get__(self, shell: object, kind: type | None = None) -> Callable[P, R]: ...


class Blocking(Generic[A]):
    """Of an asyncio client A. For a verb with overloads a type checker sees the first of them."""

    def waits(self, verb: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Verb[P, R]:
        @wraps(verb)
        def call(shell: Shell[A], *given: P.args, **options: P.kwargs) -> R:
            return shell._thread.run(verb(shell._it, *given, **options))

        return call  # type: ignore[return-value]

    def gives(
        self, verb: Callable[Concatenate[A, P], H], made: Callable[[LoopThread, H], R]
    ) -> Verb[P, R]:
        """A verb that does not wait, and gives something that does: a read, a stream."""

        @wraps(verb)
        def call(shell: Shell[A], *given: P.args, **options: P.kwargs) -> R:
            return made(shell._thread, verb(shell._it, *given, **options))

        _gives(call, made)
        return call  # type: ignore[return-value]

    def opens(
        self,
        verb: Callable[Concatenate[A, P], Coroutine[Any, Any, H]],
        made: Callable[[LoopThread, H], R],
    ) -> Verb[P, R]:
        """A verb that waits for something that waits."""

        @wraps(verb)
        def call(shell: Shell[A], *given: P.args, **options: P.kwargs) -> R:
            return made(shell._thread, shell._thread.run(verb(shell._it, *given, **options)))

        _gives(call, made)
        return call  # type: ignore[return-value]


def _gives(call: Any, made: object) -> None:
    call.__signature__ = signature(call).replace(return_annotation=made)
