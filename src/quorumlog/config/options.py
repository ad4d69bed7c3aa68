"""Every option in one place: frozen dataclasses by concern, units in the names, checked on construction.
A value that cannot work raises `ConfigError`. TOML files and the command line use the same names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

DEFAULT_GROUP = "default"

FRAME_LIMIT_BYTES = 16 * MIB
"""Largest frame that a member or a client takes (`net/frame.py`)."""
FRAME_HEAD_BYTES = 1 * KIB
"""Of a frame at most, beside its entries and what `PUSHED_BYTES_PER_ENTRY` counts: its header, the names
in it, the numbers of its message."""
PUSHED_BYTES_PER_ENTRY = HEADER_BYTES + 4 + 19
"""Of the smallest entry in a push at most: itself, its size, and the term that it may begin."""
LARGEST_ENTRY_BYTES = FRAME_LIMIT_BYTES - FRAME_HEAD_BYTES
"""Of `max_entry_bytes`: a larger entry would reach no follower and no reader."""
LARGEST_PUSH_BYTES = LARGEST_ENTRY_BYTES * HEADER_BYTES // PUSHED_BYTES_PER_ENTRY
"""Of `push_limit_bytes`: as many of the smallest entries as one frame carries, each of its own term."""
UNSENT_LIMIT_BYTES = 32 * MIB
"""Above this a peer that does not read is sent nothing more; the core hears that it was not."""
LARGEST_WINDOW_BYTES = UNSENT_LIMIT_BYTES * HEADER_BYTES // PUSHED_BYTES_PER_ENTRY
"""Of `push_window_bytes`: as many of the smallest entries as a connection holds unsent."""
MAX_NAME_BYTES = 255
"""Of a group or a member: names go into the head of a frame, ids into a slot of `hardstate`."""


_FRAME_WHY = f"one frame carries {FRAME_LIMIT_BYTES} bytes, heads included"
_ENTRY_WHY = (
    f"a larger entry fits into no frame ({FRAME_LIMIT_BYTES} bytes, head included), so no follower could"
    " receive it"
)
_WINDOW_WHY = (
    f"a connection holds {UNSENT_LIMIT_BYTES} bytes that are not sent yet, heads included, and refuses"
    " pushes above that"
)
_BLANK_WHY = "a blank record says its length in a signed 32-bit number"

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
HOURS_OF_A_CENTURY = 36_525 * 24
TIB = 1024 * GIB


class Bounds(NamedTuple):
    """Bounds of a number, both inclusive."""

    least: int
    most: int
    why: str = ""
    """Why there is an upper bound."""


def _number(default: int, least: int, most: int, why: str = "") -> Any:
    return field(default=default, metadata={"range": Bounds(least, most, why)})


@contextmanager
def within(place: str | None) -> Iterator[None]:
    """A ConfigError that is raised inside names the place, unless that is empty."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}" if place else str(error)) from None


def check_name(name: str, value: str) -> None:
    """Of a group or a member; raises ConfigError."""
    try:
        size_bytes = len(value.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{name} {value!r} has no form in UTF-8; choose another") from None
    if not 1 <= size_bytes <= MAX_NAME_BYTES:
        raise ConfigError(f"{name} {value!r} must have 1 to {MAX_NAME_BYTES} bytes; choose another")


def _check_numbers(config: Any) -> None:
    """Before anything is computed with them, which would make a time or a size of a fraction."""
    for each in fields(config):
        if each.type != "int":
            continue
        name, value = each.name, getattr(config, each.name)
        if type(value) is not int:
            raise ConfigError(f"{name} must be a whole number (an int), not {value!r}")
        least, most, why = each.metadata["range"]
        if value < least:
            raise ConfigError(
                f"{name} ({value}) must be {f'at least {least}' if least else '0 or more'}"
            )
        if value > most:
            raise ConfigError(f"{name} ({value}) must be at most {most}{why and ': '}{why}")


@dataclass(frozen=True, slots=True)
class ConsensusConfig:
    """Timings and limits of `quorumlog.consensus`; all durations in milliseconds."""

    heartbeat_interval_ms: int = _number(150, 1, HOUR_MS)
    max_heartbeat_leak: int = _number(5, 1, 10_000)
    """Silent heartbeat intervals after which a follower turns candidate."""
    min_vote_interval_ms: int = _number(50, 1, HOUR_MS)
    max_vote_interval_ms: int = _number(300, 1, HOUR_MS)
    """A vote wait is drawn from [min_vote_interval_ms, max_vote_interval_ms]."""
    lost_connection_wait_ms: int = _number(50, 0, HOUR_MS)
    """After a lost connection to the leader a pre-vote starts within [0, this]."""
    push_window_bytes: int = _number(8 * MIB, 1, LARGEST_WINDOW_BYTES, _WINDOW_WHY)
    """Unacknowledged bytes in flight to one follower."""
    push_limit_bytes: int = _number(1 * MIB, 1, LARGEST_PUSH_BYTES, _FRAME_WHY)
    """Bytes of one push; a single larger entry still goes, alone."""
    push_resend_ms: int = _number(1000, 1, HOUR_MS)
    """After this time without an answer, and without bytes in flight, a follower is queried for received
    entries; then after twice as long, and so on up to 16 times. Lost pushes are resent."""
    commit_delay_ms: int = _number(5, 0, HOUR_MS)
    """How much later than the leader a follower learns of a commit, unless a push carries it earlier."""
    max_waiting_pushes: int = _number(256, 1, 1_000_000)
    """Pushes ahead of its log that a follower keeps, ordered by index."""
    preferred_leader_ids: tuple[str, ...] = ()
    preferred_check_interval_ms: int = _number(1000, 1, DAY_MS)
    max_transfer_lag_bytes: int = _number(64 * MIB, 1, TIB)
    """A transfer is refused to a member that lags more than this. It equals the bytes that may wait for
    commit, so that a follower which keeps up under full load lags no more; and the bytes that a gigabit
    link carries in an election time-out, while appends wait."""
    preferred_cool_down_ms: int = _number(30_000, 1, DAY_MS)
    """After a failed or short-lived hand-over to a preferred leader, none is tried for this long."""

    @property
    def election_timeout_ms(self) -> int:
        return self.heartbeat_interval_ms * self.max_heartbeat_leak

    def __post_init__(self) -> None:
        _check_numbers(self)
        if self.election_timeout_ms < 3 * self.heartbeat_interval_ms:
            raise ConfigError(
                f"the election time-out ({self.election_timeout_ms} ms = max_heartbeat_leak"
                f" {self.max_heartbeat_leak} x heartbeat_interval_ms {self.heartbeat_interval_ms}) is"
                f" below three heartbeats ({3 * self.heartbeat_interval_ms} ms): raise"
                " max_heartbeat_leak to 3 or more"
            )
        if self.max_vote_interval_ms < self.min_vote_interval_ms:
            raise ConfigError(
                f"max_vote_interval_ms ({self.max_vote_interval_ms}) is below min_vote_interval_ms"
                f" ({self.min_vote_interval_ms})"
            )
        if self.push_window_bytes < self.push_limit_bytes:
            raise ConfigError(
                f"push_window_bytes ({self.push_window_bytes}) is below push_limit_bytes"
                f" ({self.push_limit_bytes})"
            )


RETENTIONS = ("on", "off", "archived")
MAX_ENTRY_BYTES = 4 * MIB
"""DLedger's limit on one encoded entry, header included; a body may have 48 bytes less."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """One data directory. Sizes in bytes; all members of a group use the same sizes."""

    flush: str = "sync"
    """`sync`: acknowledge after fdatasync. `async`: acknowledge after the write (docs/durability.md)."""
    segment_bytes: int = _number(1 * GIB, 512, 2 * GIB - 1, _BLANK_WHY)
    index_segment_bytes: int = _number(160 * MIB, 32, TIB)
    max_entry_bytes: int = _number(MAX_ENTRY_BYTES, HEADER_BYTES + 1, LARGEST_ENTRY_BYTES, _ENTRY_WHY)
    """Limit for appends of clients here. Entries accepted by a leader with another limit are stored all
    the same."""
    disk_full_ratio: float = 0.90
    """While more of the file system than this is in use, no space is reserved: appends are refused once
    that reserved before is used."""
    retention: str = "on"
    """Whether the oldest segments are deleted: `on`: by `file_reserved_hours` and `retention_bytes`,
    whose defaults keep everything; `archived`: only entries that an archive has; `off`."""
    file_reserved_hours: int = _number(0, 0, HOURS_OF_A_CENTURY)
    """A segment may be deleted this long after its last entry; 0: not by age. DLedger has 72."""
    retention_bytes: int = _number(0, 0, 1024 * TIB)
    """The newest segments of data and index of this size are kept; older ones may be deleted. 0: not by
    size."""
    delete_when: str = ""
    """Hours of the day (UTC) in which segments are deleted by age, as in `04` or `04;16`; empty: all."""
    disk_space_ratio_to_check_expired: float = 0.70
    """Above it `delete_when` is ignored."""
    disk_space_ratio_to_force_clean: float = 0.85
    """Above it the oldest segment is deleted regardless of age, size and readers' holds; only if age or
    size is configured."""
    flush_interval_ms: int = _number(100, 1, DAY_MS)
    """How often `flush = async` syncs in the background; many unsynced entries cause an earlier sync."""
    checkpoint_interval_ms: int = _number(3000, 1, DAY_MS)
    durable_sync_interval_ms: int = _number(200, 1, DAY_MS)
    index_sync_bytes: int = _number(64 * MIB, 1, TIB)
    """The index is synced after this many bytes of data, and before a data segment is sealed."""
    reserve_step_bytes: int = _number(64 * MIB, 1, TIB)
    """Space is reserved ahead of the end in steps that grow with the log, from 1 MiB up to this."""
    page_cache_bytes: int = _number(256 * MIB, 0, TIB)
    """Newest data kept in the operating system's page cache; older data is dropped once it is synced,
    and read from disk."""
    max_set_aside_bytes: int = _number(1 * GIB, 0, 1024 * TIB)
    """Limit of `set-aside/`, which keeps bytes cut off by a start and overwritten by a repair for
    inspection: above it the oldest files are deleted, but never the newest of each segment."""
    scrub_bytes_per_second: int = _number(4 * MIB, 0, TIB)
    """Rate of the daily pass over the whole log that looks for damage; 0: no pass."""
    scrub_start_delay_ms: int = _number(60_000, 0, 365 * DAY_MS)
    """How long after a start the first such pass begins."""
    snapshot_entries: int = _number(1_000_000, 1, 2**62)
    """A state machine's snapshot is written after this many of its entries,"""
    snapshot_bytes: int = _number(256 * MIB, 1, 1024 * TIB)
    """or this many bytes of them, whichever comes first,"""
    snapshot_log_bytes: int = _number(256 * MIB, 1, 1024 * TIB)
    """and once the log has grown by this many bytes of any entries since its newest snapshot, so that a
    machine with few entries does not keep the log of all others."""
    snapshots_kept: int = _number(2, 2, 1000)
    """Newest snapshots kept of each state machine; the log keeps the entries after the second newest."""
    compact_behind_snapshots: bool = False
    """Entries before the second newest snapshot of every machine are deleted, also data for no machine.
    """

    def __post_init__(self) -> None:
        _check_numbers(self)
        if self.flush not in ("sync", "async"):
            raise ConfigError(f"flush must be 'sync' or 'async', not {self.flush!r}")
        if self.index_segment_bytes % 32:
            raise ConfigError(
                f"index_segment_bytes ({self.index_segment_bytes}) must be a multiple of 32"
            )
        for name in (
            "disk_full_ratio",
            "disk_space_ratio_to_check_expired",
            "disk_space_ratio_to_force_clean",
        ):
            ratio = getattr(self, name)
            if type(ratio) not in (int, float) or not 0.0 < ratio <= 1.0:
                raise ConfigError(f"{name} ({ratio!r}) must be a share above 0 and at most 1")
        if self.retention not in RETENTIONS:
            raise ConfigError(f"retention must be 'on', 'off' or 'archived', not {self.retention!r}")
        self.delete_hours  # noqa: B018  # raises

    @property
    def deletes(self) -> bool:
        """Whether this member's options allow deletion at the front of the log."""
        reasons = self.file_reserved_hours, self.retention_bytes, self.compact_behind_snapshots
        return self.retention != "off" and any(reasons)

    @property
    def delete_hours(self) -> frozenset[int]:
        """Of the day; all unless `delete_when` names some. Raises ConfigError."""
        named = [hour.strip() for hour in self.delete_when.split(";")] if self.delete_when else []
        if not all(hour.isascii() and hour.isdigit() and int(hour[-4:]) < 24 for hour in named):
            raise ConfigError(
                f"delete_when ({self.delete_when!r}) must be hours of the day from 00 to 23, as in 04;16"
            )
        return frozenset(map(int, named or range(24)))

    @property
    def entry_limit_bytes(self) -> int:
        """Largest encoded entry that the log can hold: it fits into a frame, and into a segment beside
        its blank record, on all members. The head of the frame is not subtracted, since an older
        release may have written that much."""
        return min(FRAME_LIMIT_BYTES, self.segment_bytes - 8)

    @property
    def append_limit_bytes(self) -> int:
        """Largest encoded entry accepted from a client."""
        return min(self.max_entry_bytes, self.entry_limit_bytes)


@dataclass(frozen=True, slots=True)
class MemberAddress:
    """One line of `--members`: an id and where clients and the other members reach it."""

    member_id: str
    host: str
    port: int = field(metadata={"range": Bounds(0, 65535)})

    def __post_init__(self) -> None:
        _check_numbers(self)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


_IN_NO_HOST = frozenset(" /@=,;")
"""Of a URL, of a member with its id, or of two addresses that are taken for one."""


def parse_address(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`; raises ConfigError."""
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    # Digits of other scripts are digits to `isdigit`, and none to `int`.
    is_number = port.isascii() and port.isdigit()
    if not host or not host.isprintable() or not _IN_NO_HOST.isdisjoint(host) or not is_number:
        raise ConfigError(f"{text!r} is not an address; write host:port, for example 127.0.0.1:20911")
    # At port 0 a member would listen wherever it is put, and nobody would know where.
    if len(port) > 5 or not 1 <= int(port) <= 65535:
        raise ConfigError(f"{text!r} is not an address: ports are 1 to 65535; write host:port")
    return host, int(port)


def parse_members(text: str) -> tuple[MemberAddress, ...]:
    """`n0=host:port,n1=host:port,...`; raises ConfigError, also if an id or address is given twice."""
    members: list[MemberAddress] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        member_id, equals, address = item.partition("=")
        if not equals or not member_id.strip():
            raise ConfigError(f"--members: {item!r} must look like n0=127.0.0.1:20911")
        with within("--members"):
            host, port = parse_address(address)
        if host in ("0.0.0.0", "::", "[::]"):
            raise ConfigError(
                f"--members: {item!r}: clients and members connect to this address, and it is not"
                " reachable; write the address of this machine, and use --bind to listen everywhere"
            )
        members.append(MemberAddress(member_id.strip(), host, port))
    if not members:
        raise ConfigError("--members lists no member; write n0=127.0.0.1:20911,n1=...")
    for name, values in (("id", [m.member_id for m in members]), ("address", [str(m) for m in members])):
        for value in values:
            if values.count(value) > 1:
                raise ConfigError(f"--members: two members have the {name} {value}")
    return tuple(members)


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """One replicated log as one member of it sees it."""

    member_id: str
    members: tuple[MemberAddress, ...]
    data_dir: str = ""
    group: str = DEFAULT_GROUP
    store: str = "file"
    """`file`, or `memory` (a new directory id at every start)."""
    consensus: ConsensusConfig = field(default_factory=ConsensusConfig)
    storage: StoreConfig = field(default_factory=StoreConfig)
    append_timeout_ms: int = _number(5000, 1, DAY_MS)
    """An append not committed after this long is answered OutcomeUnknown."""
    max_uncommitted_bytes: int = _number(64 * MIB, 1, TIB)
    """Limit of all pending appends; above it appends are refused with PendingFull."""
    max_connection_bytes: int = _number(32 * MIB, 1, TIB)
    """Limit of the pending appends of one connection (ConnectionFull), so that one client leaves room
    for others."""
    catch_up_bytes_per_second: int = _number(64 * MIB, 1, TIB)
    """Rate to a lagging follower while appends arrive, in addition to twice the appended bytes; without
    appends it gets all that it can take."""
    retention_follower_budget_bytes: int = _number(1 * GIB, 0, 1024 * TIB)
    """Entries that a follower has not acknowledged are kept for it up to this size. If it lags more it
    gets a new start of the log."""
    linger_ms: int = _number(0, 0, DAY_MS)
    """A batch waits this long for more appends. 0: batches form while the disk works, without a timer.
    """
    time_marks: bool = True
    """A leader writes the time into the log, at most once a second and only before data: needed by
    `read --since`, `append_time` and retention by age. Off: the indices of data are consecutive except
    at elections."""

    staging: bool = False
    """The members also serve a staging group, into which the Spark sink writes rows before they enter
    the log (docs/spark.md). It has this group's options except name, directory and retention."""
    staging_retention_bytes: int = _number(1 * GIB, 1, 1024 * TIB)
    """The newest segments of this size are kept; older ones are deleted once no sink needs them."""

    auto_replace_after_ms: int = _number(60_000, 0, DAY_MS)
    """The directory of a voter that was away for this long is replaced by a new one under its id, once
    that has caught up. 0: only by `quorumlog member replace`."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        for name in ("time_marks", "staging"):
            if type(getattr(self, name)) is not bool:
                raise ConfigError(f"{name} must be true or false, not {getattr(self, name)!r}")
        check_name("--group", self.group)
        members: object = self.members
        if not isinstance(members, tuple | list) or not all(
            isinstance(m, MemberAddress) for m in members
        ):
            raise ConfigError(
                "members must be a tuple of MemberAddress, as in"
                f" (MemberAddress('n0', '127.0.0.1', 20911),), not {members!r}"
            )
        check_name("--id", self.member_id)
        ids = [m.member_id for m in self.members]
        for member_id in ids:
            check_name("--members: the id", member_id)
        if self.member_id not in ids:
            raise ConfigError(
                f"--id {self.member_id} is not in --members ({', '.join(ids)}); add it or change --id"
            )
        for preferred in self.consensus.preferred_leader_ids:
            if preferred not in ids:
                raise ConfigError(
                    f"--preferred-leader {preferred} is not in --members ({', '.join(ids)})"
                )
        if self.linger_ms >= self.append_timeout_ms:
            raise ConfigError(
                f"linger_ms ({self.linger_ms}) must be below append_timeout_ms"
                f" ({self.append_timeout_ms})"
            )
        if self.store not in ("file", "memory"):
            raise ConfigError(f"--store must be 'file' or 'memory', not {self.store!r}")
        if self.store == "file" and not self.data_dir:
            raise ConfigError("--data-dir is missing; it is needed unless --store memory is given")

    @property
    def full_name(self) -> str:
        """Of the member, in its log."""
        return f"{self.group}/{self.member_id}"

    @property
    def own_address(self) -> MemberAddress:
        return next(m for m in self.members if m.member_id == self.member_id)


@dataclass(frozen=True, slots=True)
class UsersOptions:
    """The table `[users]`, of a process."""

    group: str = ""
    """Where they live; empty: in the first one."""
    may_be_old_ms: int = _number(10_000, 1000, HOUR_MS)
    """A member that has not heard the leader for so long lets nobody in."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        if not isinstance(self.group, str):
            raise ConfigError(f"group must be a string, not {self.group!r}")


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """The table `[limits]`: limits of one user or one address, over all ports of a process. 0: no
    limit."""

    user_connections: int = _number(0, 0, 1_000_000)
    user_requests: int = _number(0, 0, 1_000_000)
    """That wait for their answers."""
    user_bytes_per_second: int = _number(0, 0, TIB)
    """Of requests and answers; of one second, so much more may come at once."""
    address_connections: int = _number(0, 0, 1_000_000)
    address_requests: int = _number(0, 0, 1_000_000)
    address_bytes_per_second: int = _number(0, 0, TIB)

    def __post_init__(self) -> None:
        _check_numbers(self)
