"""An archive in an object store is the one of a folder, whatever the way there does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import obstore
import pytest
from msgspec import UNSET

from harness.object_store import Fault, ObjectStore, no_fault
from quorumlog import LocalCluster, connect
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.pipelines import archive_folders
from quorumlog.pipelines.archive import PARTS, Archive
from quorumlog.pipelines.archive_folders import MANIFEST_NAME, ObjectFolder
from quorumlog.pipelines.archive_parts import Part, PartWriter
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.auditing import audit
from quorumlog.pipelines.engine import LocalEngine
from quorumlog.pipelines.places import Place, open_log

BUCKET = "lake"


def long(case: object) -> Any:
    return pytest.param(case, marks=pytest.mark.long)


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


@pytest.mark.parametrize("fault", [long("refuse"), "cut", "repeat"])
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


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("step", [step if step % 3 == 2 else long(step) for step in range(1, 16)])
def test_a_crash_at_any_step_leaves_what_the_next_run_completes(
    place: Place, url: str, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    calls = 0

    def stepped(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= step:  # what clears up behind it does not come to it either
                raise Crash
            return real(*args, **options)

        return call

    with monkeypatch.context() as patched, pytest.raises(Crash):
        for name in ("put", "copy", "delete"):
            patched.setattr(obstore, name, stepped(getattr(obstore, name)))
        patched.setattr(ObjectFolder, "finish", stepped(ObjectFolder.finish))
        patched.setattr(PartWriter, "abandon", lambda writer: writer._file.close())  # half a file
        archive(place, url, part_bytes=100_000, engine=LocalEngine(1))
    if MANIFEST_NAME in objects_of(url):
        seen = Archive.open(url)
        whole = entries_of(place, seen.stop_index) if seen.manifest.parts else b""
        assert entries_of(Place(archive=url)) == whole
        named = {f"{PARTS}/{part.file}" for part in seen.manifest.parts}
        assert {name for name in objects_of(url) if name.startswith(PARTS)} <= named
    archive(place, url, part_bytes=100_000)
    assert is_whole(place, url)


@pytest.mark.parametrize(
    "at", [long("/_attempts/part-"), "/manifest.json 4", long("/parts/part-"), long("?delete")]
)
def test_a_run_that_is_killed_with_a_request_on_its_way_is_completed(
    place: Place, store: ObjectStore, url: str, at: str
) -> None:
    """The fourth put of the manifest names the first parts: two more say whether conditions count."""
    where, _, number = at.partition(" ")
    left = int(number or 1)
    command = [sys.executable, "-m", "quorumlog", "pipeline", "archive", url, "--servers", place.servers]

    def kill(method: str, path: str) -> Fault:
        nonlocal left
        left -= method in ("PUT", "POST") and where in path
        if left > 0 or process.poll() is not None:
            return "pass"
        process.send_signal(signal.SIGKILL)
        return "cut"

    ready = threading.Event()
    store.rule = lambda method, path: kill(method, path) if ready.wait(60) else "pass"
    process = subprocess.Popen(command)
    ready.set()
    assert process.wait(60) == -signal.SIGKILL
    store.rule = no_fault
    archive(place, url)
    assert is_whole(place, url)


def test_a_run_whose_file_is_removed_names_the_other_run(url: str) -> None:
    ours = Archive.open_to_add(url, "default", "")
    Archive.open_to_add(url, "default", "")._commit(ours.manifest)
    part = Part(
        file="p",
        first_index=0,
        stop_index=1,
        rows=1,
        bytes=1,
        chain_before=0,
        last_term=1,
        last_chain=1,
        time_ms=-1,
    )
    with pytest.raises(ConfigError, match="another archive run has written there"):
        ours.add([(part, "gone")])


class During:
    """Another run is there while this one writes."""

    def __init__(self, first: Callable[[], Any], then: Callable[[], Any]) -> None:
        self._first, self._then = first, then

    def map(self, run: Callable[[Any], Any], works: Sequence[Any]) -> Iterator[Any]:
        self._first()
        done = list(LocalEngine().map(run, works))
        self._then()
        yield from done


@pytest.mark.parametrize("when", ["before our files", "behind our files"])
def test_of_two_runs_at_once_one_is_refused_and_nothing_is_lost(
    place: Place, url: str, when: str
) -> None:
    archive(place, url, part_bytes=50_000, stop_index=1_000)

    def other() -> None:
        assert archive(place, url, part_bytes=50_000, stop_index=2_000).new_entries == 1_000

    engine = During(other, int) if when == "before our files" else During(int, other)
    with pytest.raises(ConfigError, match="another archive run has written there"):
        archive(place, url, part_bytes=40_000, engine=engine)
    assert Archive.open(url).stop_index == 2_000
    assert archive(place, url, part_bytes=50_000).new_entries > 0
    assert is_whole(place, url)


def test_two_runs_that_begin_an_archive_together(place: Place, url: str) -> None:
    barrier, ended = threading.Barrier(2), []

    def run() -> None:
        barrier.wait()
        try:
            ended.append(archive(place, url, part_bytes=50_000).archive)
        except ConfigError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [text for text in ended if text != url]
    assert len(ended) == 2 and len(refused) < 2
    assert all("another archive run has written there" in text for text in refused)
    archive(place, url, part_bytes=50_000)
    assert is_whole(place, url)


@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
def test_a_store_that_ignores_conditions_is_refused(
    place: Place, store: ObjectStore, url: str, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    monkeypatch.setattr(store, "dropped", {header.lower()})
    with pytest.raises(ConfigError, match=f"ignores {header}"):
        archive(place, url)
    assert set(objects_of(url)) == {MANIFEST_NAME}


def test_what_cannot_be_an_archive_is_told_and_no_secret_is(
    place: Place, store: ObjectStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="there is no bucket nowhere"):
        archive(place, "s3://nowhere/orders")
    with pytest.raises(ConfigError, match="holds no archive"):
        Archive.open(url)
    put(url, "letters.txt", b"dear")
    with pytest.raises(ConfigError, match=r"letters\.txt and no archive"):
        archive(place, url)
    for wrong in (
        "s3://",
        "s3://KEY:SECRET@lake/a",
        "s3://lake/a?secret=SECRET",
        "s3://lake/../a",
        "s3://lake//a",
    ):
        with pytest.raises(ConfigError, match="s3://BUCKET/PREFIX") as told:
            archive(place, wrong)
        assert "SECRET" not in str(told.value).replace("AWS_SECRET_ACCESS_KEY", "")
    store.rule = lambda method, path: "deny"
    with pytest.raises(ConfigError, match=r"SignatureDoesNotMatch .*AWS_ACCESS_KEY_ID") as refused:
        archive(place, url)
    assert "what-was-signed" not in str(refused.value)
    store.rule = no_fault
    asked = "Error performing PUT http://169.254.169.254/latest/api/token in 3s"
    with pytest.raises(ConfigError, match="no role that gives credentials"), archive_folders.asking(url):
        raise obstore.exceptions.GenericError(asked)
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(ConfigError, match="set AWS_ALLOW_HTTP=true"):
        archive(place, url)


def test_without_the_extra_it_is_named(place: Place, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    archive_folders._clients.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match="the extra `s3`"):
        archive(place, url)


@pytest.mark.parametrize("fault", ["refuse", "cut", "repeat"])
def test_an_upload_in_pieces_is_whole_whatever_becomes_of_its_requests(
    store: ObjectStore, url: str, fault: Fault
) -> None:
    content, met = os.urandom(25 << 20), set()

    def once(method: str, path: str) -> Fault:
        """By what a request is, and not by the upload that it is of."""
        kind = (method, path.partition("?")[2].partition("&uploadId")[0].partition("uploadId")[0])
        if method in ("GET", "HEAD") or kind in met:
            return "pass"
        met.add(kind)
        return fault

    folder = ObjectFolder(url)
    store.rule = once
    file = folder.create("_attempts/a")
    file.write(content)
    assert folder.finish("_attempts/a", file) == len(content)
    assert len(met) > 3, "begun, in pieces, ended"
    assert objects_of(url) == {"_attempts/a": content}


def test_the_commands_on_the_page_work_as_they_are_printed(
    place: Place, store: ObjectStore, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
    [block] = [each for each in page.split("```sh\n")[1:] if "s3://" in each.partition("```")[0]]
    commands = block.partition("```")[0]
    for name, value in store.environment.items():
        commands = re.sub(rf"{name}=\S+", f"{name}={value}", commands)
    commands = commands.replace("127.0.0.1:20911", place.servers).replace("//lake/", f"//{BUCKET}/page/")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-euc", commands],
        capture_output=True,
        text=True,
        env={"PATH": path, "AWS_ALLOW_HTTP": "true"},
        cwd=tmp_path,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    said = " ".join(ran.stdout.split())
    assert f"s3://{BUCKET}/page/orders holds entries 0 to" in said and "all places agree" in said
    secret = store.environment["AWS_SECRET_ACCESS_KEY"]
    assert secret not in ran.stdout + ran.stderr
    assert not any(secret.encode() in each for each in objects_of(f"s3://{BUCKET}/page/orders").values())
    assert not list(tmp_path.iterdir())
