"""Cluster: the members under test, the proxy between them, and which of them were down when."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from harness.encryption import encrypted_clients
from harness.member_processes import MemberFailed, MemberProcesses
from harness.proxy import Network
from nemesis.damage import DamageKind
from nemesis.machines import FACTORY, NAME, SNAPSHOT_ENTRIES
from quorumlog import LedgerClient, MemberStatusRow, connect, leader_of

SEGMENT_BYTES = 4 << 20
"""Small, so that a run of minutes crosses many segment ends."""
RESERVE_STEP_BYTES = 1 << 20
"""Small too: a full disk is noticed when the next step is to be reserved."""
SMALL_DISK_BYTES = 4 << 30
SCRUB_START_DELAY_MS = 200
SCRUB_BYTES_PER_SECOND = 1 << 30
"""A member that was damaged has read all of its log soon after its start."""
AUTO_REPLACE_AFTER_MS = 1000
"""A directory that is lost is replaced as soon as that is certain."""
STATUS_TIMEOUT_MS = 1000
SETTLE_TIMEOUT_S = 60.0
POLL_S = 0.05


class NotWhole(RuntimeError):
    """The faults are over and the group is not whole again; the message has what each member says."""


class Outage(NamedTuple):
    """A member was killed or stopped."""

    member_id: str
    began_ns: int
    ended_ns: int
    keeps_state: bool
    """It was only stopped, and went on as what it was."""


class Cluster:
    """`with Cluster(folder, 3) as cluster:` starts the proxy and the members; none is left behind it.

    `with_small_disk`: the last member's directory lies on a file system of its own, which needs the
    right to mount. `retention_bytes`: so much of the log stays, and nobody who is away is waited for; 0:
    all of it.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        *,
        with_small_disk: bool,
        seed: int = 0,
        retention_bytes: int = 0,
        command_of: Callable[[str], Sequence[str]] | None = None,
        earlier: Path | None = None,
    ) -> None:
        """`command_of`: as of `MemberProcesses`; it brings its own state machine then. `earlier`: the
        folder of another quorumlog. The first member begins with it, so that nothing is written that it
        cannot read, and whenever a member starts again either is drawn."""
        options: dict[str, Any] = {"segment_bytes": SEGMENT_BYTES}
        if earlier is None:
            options["log_format"] = "json"  # the release before has none
        if command_of is None:
            options["state_machines"] = {NAME: FACTORY}
        if retention_bytes:
            options |= {
                "segment_bytes": max(64 << 10, retention_bytes // 8),
                "index_segment_bytes": 64 << 10,
                "retention_bytes": retention_bytes,
                "retention_follower_budget_bytes": 0,
            }
        self.members = MemberProcesses(
            folder,
            count=count,
            reserve_step_bytes=RESERVE_STEP_BYTES,
            scrub_start_delay_ms=SCRUB_START_DELAY_MS,
            scrub_bytes_per_second=SCRUB_BYTES_PER_SECOND,
            auto_replace_after_ms=AUTO_REPLACE_AFTER_MS,
            command_of=command_of,
            snapshot_entries=SNAPSHOT_ENTRIES,
            **options,
        )
        self.member_ids = tuple(member.member_id for member in self.members.members)
        addresses = {member.member_id: member.address for member in self.members.members}
        self.network = Network(addresses, seed=seed)
        self.small_disk_id = self.member_ids[-1] if with_small_disk else None
        self.outages: list[Outage] = []
        self._down: dict[str, tuple[int, bool]] = {}
        """By member: since when, and whether it is only stopped."""
        self._earlier = earlier
        self._releases = random.Random(seed)
        self._older: set[str] = set()
        """Members that run `earlier`."""
        self._older_starts = 0
        self._damaged: set[str] = set()
        """Members that have not been seen to be repaired since."""
        self._stack = ExitStack()
        self.client: LedgerClient
        """Asks for status only."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.network)
            if self.small_disk_id is not None:
                stack.enter_context(SmallDisk(self.members[self.small_disk_id].data_dir))
            self.members.reach_at(
                {member_id: self.network.common_address(member_id) for member_id in self.member_ids}
            )
            if self._earlier is not None:
                self._run_earlier(self.member_ids[0])
            stack.enter_context(self.members)
            stack.enter_context(encrypted_clients())
            self.client = stack.enter_context(connect(self.members.servers))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    # ---------------------------------------------------------------- what faults do to members

    def kill(self, member_id: str) -> None:
        self._down[member_id] = (time.monotonic_ns(), False)
        self.members[member_id].kill()

    def start(self, member_id: str) -> None:
        self._is_up(member_id)
        if self._earlier is not None:
            self._older.discard(member_id)
            self.members[member_id].run_package(None)
            if self._releases.random() < 0.5:
                self._run_earlier(member_id)
        self.members[member_id].start()

    def _run_earlier(self, member_id: str) -> None:
        self.members[member_id].run_package(self._earlier)
        self._older.add(member_id)
        self._older_starts += 1

    def damage(self, member_id: str, kind: DamageKind, rng: random.Random) -> None:
        """Of a killed member. The group is whole again only when a scrub has found nothing left."""
        assert member_id in self._down, f"{member_id} runs"
        self._damaged.add(member_id)
        kind(self.members[member_id].data_dir, rng)

    def wipe(self, member_id: str) -> None:
        """Of a killed member: its directory is empty from now on."""
        assert member_id in self._down, f"{member_id} runs"
        self._damaged.discard(member_id)
        for path in self.members[member_id].data_dir.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def pause(self, member_id: str) -> None:
        self._down[member_id] = (time.monotonic_ns(), True)
        self.members[member_id].pause()

    def resume(self, member_id: str) -> None:
        self._is_up(member_id)
        self.members[member_id].resume()

    def _is_up(self, member_id: str) -> None:
        """Noted first: what it says when it goes on must not lie before."""
        began_ns, keeps_state = self._down.pop(member_id)
        self.outages.append(Outage(member_id, began_ns, time.monotonic_ns(), keeps_state))

    @property
    def down_ids(self) -> set[str]:
        """Killed or stopped at the moment."""
        return set(self._down)

    # ---------------------------------------------------------------- looking at it

    @property
    def releases(self) -> str:
        """For people: who runs the release before."""
        return f"; {', '.join(sorted(self._older))} older" if self._older else ""

    @property
    def starts_by_release(self) -> tuple[int, int]:
        """Of this one, and of the one before."""
        return sum(
            member.starts for member in self.members.members
        ) - self._older_starts, self._older_starts

    def check_running(self) -> None:
        """Raises MemberFailed if a member has ended that nobody killed."""
        for member in self.members.members:
            if member.member_id not in self._down and not member.running:
                raise MemberFailed(f"{member.member_id} ended by itself:\n{member.last_words()}")

    def leader_id(self) -> str | None:
        """Of the highest term, as the members say it now."""
        leader = leader_of(self._status())
        return leader.id if leader is not None else None

    def address_by_log(self, member_id: str) -> str:
        """Where the others find it, as the leader says, or else as they were told at their start."""
        leader = leader_of(self._status())
        told = leader.members if leader is not None else ()
        configured = self.members[member_id].address
        return next((info.address for info in told if info.id == member_id), configured)

    def wait_until_whole(self, *, all_equal: bool = False) -> str:
        """Until every member follows one leader and has, committed and on disk, all that the leader held
        when first seen so, and those that were damaged are repaired; `all_equal`: until their logs end
        together. Returns the leader's id. Raises NotWhole, MemberFailed.

        Damage that nobody has read yet must be over, too: the next fault may damage another member, and
        entries that two of three have lost are nowhere to be had.
        """
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        # By term: the next leader may never have what the last one held. Not the committed index, which
        # says nothing before the leader's first entry is committed.
        goals: dict[int, int] = {}
        while True:
            self.check_running()
            rows = self._status()
            leader = _common_leader(rows)
            self._damaged -= {row.id for row in rows if _is_repaired(row)}
            if leader is not None:
                goal = goals.setdefault(leader.term, leader.ledger_end_index)
                ends = {(row.ledger_end_index, row.committed_index) for row in rows}
                has_all = all(min(row.committed_index, row.durable_index) >= goal for row in rows)
                if has_all and not self._damaged and (not all_equal or len(ends) == 1):
                    return leader.id
            if time.monotonic() > deadline_s:
                said = "\n".join(map(_describe, rows))
                raise NotWhole(f"not whole again within {SETTLE_TIMEOUT_S:g} s:\n{said}")
            time.sleep(POLL_S)

    def _status(self) -> list[MemberStatusRow]:
        return self.client.status(timeout_ms=STATUS_TIMEOUT_MS)


def _common_leader(rows: list[MemberStatusRow]) -> MemberStatusRow | None:
    if not all(row.reachable for row in rows) or len({row.term for row in rows}) > 1:
        return None
    leader = leader_of(rows)
    followers = [row for row in rows if row.role == "follower"]
    if leader is None or len(followers) != len(rows) - 1:
        return None
    return leader if {row.leader_id for row in followers} <= {leader.id} else None


def _is_repaired(row: MemberStatusRow) -> bool:
    """Since its start all of its log was read, and what was damaged has been replaced."""
    return bool(row.reachable and row.scrub_passes and not row.damaged_entries)


def _describe(row: MemberStatusRow) -> str:
    if not row.reachable:
        return f"{row.id or row.address}: {row.problem}"
    return (
        f"{row.id}: {row.role} in term {row.term}, leader {row.leader_id or 'unknown'}, end"
        f" {row.ledger_end_index}, committed {row.committed_index}, {row.scrub_passes} scrubs,"
        f" {row.damaged_entries} damaged entries, {row.waits_for}"
        f" {'; '.join(row.problems)}"
    )


class SmallDisk:
    """A tmpfs mounted for the time of the context. Raises CalledProcessError where that is refused."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True)
        options = f"size={SMALL_DISK_BYTES}"
        _run("mount", "-t", "tmpfs", "-o", options, "quorumlog-nemesis", str(self.path))
        return self

    def __exit__(self, *reason: object) -> None:
        # Lazily: whoever looks at a log meanwhile must not keep it.
        _run("umount", "-l", str(self.path))


def fill_disk(path: Path) -> None:
    """Leave no free page on the tmpfs at `path`: its limit becomes what it holds."""
    while True:
        usage = os.statvfs(path)
        used_bytes = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
        try:
            _run("mount", "-o", f"remount,size={used_bytes}", str(path))
        except subprocess.CalledProcessError:
            # A page was taken in between: the kernel does not set a limit below what is held.
            if os.statvfs(path).f_blocks - os.statvfs(path).f_bfree == used_bytes // usage.f_frsize:
                raise
        else:
            return


def empty_disk(path: Path) -> None:
    _run("mount", "-o", f"remount,size={SMALL_DISK_BYTES}", str(path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def may_mount() -> bool:
    """Whether this process can have a small file system of its own; it is tried."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with SmallDisk(Path(folder) / "disk"):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False
