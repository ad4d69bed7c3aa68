"""Some of the cases of `damage_fuzz`, and those that found something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.damage_fuzz import Entries, make_group, names_the_place, run_case

FOUND_SOMETHING = {
    30: "bytes behind the blank record of a repaired segment stayed as they were",
    2238: "an entry with a bad header in front of a good link was taken for a sign of a bad anchor",
    4406: "a range began behind an entry whose own chain was damaged, so nobody's copy continued it",
    148: "a bad blank record in a cold segment was looked at by nobody",
}
CASES_PER_TEST = 25


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Entries]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        patch.setattr("os.fdatasync", lambda descriptor: None)
        path = tmp_path_factory.mktemp("group")
        yield path, make_group(path)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Entries]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        patch.setattr("os.fdatasync", lambda descriptor: None)
        path = tmp_path_factory.mktemp("commands")
        yield path, make_group(path, commands=True)


@pytest.mark.parametrize(
    "first",
    [
        1000,
        *(pytest.param(first, marks=pytest.mark.long) for first in range(1025, 1200, CASES_PER_TEST)),
    ],
)
def test_whatever_happens_to_a_file_the_member_is_repaired_or_refuses_by_name(
    group: tuple[Path, Entries], tmp_path: Path, first: int
) -> None:
    ends = Counter(run_case(seed, *group, tmp_path) for seed in range(first, first + CASES_PER_TEST))
    assert ends["repaired"] > ends["refused"]


@pytest.mark.parametrize("first", range(2000, 2025, CASES_PER_TEST))
def test_so_it_is_where_most_entries_are_commands(
    commands: tuple[Path, Entries], tmp_path: Path, first: int
) -> None:
    """What a header says of its channel is proven by the entry in front alone."""
    ends = Counter(run_case(seed, *commands, tmp_path) for seed in range(first, first + CASES_PER_TEST))
    assert ends["repaired"] > ends["refused"]


@pytest.mark.parametrize("seed", FOUND_SOMETHING, ids=str)
def test_cases_that_found_something_end_well(
    group: tuple[Path, Entries], tmp_path: Path, seed: int
) -> None:
    run_case(seed, *group, tmp_path)


def test_a_refusal_without_file_or_position_is_not_accepted(tmp_path: Path) -> None:
    (tmp_path / "durable").touch()
    assert names_the_place(f"{tmp_path}/durable: bad header (position 96, entry 2)", tmp_path)
    assert not names_the_place(f"{tmp_path}/durable: bad header", tmp_path)
    assert not names_the_place(f"{tmp_path}: bad header (position 96, entry 2)", tmp_path)
    assert names_the_place(f"{tmp_path} holds a log but no file {tmp_path}/member: lost", tmp_path)
    assert not names_the_place(f"{tmp_path} holds a log but no file {tmp_path}/durable: lost", tmp_path)
