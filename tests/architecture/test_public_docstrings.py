"""Every public verb says what it takes, gives and raises: those of what the public modules export, and
of what these give back, such as a reader, a lock or a watch."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

MODULES = (
    "quorumlog",
    "quorumlog.backups",
    "quorumlog.broker",
    "quorumlog.kv",
    "quorumlog.kv.testing",
    "quorumlog.server",
    "quorumlog.spark",
    "quorumlog.spark.pipelines",
    "quorumlog.state_machine",
    "quorumlog.testing",
)
SEE = re.compile(r"(?:[Ss]ee|[Aa]s|as of|as in) `(\w+)\.(\w+)`")
ClientOperation = Callable[..., Any]


def exported(module: ModuleType) -> Iterator[Any]:
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    yield from (getattr(module, name) for name in names)


def operations_of(kind: type) -> dict[str, ClientOperation]:
    """Its own and inherited ones, but for those of other packages; by name."""
    found = {}
    for name, value in inspect.getmembers(kind, inspect.isroutine):
        home = getattr(value, "__module__", None) or ""
        if not name.startswith("_") and home.startswith("quorumlog"):
            found[name] = value
    return found


def given_by(verb: ClientOperation) -> Iterator[type]:
    """Classes of ours that its annotation names."""
    function: Any = inspect.unwrap(getattr(verb, "__func__", verb))
    named = str(function.__annotations__.get("return", ""))
    for name in re.findall(r"\w+", named):
        kind = vars(sys.modules[function.__module__]).get(name)
        if is_ours(kind):
            yield kind


def is_ours(kind: object) -> bool:
    return (
        isinstance(kind, type)
        and kind.__module__.startswith("quorumlog")
        and not issubclass(kind, Exception | Enum)
    )


def public() -> tuple[dict[str, ClientOperation], set[type]]:
    """Functions by module and name, and classes."""
    functions: dict[str, ClientOperation] = {}
    classes: set[type] = set()
    new: list[type] = []
    for module in map(import_module, MODULES):
        for value in exported(module):
            if inspect.isfunction(value):
                functions[f"{module.__name__}.{value.__name__}"] = value
                new += given_by(value)
            elif is_ours(value):
                new.append(value)
    while new:
        kind = new.pop()
        if kind not in classes:
            classes.add(kind)
            new += [given for verb in operations_of(kind).values() for given in given_by(verb)]
    return functions, classes


FUNCTIONS, CLASSES = public()
BY_NAME: dict[str, type] = {kind.__name__: kind for kind in CLASSES}


def test_what_clients_give_is_looked_at_as_well() -> None:
    handed_out = (
        "AppendStream NamedReader Results MachineHandle Lease Lock Election Watching BlockingWatch"
    )
    assert {*handed_out.split(), "AsyncNamedReader", "AsyncConsumer", "Producer"} <= BY_NAME.keys()


def test_every_function_says_what_it_takes_gives_and_raises() -> None:
    assert [name for name, function in FUNCTIONS.items() if not inspect.getdoc(function)] == []


@pytest.mark.parametrize(
    "kind", sorted(CLASSES, key=lambda kind: kind.__qualname__), ids=lambda kind: kind.__qualname__
)
def test_every_verb_says_what_it_takes_gives_and_raises(kind: type) -> None:
    silent = [name for name, verb in operations_of(kind).items() if not inspect.getdoc(verb)]
    assert silent == [], f"{kind.__module__}.{kind.__qualname__}"


@pytest.mark.parametrize(
    "kind", sorted(CLASSES, key=lambda kind: kind.__qualname__), ids=lambda kind: kind.__qualname__
)
def test_a_verb_that_refers_to_another_refers_to_one_that_says_it(kind: type) -> None:
    for name, verb in operations_of(kind).items():
        for other, its_verb in SEE.findall(inspect.getdoc(verb) or ""):
            assert other in BY_NAME, f"{kind.__qualname__}.{name} refers to {other}"
            meant = inspect.getdoc(getattr(BY_NAME[other], its_verb, None)) or ""
            assert meant and not meant.startswith("See `"), (
                f"{kind.__qualname__}.{name} refers to {other}.{its_verb}"
            )
