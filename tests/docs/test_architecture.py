"""What docs/architecture.md says of the tree is true of it."""

from __future__ import annotations

import re

from tests.docs.markdown import DOCS, ROOT, section, tables

TEXT = (DOCS / "architecture.md").read_text()
PATH = re.compile(r"`([\w/]+(?:\.\w+|/))`")


def test_every_file_that_a_change_touches_exists() -> None:
    (rows,) = tables(section(TEXT, "Where a change goes"))
    missing = []
    for row in rows:
        paths = PATH.findall(row["files"])
        assert paths or row["to add"] == "a field of a message", row
        missing += [
            path
            for path in paths
            if not any((root / path).exists() for root in (ROOT / "src/quorumlog", ROOT))
        ]
    assert not missing


def test_every_folder_of_the_package_has_its_row() -> None:
    (rows, *_) = tables(section(TEXT, "Import rules"))
    named = {name.strip("`") for row in rows for name in row["folder"].split(", ")}
    folders = {path.parent.name for path in (ROOT / "src/quorumlog").glob("*/__init__.py")}
    assert folders <= named, folders - named
