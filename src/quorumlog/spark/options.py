"""The options of a query: its columns, entries and source."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quorumlog.append_times import AppendTimes
from quorumlog.arrow import TIME_COLUMN, record_batch_of
from quorumlog.batch import EntryBatch
from quorumlog.config import DEFAULT_GROUP, MIB, parse_address
from quorumlog.config.staging import is_staging_name
from quorumlog.errors import ConfigError, IndexOutOfRange
from quorumlog.net.credentials import ClientUser
from quorumlog.net.tls import ClientTls

ALIASES = {"kafka.bootstrap.servers": "servers"}
VIEW = "view"
ENTRIES, MESSAGES, KAFKA = VIEWS = ("entries", "messages", "kafka")
T = TypeVar("T")


class Parser(NamedTuple):
    """Of an option."""

    name: str
    field: str
    parse: Callable[[str, str], Any]
    """Of (name, text)."""


def option(default: T, **parsers: Callable[[str, str], Any]) -> T:
    """A field of options: the options that set it, of which one may be given, each with its parser."""
    return field(default=default, metadata=parsers)


def parsers_of(options: type) -> Mapping[str, Parser]:
    """By lower-cased name; those that many kinds of options have come last."""
    kinds = [getattr(kind, "__dataclass_fields__", ()) for kind in options.__mro__]
    own_first = sorted(fields(options), key=lambda each: sum(each.name in kind for kind in kinds))
    named = [
        Parser(name, each.name, parse) for each in own_first for name, parse in each.metadata.items()
    ]
    return {parser.name.lower(): parser for parser in named}


def names_of(options: type) -> tuple[str, ...]:
    return tuple(parser.name for parser in parsers_of(options).values())


def fields_of(
    options: Mapping[str, str],
    parsers: Mapping[str, Parser],
    where: str,
    ignored: Container[str] = (),
) -> dict[str, Any]:
    """The given values, by field. Raises ConfigError for an unknown option, and for two of one field."""
    values: dict[str, Any] = {}
    given: dict[str, Parser] = {}
    for key, text in options.items():
        parser = parsers.get(ALIASES.get(key.lower(), key.lower()))
        if parser is not None:
            other = given.setdefault(parser.field, parser)
            if parser.field in values and other.parse is parser.parse:
                raise ConfigError(f"option {parser.name} is given twice, under two names")
            if parser.field in values:
                names = " and ".join(sorted((other.name, parser.name)))
                raise ConfigError(f"options {names} exclude each other; give one")
            values[parser.field] = parser.parse(parser.name, str(text).strip())
        elif key.lower() not in ignored:
            valid = ", ".join(parser.name for parser in parsers.values())
            raise ConfigError(f"unknown option {key!r} {where}; valid are {valid}")
    return values


def servers_of(name: str, text: str) -> str:
    addresses = [part.strip() for part in text.split(",") if part.strip()]
    if not addresses:
        raise ConfigError(f"option {name} is empty; write host:port,host:port,...")
    for address in addresses:
        try:
            parse_address(address)
        except ConfigError as error:
            raise ConfigError(f"option {name}: {error}") from None
    return ",".join(addresses)


_IN_SPARK = {
    "--tls-ca": "option tlsCa",
    "--tls-cert": "option tlsCert",
    "--tls-key": "option tlsKey",
    "--user NAME": "option user",
    "--password-file": "option passwordFile",
}
"""By an option's name in the messages of clients."""


@contextmanager
def _named_as_in_spark() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        text = str(error)
        for command_line, ours in _IN_SPARK.items():
            text = text.replace(command_line, ours)
        raise ConfigError(text) from None


@cache
def tls_of(ca: str, cert: str, key: str) -> ClientTls | None:
    """The same one for the same files, which it reads again when they change. Raises ConfigError."""
    with _named_as_in_spark():
        return ClientTls(ca, cert, key) if ca or cert or key else None


@cache
def user_of(name: str, password_file: str) -> ClientUser | None:
    """Raises ConfigError."""
    with _named_as_in_spark():
        return ClientUser(name, password_file=password_file) if name or password_file else None


def name_of(name: str, text: str) -> str:
    if not text:
        raise ConfigError(f"option {name} is empty; leave it out or give a name")
    return text


def pattern_of(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"option {name} is no regular expression: {error}") from None
    return name_of(name, text)


_OURS = {
    "key": ("keys",),
    "value": ("body",),
    "topic": ("group",),
    "partition": ("queue",),
    "offset": ("index",),
    "timestamp": ("append_time", "store_time"),
    "headers": ("properties",),
}


def as_kafkas(name: str, columns: Container[str]) -> str:
    """The end of an error about a column: its name here if Kafka's source has it."""
    name = name.lower()
    for ours in _OURS.get(name, ()):
        if ours in columns:
            return f". Kafka's {name} is {ours} here"
    return f". A log has no {name}s: it has one order" if name == "partition" else ""


def number_of(low: int, high: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ConfigError(f"option {name} must be a whole number, not {text!r}") from None
        if not low <= number <= high:
            raise ConfigError(f"option {name} must be in {low} .. {high}, not {number}")
        return number

    return parse


def duration_ms(name: str, text: str) -> int:
    """Milliseconds of a duration as Kafka's source takes it: 500ms, 30s, 15m, 2h."""
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h)", text.lower())
    if found is None:
        raise ConfigError(f"option {name} must be like 500ms, 30s, 15m or 2h, not {text!r}")
    factors = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}
    return int(found[1]) * factors[found[2]]


def one_of(*values: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        for value in values:
            if text.lower() == value.lower():
                return value
        *most, last = values
        raise ConfigError(f"option {name} must be {', '.join(most)} or {last}, not {text!r}")

    return parse


COUNT = number_of(1, 2**62)
TIMEOUT_MS = number_of(1, 2**31 - 1)


def boolean(name: str, text: str) -> bool:
    return one_of("true", "false")(name, text) == "true"


def columns_of(known: Sequence[str]) -> Callable[[str, str], tuple[str, ...]]:
    def parse(name: str, text: str) -> tuple[str, ...]:
        described = ", ".join(known)
        names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
        for column in names:
            if column not in known:
                raise ConfigError(
                    f"option {name}: unknown column {column!r}; valid are {described}"
                    f"{as_kafkas(column, known)}"
                )
        if not names:
            raise ConfigError(f"option {name} names no column; valid are {described}")
        if len(set(names)) != len(names):
            raise ConfigError(f"option {name} names a column twice: {text}")
        return names

    return parse


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of every query to servers."""

    tls_ca: str = option("", tlsCa=name_of)
    """A file at this path on every executor; empty: plain. So it is with the own certificate and key."""
    tls_cert: str = option("", tlsCert=name_of)
    tls_key: str = option("", tlsKey=name_of)
    user: str = option("", user=name_of)
    """Empty: none, or that of the certificate."""
    password_file: str = option("", passwordFile=name_of)
    """At this path on every executor."""

    @property
    def tls(self) -> ClientTls | None:
        """Raises ConfigError."""
        return tls_of(self.tls_ca, self.tls_cert, self.tls_key)

    @property
    def as_user(self) -> ClientUser | None:
        """Raises ConfigError."""
        return user_of(self.user, self.password_file)


@dataclass(frozen=True, slots=True)
class QueryOptions(ClientOptions):
    """Options of every query that reads entries or messages."""

    partition_bytes: int = option(128 * MIB, partitionBytes=COUNT)
    pushdown: bool = option(False, pushdown=boolean)
    fail_on_data_loss: bool = option(True, failOnDataLoss=boolean)
    timeout_ms: int = option(30_000, timeoutMs=TIMEOUT_MS)
    """How long a task or the planner tries the members in turn without any progress."""
    max_offsets: int = option(0, maxOffsetsPerTrigger=COUNT)
    """Of a micro-batch; 0: no limit."""
    min_offsets: int = option(0, minOffsetsPerTrigger=number_of(0, 2**62))
    """Fewer wait for more, but not longer than `max_trigger_delay_ms`."""
    max_trigger_delay_ms: int = option(15 * 60_000, maxTriggerDelay=duration_ms)


# ----------------------------------------------------------------
# Entries as Arrow columns, a batch at a time. docs/spark.md says what each column is.
#
# Both digests are BIGINT: they are unsigned 32-bit numbers, which Spark's INT cannot hold.
#
# Arrow batches must match the schema that Spark expects exactly: order, types (`binary`, not
# `large_binary`) and nullability. No column but `append_time` is ever null, and saying so makes reading
# faster; a user schema may say otherwise.


COLUMN_TYPES: dict[str, DataType] = {
    "group": StringType(),
    "index": LongType(),
    "term": LongType(),
    "pos": LongType(),
    "channel": IntegerType(),
    "chain_crc": LongType(),
    "body_crc": LongType(),
    "body": BinaryType(),
    TIME_COLUMN: TimestampType(),
}
COLUMNS = tuple(COLUMN_TYPES)
DEFAULT_COLUMNS = ("index", "term", "body")
"""Columns for applications; the others are for operators."""

_ARROW_TYPES: dict[DataType, pa.DataType] = {
    StringType(): pa.string(),
    LongType(): pa.int64(),
    IntegerType(): pa.int32(),
    BinaryType(): pa.binary(),
    TimestampType(): pa.timestamp("us", tz="UTC"),
}


def schema_of(
    columns: Iterable[str], types: Mapping[str, DataType], nullable: Container[str]
) -> StructType:
    return StructType([StructField(name, types[name.lower()], name in nullable) for name in columns])


def spark_schema_of(columns: Iterable[str]) -> StructType:
    return schema_of(columns, COLUMN_TYPES, (TIME_COLUMN,))


def check_schema(schema: StructType, columns: Sequence[str] | None) -> None:
    """Raises ConfigError unless `schema` is some of our columns with our types, and those of the option
    `columns` if that is given."""
    if not schema.fields:
        raise ConfigError(f".schema(...) names no column; choose from {', '.join(COLUMNS)}")
    check_columns(schema, COLUMN_TYPES, "format quorumlog")
    names = [name.lower() for name in schema.fieldNames()]
    if len(set(names)) != len(names):
        raise ConfigError(f".schema(...) names a column twice: {', '.join(names)}")
    if columns is not None and tuple(columns) != tuple(names):
        raise ConfigError(
            f"option columns ({', '.join(columns)}) and .schema(...) ({', '.join(names)}) disagree;"
            " give one of them"
        )


def check_columns(schema: StructType, types: Mapping[str, DataType], what: str) -> None:
    """Raises ConfigError for a column that `what` does not have, or not of this type."""
    for column in schema.fields:
        expected = types.get(column.name.lower())
        if expected is None:
            raise ConfigError(
                f".schema(...) names the column {column.name!r}; {what} has {', '.join(types)}"
                f"{as_kafkas(column.name, types)}"
            )
        declared, ours = (kind.simpleString().upper() for kind in (column.dataType, expected))
        if declared != ours:
            raise ConfigError(
                f".schema(...) declares {column.name} as {declared}, but it is {ours}; cast it after"
                " loading"
            )


def rows_of(arrays: Sequence[pa.Array], schema: StructType) -> pa.RecordBatch:
    """Columns with the names that Spark expects, and null only where it does."""
    fields = [
        pa.field(column.name, array.type, nullable=column.nullable)
        for column, array in zip(schema.fields, arrays, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class RowEncoder:
    def __init__(self, schema: StructType, group: str) -> None:
        """Names in `schema` may be spelled as Spark allows, in any case."""
        self._constants = {"group": pa.scalar(group, pa.string())}
        self.arrow_schema = pa.schema(
            [
                pa.field(field.name, _ARROW_TYPES[field.dataType], nullable=field.nullable)
                for field in schema.fields
            ]
        )
        fields = pa.schema([field.with_name(field.name.lower()) for field in self.arrow_schema])
        self._fields = self.arrow_schema if fields == self.arrow_schema else fields

    @property
    def needs_bodies(self) -> bool:
        """Including those of time marks."""
        return "body" in self._fields.names or self.has_times

    @property
    def has_times(self) -> bool:
        return TIME_COLUMN in self._fields.names

    def rows(self, batch: EntryBatch, times: AppendTimes | None) -> Iterator[pa.RecordBatch]:
        rows = self.encode(batch, times)
        if rows.num_rows:
            yield rows

    def encode(self, batch: EntryBatch, times: AppendTimes | None = None) -> pa.RecordBatch:
        """The NORMAL entries of `batch`. `times`: if the schema has them."""
        runs = None if times is None else times.runs(batch)
        rows = record_batch_of(batch, self._fields, self._constants, runs)
        if self._fields is self.arrow_schema:
            return rows
        return pa.RecordBatch.from_arrays(rows.columns, schema=self.arrow_schema)


# ----------------------------------------------------------------
# Offsets: what a query says about its range, and which entries that is on a given log.
#
# An offset is the next index: `latest` is the committed index + 1, `earliest` the first index that the
# log still holds.


_logger = logging.getLogger(__name__)

EARLIEST = "earliest"
LATEST = "latest"

Offset = int | str
"""An index, `earliest` or `latest`."""


@dataclass(frozen=True, slots=True)
class AppendedAt:
    """An end of a range: before the first entry that was appended then or later."""

    time_ms: int
    """Since 1970."""


Bound = Offset | AppendedAt
StatedBound = Bound | Mapping[str, Bound]
"""As in an option: for the group that is read, or by group."""


class LogBounds(NamedTuple):
    """Which entries can be read at the moment of planning."""

    group: str
    begin_index: int
    stop_index: int

    @property
    def named(self) -> dict[str, int]:
        """For IndexOutOfRange."""
        return {"ledger_begin_index": self.begin_index, "committed_index": self.stop_index - 1}


class LedgerDataLoss(IndexOutOfRange):
    """A query needs entries that the log no longer holds, and failOnDataLoss is true."""


class IndexRange(NamedTuple):
    first_index: int
    stop_index: int


def parse_offset(name: str, text: str) -> StatedBound:
    """Also JSON, `{"group": number | "earliest" | "latest"}`, and Kafka's -2 and -1 for those two.
    Raises ConfigError naming the option."""
    valid = f'option {name} must be earliest, latest, an index or JSON {{"group": index}}, not {text!r}'
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(valid) from None
    if isinstance(stated, dict) and stated:
        return {
            group: _checked(name, without_partition(name, offset), valid)
            for group, offset in stated.items()
        }
    return _checked(name, stated, valid)


def without_partition(name: str, stated: object) -> Any:
    """Of `{"0": value}` the value: a group is like a Kafka topic of one partition. Raises ConfigError
    for other partitions."""
    if not isinstance(stated, dict):
        return stated
    if set(stated) != {"0"}:
        raise ConfigError(
            f"option {name} names the partitions {', '.join(sorted(stated))}: a group has one order, and"
            " no partition but 0"
        )
    return stated["0"]


def _checked(name: str, offset: object, valid: str) -> Offset:
    if isinstance(offset, str) and offset.lower() in (EARLIEST, LATEST):
        return offset.lower()
    if type(offset) is not int:
        raise ConfigError(valid)
    if offset in (-2, -1):
        return EARLIEST if offset == -2 else LATEST
    if offset < 0:
        raise ConfigError(f"option {name} must not be negative, not {offset}; write earliest or latest")
    return offset


def resolve(
    starting: Offset, ending: Offset, bounds: LogBounds, *, fail_on_data_loss: bool
) -> IndexRange:
    """The entries that a query means; empty where both ends meet.

    Raises LedgerDataLoss for a start below the begin (unless `fail_on_data_loss` is off: the gap is
    logged and left out), IndexOutOfRange above the end, ConfigError where the ends are swapped.
    """
    ends = {EARLIEST: bounds.begin_index, LATEST: bounds.stop_index}
    first_index, stop_index = (
        ends[each] if isinstance(each, str) else each for each in (starting, ending)
    )
    for name, index in (("startingOffsets", first_index), ("endingOffsets", stop_index)):
        if index > bounds.stop_index:
            raise IndexOutOfRange(
                f"option {name} is {index}, but group {bounds.group!r} can be read up to offset"
                f" {bounds.stop_index} (committed index {bounds.stop_index - 1}); use latest",
                **bounds.named,
            )
    if first_index > stop_index:
        raise ConfigError(f"startingOffsets ({first_index}) is above endingOffsets ({stop_index})")
    if first_index < bounds.begin_index:
        first_index = skip_lost_entries(
            first_index, min(bounds.begin_index, stop_index), bounds, fail_on_data_loss=fail_on_data_loss
        )
    return IndexRange(first_index, stop_index)


def skip_lost_entries(
    first_index: int, next_index: int, bounds: LogBounds, *, fail_on_data_loss: bool
) -> int:
    """Where reading continues if [first_index, next_index) is deleted. Raises LedgerDataLoss if
    `fail_on_data_loss`; otherwise the gap is logged."""
    gap = (
        f"entries {first_index} .. {next_index - 1} of group {bounds.group!r} are lost"
        f" ({next_index - first_index}): the log begins at index {bounds.begin_index}"
    )
    if fail_on_data_loss:
        raise LedgerDataLoss(
            f"{gap}. Start at {bounds.begin_index} or earliest, or set failOnDataLoss=false to leave"
            " them out",
            **bounds.named,
        )
    _logger.warning("%s; failOnDataLoss=false, continuing without them", gap)
    return next_index


# ----------------------------------------------------------------
# Options of `format("quorumlog")`, parsed and checked. Spark hands them over with lower-cased keys.


READ_INDEX, COMMITTED, LOCAL = "read_index", "committed", "local"
COMMIT_INDEX = "commitIndex"
"""As earlier releases call it: `read_index` of running members, `committed` of a directory."""

_MOST_MS = 2**53
DEFAULT_PREFETCH = 2
_MAX_BATCH_BYTES = 256 * MIB
"""Offsets of an Arrow binary column are 32-bit; a batch may exceed its size by one entry."""


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


def _timestamp(name: str, text: str) -> AppendedAt:
    return AppendedAt(number_of(0, _MOST_MS)(name, text))


def _timestamps(name: str, text: str) -> Mapping[str, Bound]:
    """JSON: milliseconds since 1970 by group; as with Kafka also by its one partition."""
    valid = f'option {name} must be JSON {{"group": milliseconds since 1970}}, not {text!r}'
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(valid) from None
    if not isinstance(stated, dict) or not stated:
        raise ConfigError(valid)
    found = {group: without_partition(name, each) for group, each in stated.items()}
    if not all(type(each) is int and 0 <= each <= _MOST_MS for each in found.values()):
        raise ConfigError(valid)
    return {group: AppendedAt(each) for group, each in found.items()}


def _consistency(name: str, text: str) -> str:
    if text.lower() == COMMIT_INDEX.lower():
        return COMMIT_INDEX
    return one_of(READ_INDEX, COMMITTED, LOCAL)(name, text)


@dataclass(frozen=True, slots=True)
class LedgerOptions(QueryOptions):
    """The options of a query. One of `servers` and `path` is set, or none where `archive` is."""

    servers: str = option("", servers=servers_of)
    path: str = option("", path=_path)
    """Data directory of a stopped member, readable at this path by every Spark worker."""
    archive: str = option("", archive=_archive)
    """Directory of an archive, readable at this path by every worker, or s3://BUCKET/PREFIX: its entries
    are read from there, and later ones from `servers` or `path`, if one of them is given."""
    group: str = option("", group=name_of)
    """Empty: the group of the directory, or `default` with `servers`."""
    groups: tuple[str, ...] = option((), subscribe=_groups)
    """Of a query that reads several, which has no `group` then."""
    group_pattern: str = option("", subscribePattern=pattern_of)
    """A regular expression: the groups whose whole name it matches (see `subscribed_to`)."""
    starting: StatedBound = option(
        EARLIEST,
        startingOffsets=parse_offset,
        startingTimestamp=_timestamp,
        startingOffsetsByTimestamp=_timestamps,
    )
    """By group only if the query reads several."""
    ending: StatedBound = option(
        LATEST,
        endingOffsets=parse_offset,
        endingTimestamp=_timestamp,
        endingOffsetsByTimestamp=_timestamps,
    )
    """The same of the end, exclusive."""
    columns: tuple[str, ...] | None = option(None, columns=columns_of(COLUMNS))
    """None: `DEFAULT_COLUMNS`."""
    min_partitions: int = option(0, minPartitions=number_of(0, 1_000_000))
    """0: as many as this machine has cores, of a log that is worth it."""
    max_records_per_partition: int = option(0, maxRecordsPerPartition=COUNT)
    """0: no limit."""
    read_consistency: str = option("", readConsistency=_consistency)
    """Empty: `committed`, and of a stream `read_index` (see `of_stream`)."""
    max_staleness_ms: int = option(-1, maxStalenessMs=number_of(0, 2**31 - 1))
    """Of `committed`: plan with state of at most this age; -1: any age."""
    verify_crc: bool = option(True, verifyCrc=boolean)
    batch_bytes: int = option(4 * MIB, batchBytes=number_of(1, _MAX_BATCH_BYTES))
    prefetch: int | None = option(None, prefetch=number_of(0, 64))
    """Batches read ahead of the one that Spark takes. With `path` they need a thread of the task, which
    costs more than it saves where pages are cached; 0: no thread. None: `DEFAULT_PREFETCH` with
    `servers`, 0 with `path`."""
    max_bytes: int = option(0, maxBytesPerTrigger=COUNT)
    """Of the log, in a micro-batch; 0: no limit."""
    reader: str = option("", reader=name_of)
    """A reader that the cluster keeps by this name, and that a stream moves on; empty: none."""
    reader_hold: bool = option(False, readerHold=boolean)
    """Entries that `reader` has not read are kept."""

    @property
    def served_group(self) -> str:
        return self.group or DEFAULT_GROUP

    def of_group(self, group: str) -> LedgerOptions:
        """These options for one of the groups that they name."""
        if not self.names_several:
            return self
        return replace(
            self,
            group=group,
            groups=(),
            group_pattern="",
            starting=_of_group(self.starting, group),
            ending=_of_group(self.ending, group),
            min_partitions=-(-self.min_partitions // max(len(self.groups), 1)),
        )

    def of_former_group(self, group: str) -> LedgerOptions:
        """The same of one that they do not name, and that a micro-batch was planned of."""
        return replace(self, group=group, groups=(), group_pattern="", starting=EARLIEST)

    def subscribed_to(self, served: Iterable[str]) -> LedgerOptions:
        """These options with the groups among `served` that `group_pattern` takes; a staging group is
        none."""
        found = (name for name in served if re.fullmatch(self.group_pattern, name))
        return replace(self, groups=tuple(sorted(name for name in found if not is_staging_name(name))))

    def _with_own_bounds(self) -> LedgerOptions:
        """What is stated by group becomes that of the one that is read; it may name no other. A
        directory or an archive says itself which it holds: it is asked for the one that they name.
        Raises ConfigError."""
        stated = [(name, bound) for name, bound in self.ends() if isinstance(bound, Mapping)]
        if not stated:
            return self
        group = self.group or (DEFAULT_GROUP if self.servers else next(iter(stated[0][1])))
        for name, bound in stated:
            if set(bound) != {group}:
                raise ConfigError(
                    f"option {name} names the groups {', '.join(sorted(bound))}, and {group!r} alone is"
                    " read: name that one and no other"
                )
        return replace(
            self,
            group=self.group if self.servers else group,
            starting=_of_group(self.starting, group),
            ending=_of_group(self.ending, group),
        )

    def ends(self) -> list[tuple[str, StatedBound]]:
        """Each with the name of the option that states it in this way."""
        stated: dict[str, StatedBound] = {"starting": self.starting, "ending": self.ending}
        return [(end + _suffix(bound), bound) for end, bound in stated.items()]

    def of_stream(self) -> LedgerOptions:
        """A stream ends a micro-batch, and with `availableNow` itself, at the last entry acknowledged by
        then, unless allowed to miss some."""
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
        """Raises ConfigError with the option, its value and the valid values."""
        for key in options:
            if key.lower() == "owner":
                raise ConfigError(_NO_TABLES)
            if key.lower() == "paths":
                raise ConfigError("load([...]) got a list: format quorumlog reads one path at a time")
        return cls.of(fields_of(options, parsers_of(cls), "of format quorumlog"))

    @classmethod
    def of(cls, values: dict[str, Any]) -> LedgerOptions:
        """The values of fields, each checked by itself. Raises ConfigError if they do not fit."""
        is_subscribed = "groups" in values
        if is_subscribed:
            if "group" in values:
                raise ConfigError("options group and subscribe are two names of one thing; give one")
            if len(values["groups"]) == 1:
                [values["group"]] = values.pop("groups")
        if "group_pattern" in values and ("group" in values or "groups" in values):
            other = "subscribe" if is_subscribed else "group"
            raise ConfigError(f"options {other} and subscribePattern exclude each other; give one")
        parsed = cls(**values)
        if parsed.servers and parsed.path:
            raise ConfigError("options servers and path exclude each other; give one of them")
        if parsed.names_several:
            parsed._check_groups()
        else:
            parsed = parsed._with_own_bounds()
        if parsed.path and (parsed.read_consistency == READ_INDEX or parsed.max_staleness_ms >= 0):
            raise ConfigError(
                "options readConsistency = read_index and maxStalenessMs ask running members, and need"
                " option servers; with option path, committed is proven by the directory"
            )
        if parsed.max_staleness_ms >= 0 and parsed.read_consistency not in ("", COMMITTED):
            raise ConfigError(
                f"option maxStalenessMs is for readConsistency = {COMMITTED}, not"
                f" {parsed.read_consistency}"
            )
        if parsed.reader_hold and not parsed.reader:
            raise ConfigError("option readerHold needs option reader, the name of its reader")
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
        for name, stated in self.ends():
            if self.group_pattern and isinstance(stated, int | Mapping):
                raise ConfigError(
                    f"option {name} is of groups by name, and subscribePattern may find others: name the"
                    " groups with subscribe, or give one time or earliest or latest for all"
                )
            if isinstance(stated, int):
                raise ConfigError(
                    f"option {name} is {stated}, of which group? Write JSON,"
                    f' {{"{self.groups[0]}": {stated}, ...}}, with each group that subscribe names'
                )
            if isinstance(stated, Mapping) and set(stated) != set(self.groups):
                raise ConfigError(
                    f"option {name} names the groups {', '.join(sorted(stated))}, and subscribe names"
                    f" {', '.join(self.groups)}"
                )


def _of_group(stated: StatedBound, group: str) -> Bound:
    return stated[group] if isinstance(stated, Mapping) else stated


def _suffix(stated: StatedBound) -> str:
    if isinstance(stated, Mapping):
        is_of_time = isinstance(next(iter(stated.values())), AppendedAt)
        return "OffsetsByTimestamp" if is_of_time else "Offsets"
    return "Timestamp" if isinstance(stated, AppendedAt) else "Offsets"


OPTION_NAMES = names_of(LedgerOptions)
STREAM_OPTIONS = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "reader",
    "readerHold",
)
