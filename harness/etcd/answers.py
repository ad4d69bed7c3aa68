"""What was answered to the script: kept in a file, and how those who answered differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from harness.etcd.builds import VERSIONS
from harness.etcd.json_scenarios import JSON_SCENARIOS
from harness.etcd.scenarios import SCENARIOS, Scenario
from harness.etcd.servers import Side
from harness.etcd.session import Answer, Session

FILE = Path(__file__).with_name("answers.json")
OURS = "ours"
SIDES = (*VERSIONS, OURS)
ALL: Mapping[str, Scenario] = {**SCENARIOS, **JSON_SCENARIOS}


class Step(NamedTuple):
    subject: str
    asked: str
    answer: Answer


def replay(side: Side, name: str) -> list[Step]:
    """A scenario from its beginning to its end."""
    with Session(side, name) as session:
        ALL[name](session)
        return [Step(*step) for step in session.steps]


class Recorded:
    """The file: of each scenario its steps, of each step the answers with the sides that gave them."""

    def __init__(self) -> None:
        self._scenarios = json.loads(FILE.read_text()) if FILE.exists() else {}

    def steps(self, name: str, side: str) -> list[Step]:
        found = []
        for step in self._scenarios.get(name, ()):
            answers = [answer for sides, answer in step["answers"] if side in sides.split()]
            if answers:
                found.append(Step(step["subject"], step["asked"], answers[0]))
        return found

    def record(self, found: Mapping[str, Mapping[str, list[Step]]]) -> None:
        """`found`: of each side by name, its steps of each scenario; other sides stay as they are."""
        every = {side: {name: self.steps(name, side) for name in ALL} for side in SIDES}
        for side, scenarios in found.items():
            every[side].update(scenarios)
        self._scenarios = {name: _together(every, name) for name in ALL}
        text = json.dumps(self._scenarios, indent=1, ensure_ascii=False)
        FILE.write_text(f"{text}\n")

    def differences(self) -> dict[str, list[tuple[str, list[tuple[list[str], Answer]]]]]:
        """Of each subject of which the sides answer differently, what was asked and who answers what."""
        found: dict[str, list[tuple[str, list[tuple[list[str], Answer]]]]] = {}
        for steps in self._scenarios.values():
            for step in steps:
                if len(step["answers"]) > 1:
                    groups = [(sides.split(), answer) for sides, answer in step["answers"]]
                    found.setdefault(step["subject"], []).append((step["asked"], groups))
        return found

    def alike(self, subject: str) -> set[tuple[str, str]]:
        """The pairs of sides that answer all steps of the subject alike."""
        pairs = {(a, b) for a in SIDES for b in SIDES}
        for _, groups in self.differences().get(subject, ()):
            of = {side: number for number, (sides, _) in enumerate(groups) for side in sides}
            pairs = {(a, b) for a, b in pairs if of.get(a) == of.get(b)}
        return pairs


def _together(every: Mapping[str, Mapping[str, list[Step]]], name: str) -> list[Answer]:
    steps: dict[tuple[str, str, int], list[tuple[list[str], Answer]]] = {}
    for side in SIDES:
        for (subject, asked, number), answer in _numbered(every[side][name]):
            groups = steps.setdefault((subject, asked, number), [])
            for sides, known in groups:
                if known == answer:
                    sides.append(side)
                    break
            else:
                groups.append(([side], answer))
    return [
        {
            "subject": subject,
            "asked": asked,
            "answers": [[" ".join(sides), answer] for sides, answer in groups],
        }
        for (subject, asked, _), groups in steps.items()
    ]


def _numbered(steps: list[Step]) -> Iterator[tuple[tuple[str, str, int], Answer]]:
    """The same may be asked twice."""
    seen: dict[tuple[str, str], int] = {}
    for subject, asked, answer in steps:
        number = seen[subject, asked] = seen.get((subject, asked), 0) + 1
        yield (subject, asked, number), answer
