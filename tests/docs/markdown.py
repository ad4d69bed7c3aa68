"""Just enough of Markdown to hold the documents against the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *DOCS.rglob("*.md"),
        *ROOT.glob("src/quorumlog/*/DESIGN.md"),
    ]
)

Row = dict[str, str]


def tables(text: str) -> list[list[Row]]:
    """Every table, as rows by column name; backticks around a whole cell are dropped."""
    found: list[list[Row]] = []
    columns: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if not columns:
            columns = cells
            found.append([])
        elif not all(set(cell) <= set("-: ") for cell in cells):
            assert len(cells) == len(columns), f"a row of {len(cells)} cells below {columns}: {line}"
            found[-1].append(dict(zip(columns, map(_bare, cells), strict=True)))
    return found


def _bare(cell: str) -> str:
    whole = cell.startswith("`") and cell.endswith("`") and cell.count("`") == 2
    return cell[1:-1] if whole else cell


def section(text: str, heading: str) -> str:
    """What stands below `## heading` or `### heading`, up to the next heading of that rank."""
    match = re.search(rf"^(##+) {re.escape(heading)}\n(.*?)(?=^\1 |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"no section {heading!r}"
    return match[2]


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
