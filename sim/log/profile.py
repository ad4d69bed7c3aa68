"""What one of our own runs is like, drawn from its seed, and which options are at their edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from random import Random
from typing import Any, TypeVar

from quorumlog.config import ConsensusConfig, StoreConfig
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.testing.profile import (
    FAULT_KINDS,
    HANGING_DISK,
    LINK_KINDS,
    SimulationProfile,
    draw_cluster,
    random_beside,
)
from quorumlog.version import IS_COMPILED

T = TypeVar("T", ConsensusConfig, StoreConfig)

EDGES = (
    "push_limit_bytes",
    "push_window_bytes",
    "max_waiting_pushes",
    "max_uncommitted_bytes",
    "max_entry_bytes",
    "segment_bytes",
    "index_segment_bytes",
    "max_heartbeat_leak",
    "max_vote_interval_ms",
    "lost_connection_wait_ms",
)
"""Options that some runs have at the least that a configuration may say."""
EDGY_SHARE = 1 / 6
CHANGING_SHARE = 1 / 6
LOSING_SHARE = 1 / 2
"""Of those in which members change."""
REPLACING_SHARE = 1 / 8
USERS_SHARE = 1 / 4
"""Of those that lose nothing that was committed; a compiled session takes none but real connections."""
LOSING_KINDS = (
    "wipe",
    "lost hard state",
    "lost durable point",
    "flipped bit",
    "zeroed page",
)

LOSSY_DISK_KINDS = ("old copy", "lying disk")
"""What no log survives where it strikes a majority; met in runs on lossy disks only."""


def draw_profile(
    random: Random,
    size: int | None = None,
    *,
    lossy_disks: bool = False,
    member_changes: bool = False,
) -> SimulationProfile:
    """`member_changes`: members come and go, unless there is only one or disks are lossy."""
    beginning = Random()
    beginning.setstate(random.getstate())
    links = random_beside(beginning, "links")
    greetings, stops = random_beside(beginning, "connections"), random_beside(beginning, "stops")
    conditions = random_beside(beginning, "conditions")
    controls, marks = random_beside(beginning, "controls"), random_beside(beginning, "the time")
    members = random_beside(beginning, "members")
    sessions = random_beside(beginning, "producers")
    drops, keeps = random_beside(beginning, "drops"), random_beside(beginning, "retention")
    replacing, archives = random_beside(beginning, "replacements"), random_beside(beginning, "archives")
    machines, fresh = random_beside(beginning, "machines"), random_beside(beginning, "fresh reads")
    hanging, jumps = random_beside(beginning, "hanging disks"), random_beside(beginning, "clock jumps")
    users = random_beside(beginning, "users")
    profile = draw_cluster(random, size)
    size, segment_bytes = profile.size, profile.storage.segment_bytes
    profile = replace(
        profile,
        fault_kinds=(*profile.fault_kinds, *(LOSSY_DISK_KINDS if lossy_disks else ())),
        has_lossy_disks=lossy_disks,
        connects_one_by_one=greetings.random() < 0.4,
        stops_with_successor=stops.random() < 0.4,
        appends_conditionally=conditions.random() < 0.2,
        writes_controls=controls.random() < 0.3,
        producers=0 if lossy_disks else sessions.choice((0, 0, 0, 1, 2)),
        changes_members=(members.random() < CHANGING_SHARE or member_changes)
        and size > 1
        and not lossy_disks,
        time_marks=marks.random() < 0.3,
        drops_segments=not lossy_disks and drops.random() < 0.3,
        reads_freshly=not lossy_disks and fresh.random() < 0.4,
        has_hanging_disks=not lossy_disks and hanging.random() < 0.2,
    )
    profile = replace(profile, clocks_jump=profile.time_marks and jumps.random() < 0.5)
    releases = random_beside(random, "releases")
    profile = replace(profile, is_upgraded=not lossy_disks and releases.random() < 0.1)
    if not (lossy_disks or profile.is_async or profile.is_upgraded or IS_COMPILED):
        profile = replace(profile, has_users=users.random() < USERS_SHARE)
    if lossy_disks:
        # Who is found older than it was is an observer then, until it takes its own place.
        old_copies = random_beside(random, "old copies")
        profile = replace(profile, auto_replace_after_ms=old_copies.choice((0, 1_000, 3_000)))
    if machines.random() < 0.3 and not lossy_disks:
        storage = replace(profile.storage, snapshot_entries=machines.choice((3, 20, 100)))
        apply_ms = machines.choice((0.1, 5.0, 100.0))
        profile = replace(profile, runs_machines=True, apply_ms=apply_ms, storage=storage)
    if profile.clients == 3 and profile.body_bytes != 1500 and not lossy_disks:
        profile = replace(profile, asks_for_end=True)
    if profile.changes_members:
        profile = _with_changes(profile, members)
    elif size > 2 and not (profile.is_async or lossy_disks) and replacing.random() < REPLACING_SHARE:
        kinds = tuple(dict.fromkeys((*profile.fault_kinds, "wipe")))
        after_ms = replacing.choice((1_000, 3_000))
        profile = replace(profile, fault_kinds=kinds, auto_replace_after_ms=after_ms)
    if profile.is_async:
        # Drawn last, so that no other run changes. A short interval leaves a power loss little to take.
        storage = replace(profile.storage, flush_interval_ms=random.choice((10, 200, 1000)))
        profile = replace(profile, storage=storage)
    if not (profile.writes_controls or profile.drops_segments or lossy_disks) and keeps.random() < 0.4:
        storage = replace(
            profile.storage,
            retention="archived" if archives.random() < 0.3 else "on",
            retention_bytes=keeps.choice((1, 2 * segment_bytes, 6 * segment_bytes)),
            disk_space_ratio_to_force_clean=keeps.choice((1e-9, 1.0, 1.0, 1.0)),
        )
        budget_bytes = keeps.choice((0, 4 * segment_bytes, 1 << 30))
        if profile.clocks_jump and jumps.random() < 0.7:
            # Nothing gets so old: whatever goes has only seemed to.
            storage = replace(storage, retention_bytes=0, file_reserved_hours=1)
        elif profile.runs_machines:
            storage = replace(storage, compact_behind_snapshots=machines.random() < 0.5)
        profile = replace(
            profile,
            storage=storage,
            has_retention=True,
            retention_follower_budget_bytes=budget_bytes,
        )
    if size > 1 and links.random() < 0.3:
        chosen = [kind for kind in LINK_KINDS if links.random() < 0.5]
        every_ms = links.choice((1.0, 3.0, 8.0)) * profile.consensus.election_timeout_ms
        profile = replace(profile, link_kinds=tuple(chosen or LINK_KINDS), link_fault_every_ms=every_ms)
    return profile


def _with_changes(profile: SimulationProfile, members: Random) -> SimulationProfile:
    """In a half of them nothing is lost that was promised; in the others whatever a minority of each
    membership may lose (`faults/fairness.py`)."""
    profile = replace(profile, spares=members.choice((0, 1, 2)))
    if members.random() < LOSING_SHARE and not profile.is_async:
        kinds = tuple(dict.fromkeys((*profile.fault_kinds, "wipe")))
        after_ms = members.choice((0, 1_000, 3_000))
        return replace(profile, fault_kinds=kinds, auto_replace_after_ms=after_ms)
    kinds = tuple(kind for kind in profile.fault_kinds if kind not in LOSING_KINDS)
    return replace(profile, fault_kinds=kinds or ("kill",))


def at_the_edges(
    profile: SimulationProfile, random: Random
) -> tuple[SimulationProfile, tuple[str, ...]]:
    """Some runs with options at their edges, and which."""
    if profile.has_lossy_disks or random.random() >= EDGY_SHARE:
        return profile, ()
    edges = tuple(edge for edge in EDGES if random.random() < 0.4)
    consensus, storage = profile.consensus, profile.storage
    least: dict[str, Any] = {
        "push_limit_bytes": 1,
        "push_window_bytes": 1 if "push_limit_bytes" in edges else consensus.push_limit_bytes,
        "max_waiting_pushes": 1,
        "segment_bytes": 512,
        "index_segment_bytes": 32,
        "max_heartbeat_leak": 3,
        "max_vote_interval_ms": consensus.min_vote_interval_ms,
        "lost_connection_wait_ms": 0,
    }

    def changed(part: T) -> T:
        names = {field.name for field in fields(part)}
        return replace(part, **{edge: least[edge] for edge in edges if edge in names & set(least)})

    profile = replace(profile, consensus=changed(consensus), storage=changed(storage))
    if "max_uncommitted_bytes" in edges:
        profile = replace(profile, max_uncommitted_bytes=1)
    if "max_entry_bytes" in edges:
        # Half of the long bodies fit, of some members all.
        small = HEADER_BYTES + max(profile.body_bytes // 2, 20)
        limits = [random.choice((small, storage.max_entry_bytes)) for _ in range(profile.size)]
        profile = replace(profile, append_limits=tuple(limits))
    return profile, edges


def application_profile(
    random: Random, seed: int, faults: Sequence[str], fault_every_ms: float
) -> SimulationProfile:
    """Of three members, for what stands on the log and has clients of its own: only these kinds of
    faults, no members that change, nothing else that appends."""
    profile = draw_profile(random, 3)
    snapshot_entries = Random(f"{seed}:snapshots").choice((10, 10**6))
    return replace(
        profile,
        storage=replace(
            profile.storage, retention="off", flush="sync", snapshot_entries=snapshot_entries
        ),
        store="file",
        fault_kinds=tuple(kind for kind in faults if kind in FAULT_KINDS),
        fault_every_ms=fault_every_ms,
        link_kinds=tuple(kind for kind in faults if kind in LINK_KINDS),
        link_fault_every_ms=fault_every_ms,
        has_hanging_disks=HANGING_DISK in faults,
        clients=0,
        producers=0,
        drops_segments=False,
        has_retention=False,
        changes_members=False,
        runs_machines=False,
        apply_ms=5.0,
    )
