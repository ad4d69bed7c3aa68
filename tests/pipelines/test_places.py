"""Works of one pipeline read from all followers, and none that fails ends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from quorumlog import LocalCluster, connect
from quorumlog.batch import EntryBatch
from quorumlog.client import LedgerClient, leader_of
from quorumlog.errors import DirectoryDamaged, ProtocolViolation, RangeDamaged, Unreachable
from quorumlog.pipelines import auditing, compacting, statistics
from quorumlog.pipelines.archive import Archive
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.auditing import audit
from quorumlog.pipelines.compacting import compact
from quorumlog.pipelines.engine import LocalEngine
from quorumlog.pipelines.places import Place, open_log

ENTRIES = 3_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(members=3, directory=tmp_path_factory.mktemp("members")) as running:
        with connect(running.servers) as log:
            for first in range(0, ENTRIES, 500):
                log.append_batch([b"%06d:" % n + bytes(n % 90) for n in range(first, first + 500)])
        yield running


@pytest.fixture
def place(cluster: LocalCluster) -> Place:
    return Place(servers=cluster.servers, batch_bytes=8_000)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str | None]:
    """How often a work's range was asked of whom; single entries are looked up for the cuts."""
    asked: Counter[str | None] = Counter()
    real = LedgerClient.read_batches

    def counting(self: LedgerClient, first: int, stop: int, **named: Any) -> Iterator[EntryBatch]:
        asked[named["from_member"]] += stop - first > 1
        return real(self, first, stop, **named)

    monkeypatch.setattr(LedgerClient, "read_batches", counting)
    return asked


def followers_of(place: Place) -> list[str]:
    with connect(place.servers) as log:
        return [row.id for row in log.status() if row.role == "follower"]


def test_works_of_each_pipeline_are_spread_over_the_followers(
    place: Place, asked: Counter[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (statistics, compacting):
        monkeypatch.setattr(module, "PART_BYTES", 20_000)
    both = followers_of(place)
    for run in (
        lambda: archive(place, str(tmp_path / "a"), part_bytes=20_000, stop_index=ENTRIES),
        lambda: statistics.statistics(place, stop_index=ENTRIES),
        lambda: compact(place, str(tmp_path / "c.parquet"), "prefix:5", stop_index=ENTRIES),
    ):
        asked.clear()
        run()
        assert {name for name, times in asked.items() if times} == set(both)
        assert abs(asked[both[0]] - asked[both[1]]) <= 1 < asked[both[0]]


def test_an_audit_reads_its_places_side_by_side(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "BLOCK_ENTRIES", 64)
    monkeypatch.setattr(auditing, "CHUNK_BLOCKS", 8)
    works: list[Any] = []

    class Noting(LocalEngine):
        def map(self, run: Callable[[Any], Any], given: Sequence[Any]) -> Iterator[Any]:
            works.extend(given)
            return super().map(run, given)

    assert not audit([place], engine=Noting()).differences
    assert {work.place.member_id for work in works[:3]} == {"n0", "n1", "n2"}


@pytest.mark.parametrize("error", [Unreachable, RangeDamaged, ProtocolViolation, None])
@pytest.mark.parametrize("failing", [1, 2])
def test_a_member_that_fails_in_the_middle_is_passed_over(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: int,
    error: type[Exception] | None,
) -> None:
    """None: it knows of no more that is committed."""
    real, bad = LedgerClient.read_batches, followers_of(place)[:failing]

    def breaking(self: LedgerClient, *given: Any, **named: Any) -> Iterator[EntryBatch]:
        for number, batch in enumerate(real(self, *given, **named)):
            if number == 1 and named["from_member"] in bad:
                if error is None:
                    return
                raise error("in its middle")
            yield batch

    monkeypatch.setattr(LedgerClient, "read_batches", breaking)
    kept = archive(place, str(tmp_path / "a"), part_bytes=60_000, stop_index=ENTRIES)
    assert kept.last_index == ENTRIES - 1
    monkeypatch.undo()
    assert not audit([place, Place(archive=str(tmp_path / "a"))]).differences


def test_a_member_of_which_all_is_asked_is_not_passed_over(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(place.servers) as log:
        leader = leader_of(log.status())
    assert leader is not None

    def silent(*_: Any, **__: Any) -> Iterator[EntryBatch]:
        raise Unreachable("gone")
        yield

    only = Place(servers=place.servers, member_id=leader.id)
    log_of_one = open_log(only)
    monkeypatch.setattr(LedgerClient, "read_batches", silent)
    with pytest.raises(Unreachable, match="gone"):
        next(log_of_one.batches(0, 1))
    log_of_one.close()


def test_a_follower_that_lags_is_asked_for_what_it_has(
    place: Place, asked: Counter[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where somebody appends all the time, each does, a little."""
    real = LedgerClient.end_index
    with connect(place.servers) as writer:

        def late(self: LedgerClient, **named: Any) -> int:
            writer.append(b"000000:more")
            return real(self, **named)

        monkeypatch.setattr(LedgerClient, "end_index", late)
        archive(place, str(tmp_path / "a"), part_bytes=20_000)
    assert Archive.open(str(tmp_path / "a")).stop_index > ENTRIES
    assert asked[None] <= 1 < min(asked[name] for name in followers_of(place))


def test_a_follower_whose_log_is_another_one_is_found_where_works_meet(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it gives is sound by itself."""
    real, other = LedgerClient.read_batches, followers_of(place)[0]

    def parted(self: LedgerClient, first: int, stop: int, **named: Any) -> Iterator[EntryBatch]:
        chain = 1
        for batch in real(self, first, stop, **named):
            if named["from_member"] == other and stop - first > 1:
                batch = EntryBatch(bytearray(batch.buffer), batch.sizes)
                chain = batch.stamp(batch.first_index, batch.first_header.term, batch.starts, chain)
            yield batch

    monkeypatch.setattr(LedgerClient, "read_batches", parted)
    for module in (statistics, compacting):
        monkeypatch.setattr(module, "PART_BYTES", 20_000)
    runs: list[Callable[[], Any]] = [
        lambda: statistics.statistics(place, stop_index=ENTRIES),
        lambda: compact(place, str(tmp_path / "c.parquet"), "prefix:5", stop_index=ENTRIES),
        lambda: archive(place, str(tmp_path / "a"), part_bytes=20_000, stop_index=ENTRIES),
    ]
    for run in runs:
        with pytest.raises(DirectoryDamaged, match="chain_crc does not continue the entry before"):
            run()
    assert not (tmp_path / "c.parquet").exists()
