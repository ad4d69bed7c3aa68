"""Mutant: one known mistake, put into the product while a simulated run or a scenario runs.

    @mutant(12, "the entry before a push is not checked")
    def previous_entry_unchecked(patch: Patch) -> None:
        \"""What a reader of the code might have believed.\"""
        patch.edit(EntryHandler._take, "if not runs.holds(", "if not reached() and not runs.holds(")

The mistake is written as a change of the source text, so that it stands beside what it breaks and no
longer applies, loudly, once that text is another one. `reached()` is always true; it counts how often
the mistake made a difference.
"""

from __future__ import annotations
import __future__

import builtins
import dis
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType
from typing import Any

Scenario = Callable[[], None]

ALL: dict[str, Mutant] = {}
"""By name, in the order of their definition."""


class Patch:
    """The changes of one mutant; undone by `undo`."""

    def __init__(self) -> None:
        self.reached_count = 0
        self._undo: list[Callable[[], None]] = []
        self._sources: dict[str, str] = {}
        """Source of what was edited before, by qualified name."""

    def reached(self) -> bool:
        self.reached_count += 1
        return True

    def edit(self, target: Any, old: str, new: str) -> None:
        """Replace `old`, which stands exactly once in the source of a function, method or property.

        Raises ValueError if it does not.
        """
        function = _function_of(target)
        key = f"{function.__module__}.{function.__qualname__}"
        source = self._sources.get(key) or inspect.getsource(function)
        if source.count(old) != 1:
            raise ValueError(f"{key} has {source.count(old)} times:\n{old}")
        self._sources[key] = source.replace(old, new)
        self._replace(function, self._compiled(function, self._sources[key]))

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _compiled(self, function: FunctionType, source: str) -> FunctionType:
        lines = textwrap.dedent(source).splitlines()
        while not lines[0].startswith(("def ", "async def ")):
            del lines[0]  # a decorator, which stays where it is
        body = textwrap.indent("\n".join(lines), "    ")
        code = compile(
            f"def make(reached):\n{body}\n    return {function.__name__}\n",
            f"{function.__module__.replace('.', '/')}.py",
            "exec",
            flags=__future__.annotations.compiler_flag,
            dont_inherit=True,
        )
        made: dict[str, Any] = {}
        exec(code, function.__globals__, made)
        edited: FunctionType = made["make"](self.reached)
        known = function.__globals__.keys() | vars(builtins).keys()
        unknown = {name for name in _globals_of(edited.__code__) if name not in known}
        if unknown:
            raise ValueError(f"{function.__qualname__} knows nothing of the name {', '.join(unknown)}")
        edited.__qualname__ = function.__qualname__
        edited.__kwdefaults__ = function.__kwdefaults__
        return edited

    def _replace(self, old: FunctionType, new: FunctionType) -> None:
        *path, name = old.__qualname__.split(".")
        if not path:
            # Other modules have bound the name for themselves, and so have scenarios.
            rooms = ("quorumlog.", "sim.", "tests.")
            for module in [m for n, m in sys.modules.items() if n.startswith(rooms)]:
                for bound in [n for n, value in vars(module).items() if value is old]:
                    self._set(module, bound, new)
            for table in [v for v in vars(sys.modules[old.__module__]).values() if isinstance(v, dict)]:
                for key in [key for key, value in table.items() if value is old]:
                    self._undo.append(partial(table.__setitem__, key, old))
                    table[key] = new
            return
        owner = vars(sys.modules[old.__module__])[path[0]]
        held = vars(owner)[name]
        if isinstance(held, property):
            self._set(owner, name, property(new))
        else:
            self._set(owner, name, classmethod(new) if isinstance(held, classmethod) else new)

    def _set(self, owner: Any, name: str, value: Any) -> None:
        before = vars(owner)[name]
        self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)


def _globals_of(code: CodeType) -> Iterator[str]:
    """Names that it looks for in its module, nested functions included."""
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)


def _function_of(target: Any) -> FunctionType:
    if isinstance(target, property):
        target = target.fget
    function = getattr(target, "__func__", target)
    assert isinstance(function, FunctionType), target
    return function


@dataclass(frozen=True)
class Mutant:
    number: int
    """Of the rule that it breaks; several mutants may break one."""
    name: str
    sentence: str
    apply: Callable[[Patch], None]
    scenario: Scenario | None
    """Where random runs come by too rarely: what to run instead."""
    harmless: str
    """Why nothing can notice this mistake alone; empty if it must be caught."""
    lossy_disks: bool = False
    """Only disks that forget bring it up: its runs have lossy disks."""

    @contextmanager
    def living(self) -> Iterator[Patch]:
        patch = Patch()
        try:
            self.apply(patch)
            yield patch
        finally:
            patch.undo()


def mutant(
    number: int,
    sentence: str,
    *,
    scenario: Scenario | None = None,
    harmless: str = "",
    lossy_disks: bool = False,
) -> Callable[[Callable[[Patch], None]], Mutant]:
    def register(apply: Callable[[Patch], None]) -> Mutant:
        name = apply.__name__
        assert name not in ALL, name
        ALL[name] = Mutant(number, name, sentence, apply, scenario, harmless, lossy_disks)
        return ALL[name]

    return register
