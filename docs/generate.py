"""Writes the parts of the documents that are made from the code: `python docs/generate.py`.

A generated part stands between two comments, `<!-- generated: NAME -->` and `<!-- end -->`. With
`--check` nothing is written and the exit status says whether every part is up to date
(tests/docs/test_generated.py does the same).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from quorumlog.admin.metrics import METRICS
from quorumlog.consensus.dispatcher import TRANSITIONS, DispatcherEvent, DispatcherState

DOCS = Path(__file__).parent


def dispatcher_automaton() -> str:
    """The table `TRANSITIONS` as a Mermaid state diagram; BEGUN leads from everywhere to COMPARE and
    is drawn once, as the way in."""
    lines = ["```mermaid", "stateDiagram-v2"]
    begun = {TRANSITIONS[state, DispatcherEvent.BEGUN] for state in DispatcherState}
    assert len(begun) == 1, begun
    lines.append(f"    [*] --> {begun.pop().name}: BEGUN (from every state)")
    for (state, event), following in TRANSITIONS.items():
        if event is not DispatcherEvent.BEGUN:
            lines.append(f"    {state.name} --> {following.name}: {event.name}")
    lines += ["```", "", "| event | what has happened |", "| --- | --- |"]
    lines += [f"| `{event.name}` | {event.value} |" for event in DispatcherEvent]
    return "\n".join(lines)


def metrics() -> str:
    rows = ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for name, metric in METRICS.items():
        labels = ", ".join(f"`{each}`" for each in metric.labels)
        rows.append(f"| `{name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(rows)


PARTS: dict[tuple[str, str], Callable[[], str]] = {
    ("../src/quorumlog/consensus/DESIGN.md", "dispatcher automaton"): dispatcher_automaton,
    ("operations.md", "metrics"): metrics,
}
"""What makes each generated part, by document and name."""


def with_generated_parts(document: str, text: str) -> str:
    """`text` with its generated parts made anew. Raises ValueError where a part has no place."""
    for (owner, name), make in PARTS.items():
        if owner != document:
            continue
        begin, end = f"<!-- generated: {name} -->\n", "<!-- end -->"
        place = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        made = f"{begin}{make()}\n{end}"
        text, count = place.subn(made.replace("\\", r"\\"), text)
        if count != 1:
            raise ValueError(f"{document} has {count} places for {name!r}, not one")
    return text


def main(check: bool) -> int:
    stale = []
    for document in sorted({owner for owner, _ in PARTS}):
        path = DOCS / document
        old = path.read_text()
        new = with_generated_parts(document, old)
        if new != old:
            stale.append(document)
            if not check:
                path.write_text(new)
    for document in stale:
        print(f"docs/{document}: {'out of date, run python docs/generate.py' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
