"""The site made of these pages: `make docs` writes it to build/docs, and fails at any warning."""

from __future__ import annotations

import re
from typing import Any

import typer
import typer.cli
import typer.main
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from quorumlog.cli.main import app as command_line
from quorumlog.version import VERSION

project = "quorumlog"
release = VERSION
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["generate.py"]
html_theme = "furo"
html_title = f"quorumlog {VERSION}"
html_show_copyright = False
html_copy_source = False
smartquotes = False  # of --option it would make a dash
myst_heading_anchors = 4
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "none"
autodoc_preserve_defaults = True


def _source(_: Sphinx, page: str, source: list[str]) -> None:
    """A link to a page or folder outside of docs/ becomes its text; "commands" is what --help prints."""
    source[0] = re.sub(
        r"\[([^\]]+)\]\((?:\.\./)+(?:src/[^)]*|examples/?|findings/README\.md|CONTRIBUTING\.md)\)",
        r"\1",
        source[0],
    )
    if page == "commands":
        group = typer.main.get_command(command_line)
        context = typer.Context(group, info_name="quorumlog")  # type: ignore[arg-type]
        source[0] += typer.cli.get_docs_for_click(obj=group, ctx=context, indent=1, name="quorumlog")


def _docstring(
    _app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]
) -> None:
    """Docstrings mark code as Markdown does."""
    lines[:] = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", "\n".join(lines)).split("\n")


def setup(app: Sphinx) -> None:
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", _source)
    app.connect("autodoc-process-docstring", _docstring)
