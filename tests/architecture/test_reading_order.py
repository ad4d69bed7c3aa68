"""A package that says in which order to read it names every module and room (subpackage) of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TREES = ("src", "harness", "demo", "nemesis", "benchmarks")
MARK = re.compile(r"read(?:ing order|\s+in\s+this\s+order):", re.IGNORECASE)
NAME = r"([a-z_]\w*)(?:\.py|/)?"
QUOTED = re.compile(rf"`{NAME}`")
FILE = re.compile(r"\b([a-z_]\w*)\.py\b")


def listed(docstring: str) -> set[str] | None:
    """The names of the list, None where there is none.

    A list is what is left of the paragraph, with names in backticks; or, where nothing is left of it,
    the indented lines that follow: each begins with a name, and may name more files as `name.py`.
    """
    mark = MARK.search(docstring)
    if mark is None:
        return None
    rest = docstring[mark.end() :]
    if rest.startswith("\n\n"):
        block = re.split(r"\n(?=\S)", rest.strip("\n"))[0]
        indent = " " * (len(block) - len(block.lstrip()))
        return {*re.findall(rf"(?m)^{indent}{NAME}", block), *FILE.findall(block)}
    return set(QUOTED.findall(rest.split("\n\n")[0]))


def contents(package: Path) -> set[str]:
    """Modules and rooms of a package; `__main__` is its command."""
    modules = {path.stem for path in package.glob("*.py") if not path.stem.startswith("__")}
    return modules | {path.parent.name for path in package.glob("*/__init__.py")}


def docstring_of(init: Path) -> str:
    return ast.get_docstring(ast.parse(init.read_text())) or ""


LISTS = {
    str(init.parent.relative_to(ROOT)): init.parent
    for tree in TREES
    for init in sorted((ROOT / tree).rglob("__init__.py"))
    if listed(docstring_of(init)) is not None
}


@pytest.mark.parametrize("name", LISTS)
def test_the_list_is_complete_and_names_nothing_else(name: str) -> None:
    package = LISTS[name]
    names = listed(docstring_of(package / "__init__.py"))
    assert names == contents(package)


def test_no_other_words_announce_a_list() -> None:
    """Else a list would be believed that nobody checks."""
    unread = [
        str(init)
        for tree in TREES
        for init in sorted((ROOT / tree).rglob("__init__.py"))
        if re.search(r"\bread(ing)?\b.{0,12}\boundary\b", docstring_of(init), re.IGNORECASE | re.DOTALL)
        and str(init.parent.relative_to(ROOT)) not in LISTS
    ]
    assert not unread


@pytest.mark.parametrize(
    ("docstring", "names"),
    [
        ("Read in this order: `a` (with `b`),\nthen the room `c/`.\n\n`d` is no part.", {"a", "b", "c"}),
        (
            "Read in this order:\n\n    a    what\n         and b.py, too\n    c/   room\n\nEnd.",
            {"a", "b", "c"},
        ),
        ("Details below. Reading order:\n\n    a.py\n    b.py  after a.py", {"a", "b"}),
        ("No list of `a`.", None),
    ],
)
def test_a_list_is_read_as_people_read_it(docstring: str, names: set[str] | None) -> None:
    assert listed(docstring) == names


def test_rooms_count_and_so_do_their_own_lists(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    for path in (tmp_path / "__init__.py", tmp_path / "a.py", room / "__init__.py", room / "b.py"):
        path.touch()
    (tmp_path / "notes").mkdir()
    assert contents(tmp_path) == {"a", "room"}
    assert contents(room) == {"b"}
