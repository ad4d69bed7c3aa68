"""After the members have stopped: do their data directories hold the same log?"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from harness.member_processes import MemberProcesses
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import OsDisk
from quorumlog.store.verification import compare_directories as compare_logs
from quorumlog.store.verification import verify_directory


class Comparison(NamedTuple):
    name: str
    agrees: bool
    detail: str


NAME = "the three data directories hold the same log"


def stop_followers_first(members: MemberProcesses, leader_id: str) -> None:
    """SIGTERM, one after the other. A leader told first would hand over, and the next one would open
    its term with an entry that members who stop meanwhile lack: no loss, but not the same log."""
    for member in sorted(members.members, key=lambda member: member.member_id == leader_id):
        member.stop()


def compare_directories(paths: list[Path]) -> Comparison:
    """Check every entry of every directory; all must be the same and end together."""
    disk = OsDisk()
    for path in paths:
        verification = verify_directory(disk, str(path))
        if not verification.ok:
            return Comparison(NAME, False, f"{path}: {verification.problem}")
    with ExitStack() as stack:
        readers = [stack.enter_context(DirectoryReader(disk, str(path))) for path in paths]
        found = compare_logs(readers)
        chains = {reader.end.chain for reader in readers}
    if found.first_difference is not None:
        return Comparison(NAME, False, f"they differ from index {found.first_difference} on")
    if len(set(found.end_indices)) != 1 or len(chains) != 1:
        ends = ", ".join(map(str, found.end_indices))
        return Comparison(
            NAME, False, f"they agree up to index {found.stop_index - 1}, but end at {ends}"
        )
    return Comparison(
        NAME, True, f"{found.stop_index - found.first_index:,} entries, chain {chains.pop():08x}"
    )
