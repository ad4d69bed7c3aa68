"""inspect: what is in a directory, and what is wrong where."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from quorumlog.entry import Formation, HardState, Replica
from quorumlog.store.disk import OsDisk
from quorumlog.store.verification import inspect_directory, verify_directory
from tests.store.made_logs import append, fill, flip, make_directory, open_small, opened

disk = OsDisk()


def printed(view: Any) -> Any:
    """As a command prints it."""
    return json.loads(json.dumps(view.to_json()))


def test_a_directory_in_full(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    with opened(path) as directory:
        own = Replica("n0", directory.directory_id)
        founding = (own, Replica("n1", "d1"))
        directory.save_formation(Formation((), founding, "ab" * 16))
        directory.save_hard_state(HardState(1, own))
        fill(directory, 20, term=1)
        directory.save_hard_state(HardState(4, Replica("n1", "d1")))
        fill(directory, 30, term=4)
    view = printed(inspect_directory(disk, str(path)))
    assert json.loads(json.dumps(view)) == view
    segments = view.pop("segments")
    taken = {folder: [file.stat() for file in (path / folder).iterdir()] for folder in ("data", "index")}
    files = taken["data"] + taken["index"]
    assert view.pop("log_disk_bytes") == sum(file.st_blocks * 512 for file in files)
    assert view.pop("backup") is None
    assert view.pop("log_apparent_bytes") == 1024 * len(taken["data"]) + 320 * len(taken["index"])
    assert view == {
        "directory": str(path),
        "format": "quorumlog",
        "in_use": False,
        "group": "g",
        "member_id": "n0",
        "directory_id": own.directory_id,
        "formation": {
            "cluster_id": "ab" * 16,
            "founding": [
                {"member_id": "n0", "directory_id": own.directory_id},
                {"member_id": "n1", "directory_id": "d1"},
            ],
            "pending": [],
        },
        "ledger_begin_index": 0,
        "ledger_end_index": 29,
        "ledger_end_term": 4,
        "current_term": 4,
        "voted_for": "n1",
        "committed_index": 29,
        "durable_index": 29,
        "segment_bytes": 1024,
        "index_segment_bytes": 320,
        "start": None,
        "states": [],
        "damage": [],
        "damaged": [],
        "tail": "",
    }
    assert [segment["file"] for segment in segments] == [
        f"data/{1024 * number:020d}" for number in range(len(segments))
    ]
    assert segments[0]["first_index"] == 0
    for segment, following in pairwise(segments):
        assert following["first_index"] == segment["last_index"] + 1
        assert following["first_term"] >= segment["last_term"] >= segment["first_term"]
    assert segments[-1]["last_index"] == 29
    assert (segments[0]["first_term"], segments[-1]["last_term"]) == (1, 4)
    assert all(0 < segment["bytes_used"] <= 1024 - 8 for segment in segments)


def test_damage_names_file_position_and_index(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "n0", 40)
    data = path / "data" / f"{1024:020d}"
    entry = int.from_bytes(data.read_bytes()[8:16], "big")
    flip(data, 47 + 1)  # in the body, or in the next header if there is no body
    quick = inspect_directory(disk, str(path), verify_entries=False)
    assert quick.damage == ()
    (damage,) = printed(inspect_directory(disk, str(path)))["damage"]
    assert damage["file"] == f"data/{1024:020d}"
    assert damage["index"] == entry
    assert damage["position"] == 1024
    assert "body_crc" in damage["problem"]


def test_lost_small_files_and_a_tail(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    directory = open_small(path)
    fill(directory, 5)
    end = directory.store.end
    append(directory.store, [b"torn"], 1)
    directory.close(clean=False)
    flip(path / "data" / f"{0:020d}", end.position + 50)
    (path / "hardstate").write_bytes(b"")
    view = inspect_directory(disk, str(path))
    assert view.ledger_end_index == 4
    assert view.current_term == -1
    assert [damage.path for damage in view.damage] == ["hardstate"]
    assert "body_crc does not match" in view.tail


def test_what_waits_to_be_repaired_is_shown_with_what_is_known_of_it(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "n0", 40)
    whole = inspect_directory(disk, str(path))
    (path / "data" / f"{1024:020d}").unlink()
    with opened(path) as directory:  # a start makes the file again, and notes what it has lost
        (lost,) = directory.store.damaged
    view = inspect_directory(disk, str(path))
    (damaged,) = view.to_json()["damaged"]
    assert damaged == {
        "first_index": whole.segments[1].first_index,
        "stop_index": whole.segments[1].last_index + 1,
        "terms": [{"first_index": lost.first_index, "term": 1}, {"first_index": 20, "term": 2}],
        "chain_before": lost.before.chain,
        "chain_at_last": lost.last.chain,
        "file": f"data/{1024:020d}",
        "position": lost.before.position,
        "problem": lost.problem,
    }
    assert view.ledger_end_index == whole.ledger_end_index
    found = verify_directory(disk, str(path))
    assert not found.ok
    assert found.to_json()["damaged"] == [damaged]


def test_a_note_that_nobody_can_read_is_damage(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "n0", 40)
    (path / "damaged").write_bytes(b"[]\ncrc32=0\n")
    view = inspect_directory(disk, str(path))
    assert [damage.path for damage in view.damage] == ["damaged"]
    assert view.damaged == ()
    assert "damaged: is unreadable" in verify_directory(disk, str(path)).problem


def test_a_running_member(tmp_path: Path) -> None:
    with opened(tmp_path / "n0") as directory:
        fill(directory, 5)
        assert inspect_directory(disk, str(tmp_path / "n0")).in_use


def test_an_empty_directory_of_a_member(tmp_path: Path) -> None:
    with opened(tmp_path / "n0"):
        pass
    view = printed(inspect_directory(disk, str(tmp_path / "n0")))
    assert (view["ledger_begin_index"], view["ledger_end_index"], view["segments"]) == (-1, -1, [])
    assert (view["current_term"], view["voted_for"], view["committed_index"]) == (0, None, -1)
