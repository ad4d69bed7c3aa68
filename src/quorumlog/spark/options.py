"""Options of `format("quorumlog")`, parsed and checked. Spark hands them over with lower-cased keys."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from quorumlog.config import DEFAULT_GROUP, MIB
from quorumlog.config.staging import is_staging_name
from quorumlog.errors import ConfigError
from quorumlog.net.tls import ClientTls
from quorumlog.spark.offsets import (
    EARLIEST,
    LATEST,
    StatedOffset,
    parse_offset,
    without_partition,
)
from quorumlog.spark.option_values import (
    TLS_PARSERS,
    boolean,
    by_name,
    columns_of,
    duration_ms,
    fields_of,
    name_of,
    number_of,
    one_of,
    pattern_of,
    servers_of,
    tls_of,
)
from quorumlog.spark.rows import COLUMNS

READ_INDEX, COMMITTED, LOCAL = "read_index", "committed", "local"
COMMIT_INDEX = "commitIndex"
"""As earlier releases call it: `read_index` of running members, `committed` of a directory."""

DEFAULT_PREFETCH = 2
_MAX_BATCH_BYTES = 256 * MIB
"""Offsets of an Arrow binary column are 32-bit; a batch may exceed its size by one entry."""


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """What a query asked for. One of `servers` and `path` is set, or none where `archive` is."""

    servers: str = ""
    path: str = ""
    """Data directory of a stopped member, readable at this path by every Spark worker."""
    archive: str = ""
    """Directory of an archive, readable at this path by every worker, or s3://BUCKET/PREFIX: what is in
    it is read from there, and what follows from `servers` or `path`, if one of them is given."""
    group: str = ""
    """Empty: the group of the directory, or `default` with `servers`."""
    groups: tuple[str, ...] = ()
    """Of a query that reads several, which has no `group` then."""
    group_pattern: str = ""
    """A regular expression: the groups whose whole name it matches (see `subscribed_to`)."""
    starting_offsets: StatedOffset = EARLIEST
    ending_offsets: StatedOffset = LATEST
    """Exclusive: the index after the last entry to read."""
    columns: tuple[str, ...] | None = None
    """None: `DEFAULT_COLUMNS`."""
    min_partitions: int = 0
    """0: as many as this machine has cores, of a log that is worth it."""
    partition_bytes: int = 128 * MIB
    max_records_per_partition: int = 0
    """0: no limit."""
    fail_on_data_loss: bool = True
    read_consistency: str = ""
    """Empty: `committed`, and of a stream `read_index` (see `of_stream`)."""
    max_staleness_ms: int = -1
    """Of `committed`: plan with what is at most so old; -1: however old."""
    verify_crc: bool = True
    batch_bytes: int = 4 * MIB
    prefetch: int | None = None
    """Batches read ahead of the one that Spark takes. With `path` they need a thread of the task, which
    costs more than it saves where pages are cached; 0: no thread. None: `DEFAULT_PREFETCH` with
    `servers`, 0 with `path`."""
    pushdown: bool = False
    max_offsets: int = 0
    """Of a micro-batch; 0: no limit. So it is with the bytes of the log."""
    max_bytes: int = 0
    min_offsets: int = 0
    """Fewer wait for more, but not longer than `max_trigger_delay_ms`."""
    max_trigger_delay_ms: int = 15 * 60_000
    starting_timestamp_ms: int | None = None
    """Since 1970: what was appended then or later; None: `starting_offsets` counts."""
    ending_timestamp_ms: int | None = None
    """What was appended before; None: `ending_offsets` counts."""
    starting_timestamps: dict[str, int] | None = None
    """By group."""
    ending_timestamps: dict[str, int] | None = None
    reader: str = ""
    """A reader that the cluster keeps by this name, and that a stream moves on; empty: none."""
    reader_hold: bool = False
    """What `reader` has not read is kept."""
    timeout_ms: int = 30_000
    """How long a task or the planner tries the members in turn without any progress."""
    tls_ca: str = ""
    """A file at this path on every executor; empty: plain. So it is with the own certificate and key."""
    tls_cert: str = ""
    tls_key: str = ""

    @property
    def tls(self) -> ClientTls | None:
        """Raises ConfigError."""
        return tls_of(self.tls_ca, self.tls_cert, self.tls_key)

    @property
    def served_group(self) -> str:
        return self.group or DEFAULT_GROUP

    def of_group(self, group: str) -> LedgerOptions:
        """What these options are for one of the groups that they name."""
        if not self.names_several:
            return self
        if self.starting_timestamps or self.ending_timestamps:
            return self._with_timestamps(group).of_group(group)

        def stated(offset: StatedOffset) -> StatedOffset:
            return {group: offset[group]} if isinstance(offset, dict) else offset

        return replace(
            self,
            group=group,
            groups=(),
            group_pattern="",
            starting_offsets=stated(self.starting_offsets),
            ending_offsets=stated(self.ending_offsets),
            min_partitions=-(-self.min_partitions // max(len(self.groups), 1)),
        )

    def of_former_group(self, group: str) -> LedgerOptions:
        """The same of one that they do not name, and that a micro-batch was planned of."""
        return replace(
            self,
            group=group,
            groups=(),
            group_pattern="",
            starting_offsets=EARLIEST,
            starting_timestamps=None,
            starting_timestamp_ms=None,
        )

    def subscribed_to(self, served: Iterable[str]) -> LedgerOptions:
        """These options with the groups among `served` that `group_pattern` takes; a staging group is
        none."""
        found = (name for name in served if re.fullmatch(self.group_pattern, name))
        return replace(self, groups=tuple(sorted(name for name in found if not is_staging_name(name))))

    def _with_own_timestamps(self) -> LedgerOptions:
        """Those of the one group that is read, and of no other. A directory or an archive says itself
        which it holds: it is asked for the one that they name. Raises ConfigError."""
        named = {
            name: stated
            for name, stated in (
                ("startingOffsetsByTimestamp", self.starting_timestamps),
                ("endingOffsetsByTimestamp", self.ending_timestamps),
            )
            if stated is not None
        }
        group = self.group
        if not group and not self.servers:
            group = next((next(iter(stated)) for stated in named.values() if stated), "")
        group = group or ("" if not named else self.served_group)
        for name, stated in named.items():
            if set(stated) != {group}:
                groups = ", ".join(sorted(stated)) or "none"
                raise ConfigError(
                    f"option {name} names the groups {groups}, and {group!r} alone is read: name that"
                    " one and no other"
                )
        return replace(self, group=self.group if self.servers else group)._with_timestamps(group)

    def _with_timestamps(self, group: str) -> LedgerOptions:
        """Those that are stated by group become this one's."""
        found: dict[str, int | None] = {}
        for name, stated, alone in (
            ("startingOffsetsByTimestamp", self.starting_timestamps, self.starting_timestamp_ms),
            ("endingOffsetsByTimestamp", self.ending_timestamps, self.ending_timestamp_ms),
        ):
            found[name] = alone if stated is None else stated[group]
        return replace(
            self,
            starting_timestamps=None,
            ending_timestamps=None,
            starting_timestamp_ms=found["startingOffsetsByTimestamp"],
            ending_timestamp_ms=found["endingOffsetsByTimestamp"],
        )

    def of_stream(self) -> LedgerOptions:
        """A stream ends a micro-batch, and with `availableNow` itself, at what was acknowledged by then,
        unless it is told that it may miss some."""
        if self.read_consistency or self.max_staleness_ms >= 0:
            return self
        return replace(self, read_consistency=READ_INDEX)

    @property
    def names_several(self) -> bool:
        return bool(self.groups or self.group_pattern)

    def by_group(self) -> list[LedgerOptions]:
        return [self.of_group(group) for group in self.groups] if self.names_several else [self]

    @property
    def batches_ahead(self) -> int:
        if self.prefetch is not None:
            return self.prefetch
        return 0 if self.path else DEFAULT_PREFETCH

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> LedgerOptions:
        """Raises ConfigError naming the option, its value and what is valid."""
        for key in options:
            if key.lower() == "owner":
                raise ConfigError(_NO_TABLES)
            if key.lower() == "paths":
                raise ConfigError("load([...]) got a list: format quorumlog reads one path at a time")
        given = fields_of(options, _PARSERS, "of format quorumlog")
        is_subscribed = "groups" in given
        if is_subscribed:
            if "group" in given:
                raise ConfigError("options group and subscribe are two names of one thing; give one")
            if len(given["groups"]) == 1:
                [given["group"]] = given.pop("groups")
        if "group_pattern" in given and ("group" in given or "groups" in given):
            other = "subscribe" if is_subscribed else "group"
            raise ConfigError(f"options {other} and subscribePattern exclude each other; give one")
        parsed = cls(**given)
        if parsed.names_several:
            parsed._check_groups()
        if parsed.servers and parsed.path:
            raise ConfigError("options servers and path exclude each other; give one of them")
        for names in (
            ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
            ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
        ):
            stated = [name for name in names if _PARSERS[name.lower()][1] in given]
            if len(stated) > 1:
                raise ConfigError(f"options {' and '.join(stated)} exclude each other; give one")
        if not parsed.names_several:
            parsed = parsed._with_own_timestamps()
        if parsed.path and (parsed.read_consistency == READ_INDEX or parsed.max_staleness_ms >= 0):
            raise ConfigError(
                "options readConsistency = read_index and maxStalenessMs ask running members, and need"
                " option servers; with option path, committed is what the directory proves"
            )
        if parsed.max_staleness_ms >= 0 and parsed.read_consistency not in ("", COMMITTED):
            raise ConfigError(
                f"option maxStalenessMs is for readConsistency = {COMMITTED}, not"
                f" {parsed.read_consistency}"
            )
        if parsed.reader_hold and not parsed.reader:
            raise ConfigError("option readerHold needs option reader, the name of what it holds for")
        if not parsed.servers and not parsed.path and not parsed.archive:
            raise ConfigError(
                "format quorumlog needs option servers (host:port,host:port,...) or option path (the"
                " data directory of a stopped member), or option archive"
            )
        return parsed

    def _check_groups(self) -> None:
        """Raises ConfigError."""
        naming = "subscribePattern" if self.group_pattern else "subscribe"
        if self.path or self.archive:
            raise ConfigError(
                f"option {naming} names several groups, and a directory or an archive holds one:"
                " read each, and union them"
            )
        for name, offset in (
            ("startingOffsets", self.starting_offsets),
            ("endingOffsets", self.ending_offsets),
            ("startingOffsetsByTimestamp", self.starting_timestamps),
            ("endingOffsetsByTimestamp", self.ending_timestamps),
        ):
            if self.group_pattern and not isinstance(offset, str | None):
                raise ConfigError(
                    f"option {name} is of groups by name, and subscribePattern may find others: name the"
                    " groups with subscribe, or give one time or earliest or latest for all"
                )
            if isinstance(offset, int):
                raise ConfigError(
                    f"option {name} is {offset}, of which group? Write JSON,"
                    f' {{"{self.groups[0]}": {offset}, ...}}, with each group that subscribe names'
                )
            if isinstance(offset, dict) and set(offset) != set(self.groups):
                raise ConfigError(
                    f"option {name} names the groups {', '.join(sorted(offset))}, and subscribe names"
                    f" {', '.join(self.groups)}"
                )


# ---------------------------------------------------------------- one parser for each kind of value


_NO_TABLES = (
    "a table of the catalog cannot be of format quorumlog: Spark 4.3 hands a Python data source the"
    " owner of the table and not its OPTIONS. Write CREATE TEMPORARY VIEW log USING quorumlog OPTIONS"
    " (servers '...')"
)


def _path(name: str, text: str) -> str:
    if not text:
        raise ConfigError(f"option {name} is empty; write the data directory of a stopped member")
    scheme, separator, _ = text.partition(":/")
    if separator and scheme != "file" and "/" not in scheme:
        raise ConfigError(
            f"option {name} is {text!r}: data directories are read from local paths only, the same on"
            " every worker; copy it there, or read from running members with option servers"
        )
    local = text.removeprefix("file://") if text.startswith("file:///") else text.removeprefix("file:")
    return os.path.abspath(local)  # an executor has another working directory


def _archive(name: str, text: str) -> str:
    """Of one that is a table its directory: workers ask no catalog."""
    if text.startswith(("delta:", "iceberg:", "s3:")):
        from quorumlog.pipelines.archive_folders import absolute
        from quorumlog.pipelines.tables.target import archive_directory

        return absolute(archive_directory(text))
    return _path(name, text)


def _groups(name: str, text: str) -> tuple[str, ...]:
    """In order of name, so that offsets of a stream are always the same text."""
    names = sorted(name_of(name, part.strip()) for part in text.split(","))
    if len(set(names)) != len(names):
        raise ConfigError(f"option {name} names a group twice: {text}")
    return tuple(names)


def _timestamps(name: str, text: str) -> dict[str, int]:
    """JSON: milliseconds since 1970 by group; as with Kafka also by its one partition."""
    valid = f'option {name} must be JSON {{"group": milliseconds since 1970}}, not {text!r}'
    try:
        stated = json.loads(text)
    except ValueError:
        raise ConfigError(valid) from None
    if not isinstance(stated, dict) or not stated:
        raise ConfigError(valid)
    found = {group: without_partition(name, each) for group, each in stated.items()}
    if not all(type(each) is int and 0 <= each <= 2**53 for each in found.values()):
        raise ConfigError(valid)
    return found


def _consistency(name: str, text: str) -> str:
    if text.lower() == COMMIT_INDEX.lower():
        return COMMIT_INDEX
    return one_of(READ_INDEX, COMMITTED, LOCAL)(name, text)


_PARSERS = by_name(
    (
        ("servers", "servers", servers_of),
        ("path", "path", _path),
        ("archive", "archive", _archive),
        ("group", "group", name_of),
        ("subscribe", "groups", _groups),
        ("subscribePattern", "group_pattern", pattern_of),
        ("startingOffsets", "starting_offsets", parse_offset),
        ("endingOffsets", "ending_offsets", parse_offset),
        ("columns", "columns", columns_of(COLUMNS)),
        ("minPartitions", "min_partitions", number_of(0, 1_000_000)),
        ("partitionBytes", "partition_bytes", number_of(1, 2**62)),
        ("maxRecordsPerPartition", "max_records_per_partition", number_of(1, 2**62)),
        ("failOnDataLoss", "fail_on_data_loss", boolean),
        ("readConsistency", "read_consistency", _consistency),
        ("maxStalenessMs", "max_staleness_ms", number_of(0, 2**31 - 1)),
        ("verifyCrc", "verify_crc", boolean),
        ("batchBytes", "batch_bytes", number_of(1, _MAX_BATCH_BYTES)),
        ("prefetch", "prefetch", number_of(0, 64)),
        ("pushdown", "pushdown", boolean),
        ("maxOffsetsPerTrigger", "max_offsets", number_of(1, 2**62)),
        ("maxBytesPerTrigger", "max_bytes", number_of(1, 2**62)),
        ("minOffsetsPerTrigger", "min_offsets", number_of(1, 2**62)),
        ("maxTriggerDelay", "max_trigger_delay_ms", duration_ms),
        ("startingTimestamp", "starting_timestamp_ms", number_of(0, 2**53)),
        ("endingTimestamp", "ending_timestamp_ms", number_of(0, 2**53)),
        ("startingOffsetsByTimestamp", "starting_timestamps", _timestamps),
        ("endingOffsetsByTimestamp", "ending_timestamps", _timestamps),
        ("reader", "reader", name_of),
        ("readerHold", "reader_hold", boolean),
        ("timeoutMs", "timeout_ms", number_of(1, 2**31 - 1)),
        *TLS_PARSERS,
    )
)
assert {entry[1] for entry in _PARSERS.values()} == {f.name for f in fields(LedgerOptions)}

OPTION_NAMES = tuple(name for name, _, _ in _PARSERS.values())
STREAM_OPTIONS = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "reader",
    "readerHold",
)
