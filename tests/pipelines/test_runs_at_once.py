"""Several runs of `archive` on one place: one goes on, each other says so; works of a run that is over
leave nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from quorumlog.errors import ConfigError, StoreFailure, Unreachable
from quorumlog.pipelines.archive import ATTEMPTS, PARTS, Archive, load_manifest
from quorumlog.pipelines.archive_folders import folder_at
from quorumlog.pipelines.archive_parts import PartWriter
from quorumlog.pipelines.archiving import PartWork, archive, write_part
from quorumlog.pipelines.engine import LocalEngine
from quorumlog.pipelines.places import Place
from tests.pipelines.test_object_archives import (  # noqa: F401
    entries_of,
    objects_of,
    place,
    running_store,
    store,
    url,
)

REFUSED = r"is being written by another archive run|another archive run has written there"


@pytest.fixture(params=["folder", "objects"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an archive that is not there."""
    if request.param == "folder":
        return str(tmp_path / "a")
    found: str = request.getfixturevalue("url")
    return found


def names_in(target: str) -> set[str]:
    if target.startswith("s3://"):
        return set(objects_of(target))
    return {str(path.relative_to(target)) for path in Path(target).rglob("*") if path.is_file()}


def check_whole(place: Place, target: str) -> None:  # noqa: F811
    """Every entry once, and nothing beside what counts."""
    archived = Archive.open(target)
    assert entries_of(Place(archive=target)) == entries_of(place, archived.stop_index)
    named = {f"{PARTS}/{part.file}" for part in archived.manifest.parts}
    assert names_in(target) - {"lock"} == {"manifest.json", *named} and not archived.manifest.moving


class Gone(BaseException):
    """The driver is."""


class Abandoned:
    """The works are known, and whoever had them done is gone."""

    def __init__(self) -> None:
        self.works: list[PartWork] = []

    def map(self, run: Callable[[Any], Any], works: Sequence[Any]) -> Iterator[Any]:
        self.works += works
        raise Gone


@pytest.mark.parametrize("when", ["late", "in its middle", "at its end"])
def test_a_work_of_a_run_that_is_over_leaves_nothing(
    place: Place,  # noqa: F811
    target: str,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    lost = Abandoned()
    with pytest.raises(Gone), monkeypatch.context() as patched:
        patched.setattr(Archive, "end_run", lambda *_: None)
        archive(place, target, part_bytes=50_000, engine=lost)
    assert any(name.startswith(f"{ATTEMPTS}/") for name in names_in(target))

    def next_run() -> None:
        archive(place, target, part_bytes=50_000)

    if when == "late":
        next_run()
    finish, begin = PartWriter.finish, PartWriter.__init__
    is_ours = threading.local()
    is_ours.yes = True

    def begun(writer: PartWriter, *given: Any) -> None:
        begin(writer, *given)
        if when == "in its middle" and vars(is_ours).pop("yes", False):
            next_run()

    def finished(writer: PartWriter) -> Any:
        """Between the listings of the next run, and behind them."""
        part = finish(writer)
        if when == "at its end" and vars(is_ours).pop("yes", False):
            next_run()
        return part

    monkeypatch.setattr(PartWriter, "__init__", begun)
    monkeypatch.setattr(PartWriter, "finish", finished)
    with pytest.raises((ConfigError, FileNotFoundError)) as refused:
        write_part(lost.works[0])
    assert "another archive run has written there" in str(refused.value) or when != "at its end"
    with pytest.raises(ConfigError):
        write_part(lost.works[1])
    check_whole(place, target)


class Failing:
    """The first part is written, and then the run cannot go on."""

    def map(self, run: Callable[[Any], Any], works: Sequence[Any]) -> Iterator[Any]:
        yield run(works[0])
        raise Unreachable("no member answers")


def test_a_run_that_failed_leaves_nothing(place: Place, target: str) -> None:  # noqa: F811
    with pytest.raises(Unreachable):
        archive(place, target, part_bytes=50_000, engine=Failing())
    check_nothing_beside(target)
    archive(place, target)
    check_whole(place, target)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_run_whose_manifest_had_no_answer_keeps_what_it_names(
    place: Place,  # noqa: F811
    target: str,
    monkeypatch: pytest.MonkeyPatch,
    is_named: bool,
) -> None:
    """It failed, and may have been put all the same."""
    real = type(folder_at(target)).replace_manifest

    def unanswered(folder: Any, content: bytes, tag: str) -> str:
        names_some = b'"file"' in content
        if is_named or not names_some:
            tag = real(folder, content, tag)
        if names_some:
            raise StoreFailure("no answer")
        return tag

    with monkeypatch.context() as patched, pytest.raises(StoreFailure):
        patched.setattr(type(folder_at(target)), "replace_manifest", unanswered)
        archive(place, target, part_bytes=50_000)
    manifest, _ = load_manifest(folder_at(target))
    assert bool(manifest and manifest.parts) is is_named
    check_nothing_beside(target)
    archive(place, target)
    check_whole(place, target)


def check_nothing_beside(target: str) -> None:
    """What the manifest names, wherever it lies by now; and all of it can be read."""
    manifest, _ = load_manifest(folder_at(target))
    files = names_in(target) - {"lock", "manifest.json"}
    if manifest is None or not manifest.parts:
        assert not files
        return
    assert files == {each.source for each in manifest.moving}
    assert entries_of(Place(archive=target))


@pytest.mark.parametrize("is_killed", [False, True], ids=["both go on", "one is killed"])
def test_runs_that_begin_together(
    place: Place,  # noqa: F811
    target: str,
    is_killed: bool,
) -> None:
    """Three, as processes, with no archive and then with one."""
    command = [sys.executable, "-m", "quorumlog", "pipeline", "archive", target]
    command += ["--servers", place.servers]
    for stop_index in ("1000", "2000"):
        running = [
            subprocess.Popen([*command, "--to", stop_index], stderr=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        if is_killed:
            running[0].kill()
        ended = [(process.communicate(timeout=120)[1], process.returncode) for process in running]
        refused = [told for told, status in ended[is_killed:] if status]
        for told in refused:
            assert any(each in told for each in REFUSED.split("|")) and "Traceback" not in told, told
        archive(place, target, stop_index=int(stop_index))
        assert Archive.open(target).stop_index == int(stop_index)
        check_whole(place, target)


def test_a_second_run_in_the_middle_of_the_first(place: Place, target: str) -> None:  # noqa: F811
    ended: list[str] = []

    class Meanwhile(LocalEngine):
        def map(self, run: Callable[[Any], Any], works: Sequence[Any]) -> Iterator[Any]:
            for number, result in enumerate(super().map(run, works)):
                if number == 1:
                    try:
                        archive(place, target, part_bytes=40_000, stop_index=2_000)
                        ended.append("")
                    except ConfigError as error:
                        ended.append(str(error))
                yield result

    try:
        archive(place, target, part_bytes=30_000, engine=Meanwhile())
        ended.append("")
    except ConfigError as error:
        ended.append(str(error))
    [refused] = filter(None, ended)
    assert "another archive run" in refused
    archive(place, target)
    check_whole(place, target)
