"""SimulationProfile: the parameters of one run, drawn from its seed."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from random import Random

from quorumlog.config import MIB, ConsensusConfig, StoreConfig

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

HANGING_DISK = "hanging disk"
"""Strikes beside the others, in runs that have it."""
LINK_KINDS = ("throttled link", "bursty link", "black hole")
"""Faults of data only; heartbeats pass. They occur beside the others."""


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
    """Messages sent into a partition arrive when it ends, else they are lost with the connection."""
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
    """Clients send linearizable reads to any member."""
    has_lossy_disks: bool = False
    """Disks may lose synced data, on any number of members."""
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

    has_users: bool = False
    """Users come, change and go, and send allowed and forbidden requests."""
    has_hanging_disks: bool = False
    """Now and then no sync of a member returns for a while, and saving term and vote takes time."""
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


def draw_cluster(random: Random, size: int | None = None) -> SimulationProfile:
    """The profile of every run: members, their options, the network and the faults of members."""
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
    return SimulationProfile(
        size=size,
        consensus=consensus,
        storage=storage,
        max_uncommitted_bytes=random.choice((8192, 1 << 20)),
        fault_kinds=tuple(chosen or FAULT_KINDS),
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
    )


def random_beside(random: Random, name: str) -> Random:
    """A random stream of its own: draws from it change nothing else of a seed's run."""
    return Random(f"{copy(random).getrandbits(64)}:{name}")
