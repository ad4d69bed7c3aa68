"""CHANGELOG.md has the form of Keep a Changelog; of the next release it says what members say."""

from __future__ import annotations

import re

from quorumlog.version import VERSION
from tests.docs.markdown import DOCS

KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_newest_heading_is_of_this_version() -> None:
    text = (DOCS.parent / "CHANGELOG.md").read_text()
    newest, *older = re.findall(r"^## (.+)$", text, re.MULTILINE)
    release, dev, _ = VERSION.partition(".dev")
    if dev:
        assert newest == "[Unreleased]"
        assert f"To be {release}." in text
    else:
        assert newest.startswith(f"[{VERSION}] - ")
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", each) for each in older)
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= KINDS
