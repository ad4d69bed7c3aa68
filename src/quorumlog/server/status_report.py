"""StatusReport: the state of a member, and its problems, for clients that ask."""

from __future__ import annotations

import time
from collections.abc import Sequence

from quorumlog.config import GroupConfig, StoreConfig
from quorumlog.consensus.membership import Membership
from quorumlog.consensus.ready import MemberStatus, Role
from quorumlog.consensus.replication import NAMED_AFTER
from quorumlog.entry import Durability, Replica
from quorumlog.errors import LedgerError, StoreFailure
from quorumlog.figures import now
from quorumlog.log_state.control_entries import LEVEL
from quorumlog.log_state.log_state import LostRange
from quorumlog.net.limits import process_limits
from quorumlog.net.listener import tls_problems
from quorumlog.node import LedgerNode
from quorumlog.server.peers.peer_table import PeerAdmission, PeerTable
from quorumlog.server.peers.stalled_peers import StalledPeers
from quorumlog.server.waiting_reads import ReadLater
from quorumlog.store.disk import DiskUsage
from quorumlog.store.member_directory import MemberDirectory
from quorumlog.version import VERSION
from quorumlog.wire.client_messages import MachineInfo, MemberInfo, StatusResponse

NEAR_ENTRIES = 10_000
"""A state machine that lacks more than so many committed entries answers from too long ago."""
DISK_WAITS_MS = 2_500
"""A sync that has not returned for so long: the disk takes no writes."""


class DiskReport:
    def __init__(self, directory: MemberDirectory, read_later: ReadLater) -> None:
        self._directory = directory
        self._read_later = read_later
        self.usage = DiskUsage(0, 0)
        """As of the newest look."""
        self._is_looking = False

    def problem(self, config: StoreConfig, lost: Sequence[LostRange] = ()) -> str:
        """In a sentence; empty while there is room. This look's findings go to the next caller. `lost`:
        entries that readers lost to full disks."""
        if self._directory.durability is Durability.MEMORY:
            return ""
        self._look()
        used_ratio = self.usage.used_ratio
        if used_ratio <= min(config.disk_space_ratio_to_force_clean, config.disk_full_ratio):
            return ""
        full = f"the disk of {self._directory.path} is nearly full{now(f'{100 * used_ratio:.0f} %')}"
        limit = f"{100 * config.disk_full_ratio:.0f} % (disk_full_ratio)"
        refuses = f"above {limit} no more space is reserved, and then appends are refused"
        if used_ratio > config.disk_full_ratio:
            refuses = f"it is above {limit}, so appends are refused once the reserved space is used"
        if config.deletes:
            past = f"also past readers{_losses(lost)}"
            if config.retention == "archived":
                past = "but only archived entries"
            return f"{full}: the oldest segments are deleted at any age, {past}; {refuses}"
        keeps = "nothing is deleted (file_reserved_hours, retention_bytes)"
        if config.retention == "off":
            keeps = "nothing is deleted here (retention = off)"
        return f"{full} and {keeps}; {refuses}: free space"

    def _look(self) -> None:
        def looked(found: DiskUsage | StoreFailure | LedgerError) -> None:
            self._is_looking = False
            if isinstance(found, DiskUsage):  # else the next use of the disk reports it
                self.usage = found

        if not self._is_looking:
            self._is_looking = True
            self._read_later(self._directory.usage, looked)


def _losses(lost: Sequence[LostRange]) -> str:
    ranges = (f"{r.name} has lost entries {r.first_index} to {r.stop_index - 1}" for r in lost)
    return now(", ".join(ranges)) if lost else ""


class StatusReport:
    def __init__(
        self,
        config: GroupConfig,
        node: LedgerNode,
        peers: PeerTable,
        admission: PeerAdmission,
        read_later: ReadLater,
    ) -> None:
        self._config = config
        self._node = node
        self._peers = peers
        self._admission = admission
        self._read_later = read_later
        self._stalled_peers = StalledPeers()
        self._looks_at_set_aside = False
        self.disk = DiskReport(node.directory, read_later)

    def response(self, request_id: int = 0) -> StatusResponse:
        status = self._node.status()
        peers = {peer.replica: peer for peer in status.peers}
        members = []
        for member_id, address in sorted(self._node.members.addresses().items()):
            own = member_id == self._config.member_id
            up = self._peers[member_id].control.up if member_id in self._peers else None
            directory_id = status.replica.directory_id if own else up.directory_id if up else ""
            replica = Replica(member_id, directory_id)
            peer = peers.get(replica)
            feeding = self._node.feeding(replica) if peer is not None else None
            members.append(
                MemberInfo(
                    id=member_id,
                    address=address,
                    directory_id=directory_id,
                    reachable=own or up is not None,
                    is_voter=_votes(status.membership, replica),
                    water_mark=status.durable_index if own else peer.match_index if peer else -1,
                    part=_part_of(member_id, status.membership),
                    behind_bytes=feeding.behind_bytes if feeding is not None else -1,
                    bytes_per_second=feeding.bytes_per_second if feeding is not None else -1,
                    answered_ms_ago=_age_of(member_id, replica, status),
                    release=VERSION if own else up.release if up else "",
                )
            )
        scrub = self._node.scrub_status()
        set_aside = self._node.store.set_aside.count
        self._look_at_set_aside()
        space = self._node.store.space_taken()
        mark = self._node.marks.newest
        leader_id = status.leader.member_id if status.leader is not None else ""
        leader_place = self._peers.place_beside(status.leader) if status.leader is not None else ""
        return StatusResponse(
            request_id=request_id,
            group=self._config.group,
            id=self._config.member_id,
            address=str(self._config.own_address),
            directory_id=status.replica.directory_id,
            cluster_id=self._node.directory.formation.cluster_id,
            role=status.role.value,
            term=status.term,
            leader_id=leader_id,
            leader_address=leader_place or next((m.address for m in members if m.id == leader_id), ""),
            ledger_begin_index=status.ledger_begin_index,
            ledger_end_index=status.ledger_end.index,
            durable_index=status.durable_index,
            committed_index=status.committed_index,
            flush=self._node.directory.durability.value,
            members=tuple(members),
            waits_for=status.waits_for,
            problems=self.problems(),
            version=VERSION,
            damaged_entries=sum(each.stop_index - each.first_index for each in self._node.store.damaged),
            scrub_next_index=scrub.next_index,
            scrub_stop_index=scrub.stop_index,
            scrub_passes=scrub.passes,
            scrub_ended_ms_ago=scrub.ended_ms_ago,
            set_aside_files=set_aside.files,
            set_aside_bytes=set_aside.size_bytes,
            log_disk_bytes=space.disk_bytes,
            log_apparent_bytes=space.apparent_bytes,
            voters=len(status.voters),
            quorum_size=status.membership.quorum_size if status.voters else 0,
            log_time_ms=-1 if mark is None else mark.time_ms,
            log_time_index=-1 if mark is None else mark.index,
            producers=self._node.sessions.count,
            membership_index=status.membership_index,
            level=LEVEL,
            log_level=self._node.log_state.level,
            machines=tuple(MachineInfo(**row._asdict()) for row in self._node.machines.status()),
            unready=self.unready(),
            over_limits=sum(process_limits().over.values()),
        )

    def unready(self) -> tuple[str, ...]:
        """Why nothing should be sent to this member just now, in sentences; empty: it is ready."""
        node, storage = self._node, self._node.config.storage
        found = [] if node.raft.leader is not None else ["it follows no leader"]
        for row in node.machines.status():
            lacks = node.committed_index - row.applied_index
            if lacks > NEAR_ENTRIES:
                found.append(f"{row.name} has yet to apply {lacks} committed entries")
        since_ms = node.disk_waits_since_ms
        if since_ms is not None and time.monotonic() * 1000 - since_ms >= DISK_WAITS_MS:
            found.append("its disk hangs: a sync does not return")
        if node.lacks_space:
            found.append(f"it takes no appends: {node.lacks_space}")
        elif self.disk.usage.used_ratio > storage.disk_full_ratio:
            found.append("its disk is above disk_full_ratio: it reserves no more space for appends")
        return tuple(found)

    def _look_at_set_aside(self) -> None:
        """For the next who asks: people may have deleted some of it."""

        def looked(result: StoreFailure | LedgerError | None) -> None:
            self._looks_at_set_aside = False

        if not self._looks_at_set_aside:
            self._looks_at_set_aside = True
            self._read_later(self._node.store.set_aside.look, looked)

    def problems(self) -> tuple[str, ...]:
        """Problems for the operator, in sentences, each once."""
        now_s, wall_s = time.monotonic(), time.time()
        status, timeout_ms = self._node.status(), self._config.consensus.election_timeout_ms
        silent = [each for each, age_ms in status.answered_ms_ago.items() if age_ms >= timeout_ms]
        stalled = self._stalled_peers.problems(status.peers, now_s * 1000, wall_s, silent)
        since_ms = self._node.disk_waits_since_ms
        if since_ms is not None and now_s * 1000 - since_ms >= NAMED_AFTER * timeout_ms:
            own = self._node.replica
            stalled.append(self._stalled_peers.own_problem(own, since_ms, now_s * 1000, wall_s))
        dropped = [peer.dropped.problem(now_s) for peer in self._peers.everybody()]
        state = self._node.log_state.committed
        lost = () if state is None else state.lost_ranges
        disk = self.disk.problem(self._node.config.storage, lost)
        found = (
            *self._node.problems(),
            *stalled,
            *filter(None, [*dropped, disk, process_limits().problem]),
            *tls_problems(),
            *self._admission.problems(),
        )
        return tuple(dict.fromkeys(found))


def _age_of(member_id: str, replica: Replica, status: MemberStatus) -> float:
    """See `MemberInfo.answered_ms_ago`: of the directory that is connected, or of whichever of that name
    was heard last."""
    if replica == status.replica:
        return 0.0 if status.role is Role.LEADER else -1.0
    ages = [
        age_ms
        for each, age_ms in status.answered_ms_ago.items()
        if each == replica or (not replica.directory_id and each.member_id == member_id)
    ]
    return min(ages, default=-1.0)


def _part_of(member_id: str, membership: Membership) -> str:
    """See `MemberInfo.part`."""
    ids = [[replica.member_id for replica in half] for half in (membership.old, membership.new)]
    was_voter, is_voter = (member_id in half for half in ids)
    if was_voter and is_voter:
        directories = [{r for r in half if r.member_id == member_id} for half in membership[:2]]
        return "voter" if directories[0] == directories[1] else "replaced"
    if was_voter or is_voter:
        return "joins" if is_voter else "leaves"
    is_learner = any(learner.member_id == member_id for learner in membership.learners)
    return "learner" if is_learner else ""


def _votes(membership: Membership, replica: Replica) -> bool:
    """A member that is not connected has the directory, as far as anybody knows, that it voted with."""
    if replica.directory_id:
        return membership.is_voter(replica)
    return any(voter.member_id == replica.member_id for voter in membership.voters())
