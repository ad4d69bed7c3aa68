"""An archive in an object store is the one of a folder, whatever the way there does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import obstore
import pytest
from msgspec import UNSET

from harness.object_store import Fault, ObjectStore, no_fault
from quorumlog import LocalCluster, connect
from quorumlog.errors import DirectoryDamaged
from quorumlog.pipelines import archive_folders
from quorumlog.pipelines.archive import MANIFEST_NAME, PARTS, Archive
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.auditing import audit
from quorumlog.pipelines.places import Place, open_log

BUCKET = "lake"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with LocalCluster(members=2, directory=tmp_path_factory.mktemp("members")) as running:
        with connect(running.servers) as log:
            for first in range(0, 3000, 500):
                log.append_batch([b"%d:" % n + bytes(n % 90) for n in range(first, first + 500)])
        yield Place(servers=running.servers, batch_bytes=8_000)


@pytest.fixture(scope="module")
def running_store() -> Iterator[ObjectStore]:
    with ObjectStore(BUCKET) as store:
        yield store


@pytest.fixture
def store(running_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in running_store.environment.items():
        monkeypatch.setenv(name, value)
    yield running_store
    running_store.rule = no_fault


@pytest.fixture
def url(store: ObjectStore, tmp_path: Path) -> str:
    """Of an archive that is not there."""
    return f"s3://{BUCKET}/{tmp_path.parent.name}/{tmp_path.name}"


def entries_of(place: Place, stop_index: int | None = None) -> bytes:
    log = open_log(place)
    try:
        return b"".join(bytes(b.buffer) for b in log.batches(0, stop_index or log.stop_index))
    finally:
        log.close()


def objects_of(url: str, below: str = "") -> dict[str, bytes]:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    store = archive_folders._clients(bucket, archive_folders._environment())[0]
    keys = [each["path"] for each in obstore.list(store, f"{prefix}/{below}".rstrip("/")).collect()]
    return {key.removeprefix(prefix + "/"): bytes(obstore.get(store, key).bytes()) for key in keys}


def is_whole(place: Place, url: str) -> bool:
    """Nothing is left over, and what other tools see is what counts."""
    archived = Archive.open(url)
    names = {f"{PARTS}/{part.file}" for part in archived.manifest.parts}
    assert set(objects_of(url)) == {MANIFEST_NAME, *names} and not archived.manifest.moving
    return entries_of(Place(archive=url)) == entries_of(place, archived.stop_index)


def test_an_archive_is_that_of_a_folder_to_the_byte(place: Place, url: str, tmp_path: Path) -> None:
    for target in (url, str(tmp_path / "a")):
        first = archive(place, target, part_bytes=20_000, stop_index=1_000)
        assert (first.archive, first.first_index, first.last_index) == (target, 0, 999)
        whole = archive(place, target, part_bytes=20_000, stop_index=3_000)
        assert whole.new_entries == 2_000
        again = archive(place, target, verify=True, stop_index=3_000)
        assert (again.new_entries, again.parts) == (0, whole.parts)
    assert is_whole(place, url)
    ours, theirs = (Archive.open(each).manifest for each in (str(tmp_path / "a"), url))
    assert isinstance(theirs.commit, str) and len(ours.parts) > 3
    assert msgspec.structs.replace(theirs, commit=UNSET) == ours
    found = objects_of(url)
    for part in ours.parts:
        name = f"{PARTS}/{part.file}"
        assert found[name] == (tmp_path / "a" / name).read_bytes()
    lines = found[MANIFEST_NAME].decode().replace(f',\n  "commit": "{theirs.commit}"', "")
    assert lines == (tmp_path / "a" / MANIFEST_NAME).read_text()


def test_it_is_audited_and_what_was_changed_in_it_is_named(place: Place, url: str) -> None:
    archive(place, url, part_bytes=20_000)
    places = [place, Place(archive=url)]
    assert not audit(places).differences
    part = Archive.open(url).manifest.parts[1]
    name = f"{PARTS}/{part.file}"
    content = bytearray(objects_of(url)[name])
    content[len(content) // 2] ^= 1
    put(url, name, bytes(content))
    [found] = audit(places).differences
    assert (found.place, part.first_index <= found.index < part.stop_index) == (url, True)
    with pytest.raises(DirectoryDamaged, match=part.file):
        archive(place, url, verify=True)
    put(url, name, bytes(content[:-10]))
    with pytest.raises(DirectoryDamaged, match="no hold is moved until then"):
        archive(place, url)


def put(url: str, name: str, content: bytes) -> None:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    obstore.put(
        archive_folders._clients(bucket, archive_folders._environment())[0], f"{prefix}/{name}", content
    )


@pytest.mark.parametrize("fault", ["refuse", "cut", "repeat"])
def test_lost_answers_and_repeated_requests_change_nothing(
    place: Place, store: ObjectStore, url: str, fault: Fault
) -> None:
    """Each request that changes something meets the fault once."""
    met: set[tuple[str, str]] = set()

    def once(method: str, path: str) -> Fault:
        if method in ("GET", "HEAD") or (method, path) in met:
            return "pass"
        met.add((method, path))
        return fault

    for stop_index in (1_000, None):
        met.clear()
        store.rule = once
        archive(place, url, part_bytes=50_000, stop_index=stop_index)
        assert len(met) > 4
        store.rule = no_fault
        assert is_whole(place, url)
