"""SimulationProfile: what one run is like, drawn from its seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, TypeVar

from quorumlog.config import MIB, ConsensusConfig, StoreConfig
from quorumlog.entry_header import HEADER_BYTES

T = TypeVar("T", ConsensusConfig, StoreConfig)

SIZES = (1, 2, 3, 3, 3, 3, 4, 5, 5, 6, 7)

FAULT_KINDS = (
    "kill",
    "power loss",
    "power loss of all",
    "crash at an effect",
    "crash while starting",
    "clean stop",
    "pause",
    "partition",
    "one-way cut",
    "bridge",
    "majorities ring",
    "reset",
    "flapping",
    "slow disk",
    "failing sync",
    "full disk",
    "clock jump",
    "clock drift",
    "transfer",
    "wipe",
    "lost hard state",
    "lost durable point",
    "flipped bit",
    "zeroed page",
)

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
HANGING_DISK = "hanging disk"
"""Strikes beside the others, in runs that have it."""
LINK_KINDS = ("throttled link", "bursty link", "black hole")
"""What only data suffers; heartbeats pass beside it. They strike beside the others."""

CHANGING_SHARE = 1 / 6
LOSING_SHARE = 1 / 2
"""Of those in which members change."""
REPLACING_SHARE = 1 / 8
LOSING_KINDS = (
    "wipe",
    "lost hard state",
    "lost durable point",
    "flipped bit",
    "zeroed page",
)

LOSSY_DISK_KINDS = ("old copy", "lying disk")
"""What no log survives where it strikes a majority; met in runs on lossy disks only."""


@dataclass(frozen=True, slots=True)
class SimulationProfile:
    """Durations in virtual milliseconds."""

    size: int
    consensus: ConsensusConfig
    storage: StoreConfig
    max_uncommitted_bytes: int
    fault_kinds: tuple[str, ...]
    fault_every_ms: float
    delay_ms: float
    """A message takes up to this long."""
    jitter: float
    """How often one takes ten times as long."""
    loss: float
    repeat: float
    in_order: bool
    holds_cut_messages: bool
    """What is sent into a partition arrives when it ends, else it is lost and the connection with it."""
    sync_ms: float
    """A sync takes up to this long."""
    clients: int
    appends_per_second: float
    """Of all clients together."""
    body_bytes: int
    """A body is at most this long, most are short."""
    batch_entries: int
    catch_up_bytes_per_second: int = 64 * MIB
    asks_for_end: bool = False
    """Clients ask leaders how far the log goes, as reads to its end do."""
    reads_freshly: bool = False
    """Somebody asks whatever member for linearizable reads."""
    has_lossy_disks: bool = False
    """Disks may forget what they have synced, on any number of members."""
    link_kinds: tuple[str, ...] = ()
    """Of `LINK_KINDS`."""
    link_fault_every_ms: float = math.inf
    store: str = "file"
    """As in `GroupConfig`; runs that are drawn have disks."""
    append_limits: tuple[int, ...] = ()
    """`max_entry_bytes` of each member, where they differ; empty: that of `storage`."""
    connects_one_by_one: bool = False
    """The four connections of a pair come up each at its time, and at each end at another."""
    stops_with_successor: bool = False
    """A member that is stopped looks for a successor first, as `quorumlog serve` does."""
    appends_conditionally: bool = False
    """Most appends name the entry that they expect to be the last."""
    spares: int = 0
    """So many members run beside those that found the group."""
    auto_replace_after_ms: int = 0
    """0: no directory takes the place of a lost one by itself."""
    changes_members: bool = False
    """Members come and go by request."""
    writes_controls: bool = False
    """Leaders are made to write control entries now and then."""
    producers: int = 0
    """Clients with sessions."""
    time_marks: bool = False
    """As in `GroupConfig`; a minority of the wall clocks is wrong then."""
    clocks_jump: bool = False
    """All wall clocks are years ahead now and then, and right again a little later."""
    is_upgraded: bool = False
    """The group was formed by the release before."""
    has_retention: bool = False
    """Segments go as leaders say, and readers hold some."""
    retention_follower_budget_bytes: int = 1 << 30
    """As in `GroupConfig`."""
    drops_segments: bool = False
    """Members let their first segments go now and then."""

    has_hanging_disks: bool = False
    """Now and then no sync of a member returns for a while, and what it promises takes time to save."""
    runs_machines: bool = False
    """Every member runs a state machine, and most appends are commands for it."""
    apply_ms: float = 2.0
    """A piece of work of a state machine takes up to this long."""

    def storage_of(self, number: int) -> StoreConfig:
        """Of the member with this number."""
        if not self.append_limits:
            return self.storage
        return replace(self.storage, max_entry_bytes=self.append_limits[number])

    @property
    def is_async(self) -> bool:
        """An entry counts before it is synced, if it ever is."""
        return self.storage.flush == "async" or self.store == "memory"


def draw_profile(
    random: Random,
    size: int | None = None,
    *,
    lossy_disks: bool = False,
    member_changes: bool = False,
) -> SimulationProfile:
    """`member_changes`: members come and go, unless there is only one or disks are lossy."""
    links = random_beside(random, "links")
    greetings, stops = random_beside(random, "connections"), random_beside(random, "stops")
    conditions = random_beside(random, "conditions")
    controls, marks = random_beside(random, "controls"), random_beside(random, "the time")
    members = random_beside(random, "members")
    sessions = random_beside(random, "producers")
    drops, keeps = random_beside(random, "drops"), random_beside(random, "retention")
    replacing, archives = random_beside(random, "replacements"), random_beside(random, "archives")
    machines, fresh = random_beside(random, "machines"), random_beside(random, "fresh reads")
    hanging, jumps = random_beside(random, "hanging disks"), random_beside(random, "clock jumps")
    hasty = random.random() < 0.3
    if size is None:
        size = random.choice(SIZES)
    segment_bytes = random.choice((2048, 8192, 32768))
    calm = random.random() < 0.3
    chosen = [kind for kind in FAULT_KINDS if random.random() < 0.4]
    consensus = ConsensusConfig(
        heartbeat_interval_ms=30 if hasty else 150,
        max_heartbeat_leak=4 if hasty else 5,
        min_vote_interval_ms=10 if hasty else 50,
        max_vote_interval_ms=60 if hasty else 300,
        push_limit_bytes=random.choice((600, 4000, 1 << 20)),
        push_window_bytes=random.choice((1 << 20, 8 << 20)),
        push_resend_ms=random.choice((300, 1000)),
        commit_delay_ms=0 if hasty else 5,
        max_waiting_pushes=random.choice((2, 256)),
        preferred_leader_ids=("n0",) if random.random() < 0.2 else (),
        preferred_cool_down_ms=random.choice((1_000, 30_000)),
    )
    is_async = random.random() < 0.1
    storage = StoreConfig(
        flush="async" if is_async else "sync",
        retention="off",
        segment_bytes=segment_bytes,
        index_segment_bytes=random.choice((320, 2048)),
        reserve_step_bytes=random.choice((1024, 8192)),
        index_sync_bytes=random.choice((512, 8192, 1 << 20)),
        durable_sync_interval_ms=random.choice((50, 200)),
        checkpoint_interval_ms=random.choice((200, 3000)),
    )
    # Some options follow from what is drawn already, so that no other run changes.
    if storage.index_sync_bytes == 512 and storage.durable_sync_interval_ms == 200:
        storage = replace(storage, page_cache_bytes=0)
    catches_up_slowly = consensus.push_limit_bytes == 600 and consensus.max_waiting_pushes == 2
    profile = SimulationProfile(
        size=size,
        consensus=consensus,
        storage=storage,
        max_uncommitted_bytes=random.choice((8192, 1 << 20)),
        fault_kinds=(*(chosen or FAULT_KINDS), *(LOSSY_DISK_KINDS if lossy_disks else ())),
        fault_every_ms=random.choice((0.5, 1.0, 3.0)) * consensus.election_timeout_ms,
        delay_ms=random.choice((0.2, 1.0, 5.0, 30.0)),
        jitter=0.0 if calm else random.choice((0.0, 0.01, 0.1)),
        loss=0.0 if calm else random.choice((0.0, 0.0, 0.02, 0.1)),
        repeat=0.0 if calm else random.choice((0.0, 0.0, 0.05)),
        in_order=calm or random.random() < 0.5,
        holds_cut_messages=random.random() < 0.3,
        sync_ms=random.choice((0.5, 2.0, 20.0, 200.0)),
        clients=random.choice((1, 3, 6)),
        appends_per_second=10.0,
        body_bytes=random.choice((40, 400, 1500)),
        batch_entries=random.choice((1, 4, 20)),
        catch_up_bytes_per_second=5_000 if catches_up_slowly else 64 * MIB,
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
    elif size > 2 and not (is_async or lossy_disks) and replacing.random() < REPLACING_SHARE:
        kinds = tuple(dict.fromkeys((*profile.fault_kinds, "wipe")))
        after_ms = replacing.choice((1_000, 3_000))
        profile = replace(profile, fault_kinds=kinds, auto_replace_after_ms=after_ms)
    if is_async:
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
        every_ms = links.choice((1.0, 3.0, 8.0)) * consensus.election_timeout_ms
        profile = replace(profile, link_kinds=tuple(chosen or LINK_KINDS), link_fault_every_ms=every_ms)
    return profile


def _with_changes(profile: SimulationProfile, members: Random) -> SimulationProfile:
    """In a half of them nothing is lost that was promised; in the others whatever a minority of each
    membership may lose (`sim/faults/fairness.py`)."""
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


def random_beside(random: Random, name: str) -> Random:
    """A stream of its own: what is drawn from it moves nothing else of a seed's run."""
    copy = Random()
    copy.setstate(random.getstate())
    return Random(f"{copy.getrandbits(64)}:{name}")


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
