"""Every link between documents leads somewhere, and every test that a document names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.markdown import DOCUMENTS, ROOT, anchors

LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
TEST_NAME = re.compile(r"`(tests/[\w/]+\.(?:py|txt))(?:::(\w+))?`")


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_to_files_and_headings(document: Path) -> None:
    text = document.read_text()
    for target in LINK.findall(text):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        path = (document.parent / file).resolve() if file else document
        assert path.exists(), f"{name_of(document)} links to {target}"
        if anchor:
            assert anchor in anchors(path.read_text()), f"{name_of(document)} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_tests_that_are_named_exist(document: Path) -> None:
    for file, test in TEST_NAME.findall(document.read_text()):
        path = ROOT / file
        assert path.is_file(), f"{name_of(document)} names {file}"
        if test:
            names = {
                node.name
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.FunctionDef)
            }
            assert test in names, f"{name_of(document)} names {file}::{test}"


def test_what_the_code_says_is_in_a_document_is_there() -> None:
    """Docstrings refer to a place as `(docs/NAME.md, words of the place)`."""
    found = 0
    for module in sorted((ROOT / "src").rglob("*.py")):
        text = " ".join(module.read_text().split())
        for document, place in re.findall(r"docs/(\w+\.md)(?:, \"?([A-Za-z ]+)\"?[:;,)])?", text):
            path = ROOT / "docs" / document
            assert path.is_file(), f"{module.name} refers to docs/{document}"
            if place:
                found += 1
                where = path.read_text().lower()
                assert place.lower() in where, f"{module.name}: {place!r} is not in docs/{document}"
    assert found > 5
