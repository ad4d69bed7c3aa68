"""ROOT/replica: what a store has promised, also of the release before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quorumlog.broker.epochs import CopyList, Epoch, Peer, Run
from quorumlog.broker.replication.replica_file import ReplicaFile, ReplicaRecord
from quorumlog.broker.store.log_files import BrokerRole
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.store.state_files import replace_file
from quorumlog.testing.disk import SimDisk

ME = Peer(id="a", directory_id="", address="h:1", ha_address="h:2")


def peer(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "directory_id": f"{name}1",
        "address": "",
        "ha_address": "",
        "has_to_join": False,
    }


def old_record(**fields: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "id": "a",
        "directory_id": "a1",
        "promised_epoch": 3,
        "history": [(1, 77, 0), (3, 0, 900)],
        "role": "SYNC_MASTER",
        "in_sync_replicas": 2,
        "counted": [peer("b"), peer("c")],
        "topics": {"t": 4},
        **fields,
    }


def loaded(record: dict[str, Any], *, has_lists: bool = True) -> ReplicaRecord:
    disk = SimDisk()
    disk.make_directory("store")
    replace_file(disk, "store/replica", msgspec.json.encode(record), synced=True)
    found = ReplicaFile(disk, "store").load(ME, has_lists=has_lists)
    assert found is not None
    return found


def test_a_master_of_the_release_before_has_the_list_of_who_counted() -> None:
    record = loaded(old_record())
    assert record.promised == Epoch(3, "")
    assert [run.key for run in record.history] == [(1, "", 77), (3, "", 0)]
    listed = record.history[0].copy_list
    assert isinstance(listed, CopyList)
    assert [each.directory_id for each in listed.members] == ["a1", "b1", "c1"]
    assert listed.members[0].address == "h:1"
    assert listed.copies == 2
    assert (record.role, record.topics) == (BrokerRole.SYNC_MASTER, {"t": 4})
    assert loaded(old_record(), has_lists=False).history[0] == Run(1, "", 77, 0)


def test_a_slave_of_the_release_before_counts_its_master() -> None:
    met = old_record(
        id="b",
        directory_id="b1",
        role="SLAVE",
        master=peer("a"),
        has_met_master=True,
        counted=[peer("b"), peer("c")],
    )
    record = loaded(met)
    listed = record.history[0].copy_list
    assert listed is not None
    assert listed.ids == ["a", "b", "c"]
    assert record.master == Peer(id="a", directory_id="a1")
    fresh = loaded(old_record(role="SLAVE", promised_epoch=0, history=[], counted=[]))
    assert fresh.history == []


@pytest.mark.parametrize(
    "fields",
    [
        {"joining": ["c"]},
        {"lowered_from": 3},
        {"told": [peer("b")]},
        {"promised_epoch": 4},
        {"role": "SLAVE", "master": peer("b"), "has_met_master": False},
    ],
)
def test_a_record_in_the_middle_of_a_change_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="finish it there"):
        loaded(old_record(**fields))


def test_the_release_before_can_tell_the_format() -> None:
    """It knows `history` as numbers, and would take the file for damaged."""
    known = msgspec.json.decode(msgspec.json.encode(old_record())).keys()
    record = ReplicaRecord(id="a", directory_id="a1", history=[Run(1, "a1", 0, 0)])
    written = msgspec.json.decode(msgspec.json.encode(record))
    assert written["format"] == 2
    shared = {each: written[each] for each in written.keys() & known}
    assert {each: type(value) for each, value in shared.items()} == {
        each: type(old_record()[each]) for each in shared
    }
    assert "history" not in written


def test_what_cannot_be_read_is_said() -> None:
    with pytest.raises(DirectoryDamaged, match="has lost the epochs that it promised"):
        loaded({"format": 2, "id": 7})
    with pytest.raises(ConfigError, match="is of format 3, this release knows 2"):
        loaded({"format": 3})
