"""Every link between documents leads somewhere, and every test that a document names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.markdown import DOCUMENTS, ROOT, anchors

LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


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


def test_every_test_named_in_the_loss_matrix_is_a_test() -> None:
    named = TEST_NAME.findall((ROOT / "docs/durability.md").read_text())
    assert [test for _, test in named if test.startswith("test_")]
