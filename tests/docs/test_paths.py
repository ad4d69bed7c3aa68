"""Every `file: function` that docs/internals/paths.md names exists."""

from __future__ import annotations

import ast
import re

from tests.docs.markdown import DOCS, ROOT, section, tables

TEXT = (DOCS / "internals" / "paths.md").read_text()
SOURCE = ROOT / "src" / "quorumlog"
REFERENCE = re.compile(r"`([\w/]+\.py): ([\w.]+)`")

Functions = ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(source: str) -> set[str]:
    """`name` of each function and `Class.method` of each method."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, Functions):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, Functions)}
    return names


def test_every_function_named_exists() -> None:
    references = REFERENCE.findall(TEXT)
    assert len(references) > 100, len(references)
    missing = []
    for file, function in references:
        path = SOURCE / file
        if not path.is_file() or function not in functions_of(path.read_text()):
            missing.append(f"{file}: {function}")
    assert not missing


def test_every_row_of_a_table_names_a_function() -> None:
    rows = [row for table in tables(TEXT) for row in table]
    unreadable = [row for row in rows if not REFERENCE.fullmatch(f"`{row['file: function']}`")]
    assert rows
    assert not unreadable


def test_every_request_has_its_path() -> None:
    for heading in (
        "Append, on the leader",
        "A push, on the follower",
        "Election",
        "A follower that fell behind",
        "Read",
        "Spark read",
        "Restart",
        "Forming",
        "A full disk",
    ):
        assert REFERENCE.search(section(TEXT, heading)), heading


def test_the_search_tells_methods_from_functions() -> None:
    source = "def f(): ...\nclass A:\n    async def g(self): ...\n"
    assert functions_of(source) == {"f", "A.g"}
