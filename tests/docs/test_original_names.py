"""Every `file: name` on docs/original-names.md exists, and the files named alone do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.docs.markdown import DOCS, ROOT, tables

TEXT = (DOCS / "original-names.md").read_text()
SOURCE = ROOT / "src" / "quorumlog"


def names_in(body: list[ast.stmt]) -> Iterator[str]:
    """`NAME` and `Class.name`: functions, methods, and what is assigned, to `self` as well."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{name}" for name in names_in(node.body))
            for each in ast.walk(node):
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                    yield f"{node.name}.{each.attr}"
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_every_name_exists() -> None:
    references = re.findall(r"`([\w/]+\.py)(?:: ([\w.]+))?`", TEXT)
    assert len(references) > 130, len(references)
    missing = [
        f"{file}: {name}"
        for file, name in references
        if not (SOURCE / file).is_file()
        or (name and name not in names_in(ast.parse((SOURCE / file).read_text()).body))
    ]
    assert not missing


def test_no_name_of_the_original_stands_twice() -> None:
    rows = [row["DLedger"] for part in tables(TEXT) for row in part if "DLedger" in row]
    rows += [row["RocketMQ"] for part in tables(TEXT) for row in part if "RocketMQ" in row]
    assert len(rows) == len(set(rows))
