"""A store of a Java broker: its settings, and the first check of its files."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from quorumlog.broker.message import SCHEDULE_TOPIC
from quorumlog.broker.record_batch import Int64Array, QueueKey, RecordBatch
from quorumlog.broker.store.flush import StoreCheckpoint
from quorumlog.broker.store.log_files import LogEnd, LogRecords, walk
from quorumlog.broker.store.queues import QUEUES_NAME, ConsumeQueues
from quorumlog.errors import ConfigError
from quorumlog.store.disk import Disk, disk_work
from quorumlog.store.segments import SegmentList
from quorumlog.store.state_files import read_file

# ---------------------------------------------------------------- JavaConfig
# What a Java broker keeps beside its messages, in the folder `config` of its storePathRootDir: topics,
# consumer groups, their offsets, and what its delay levels have delivered.
#
# Each is a file in the JSON of fastjson, which writes numbers as keys without quotes, and beside it the
# same in an earlier state (`.bak`), which counts where the file itself is cut, as it does in Java.

CONFIG_FOLDER_NAME = "config"
_NAMES_OF_OFFSETS = ("consumerOffset.json", "lmqConsumerOffset.json")
"""The second with enableLmq."""
_BARE_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|(?<=[{,])\s*(-?\d+)\s*:')


class JavaTopic(msgspec.Struct, frozen=True, rename="camel"):
    read_queue_nums: int = 1
    write_queue_nums: int = 1
    perm: int = 6


class JavaConfig(NamedTuple):
    """None: there is no such file."""

    topics: dict[str, JavaTopic] | None
    groups: list[str] | None
    offsets: dict[str, dict[int, int]] | None
    """Of `topic@group`, by queue: the next message that the group wants."""
    delayed: dict[int, int] | None
    """By delay level: the next message of its queue that is to be delivered."""
    timers_until_ms: int
    """Timers that were due until then were delivered; 0: not known."""
    notes: list[str]
    """Settings not read from the file itself, in sentences."""


_T = TypeVar("_T")


def read_java_config(disk: Disk, root: str) -> JavaConfig:
    """Raises ConfigError for a file that cannot be read, nor the one beside it; StoreFailure."""
    notes: list[str] = []
    folder = f"{root}/{CONFIG_FOLDER_NAME}"
    for name in ("topics", "subscriptionGroups", "consumerOffsets"):
        path = f"{folder}/{name}"
        if disk.exists(path):
            notes.append(f"{path} (settings in RocksDB) is not read, only the JSON beside it")
    topics = read_java_topics(disk, root, notes)
    path = f"{folder}/subscriptionGroup.json"
    groups = _read(disk, path, "subscriptionGroupTable", dict[str, dict[str, object]], notes)
    of_offsets = [
        _read(disk, f"{folder}/{name}", "offsetTable", dict[str, dict[int, int]], notes)
        for name in _NAMES_OF_OFFSETS
    ]
    return JavaConfig(
        topics,
        None if groups is None else sorted(groups),
        next((each for each in of_offsets if each is not None), None),
        _read(disk, f"{folder}/delayOffset.json", "offsetTable", dict[int, int], notes),
        int.from_bytes(_content(disk, f"{folder}/timercheck")[:8], "big"),
        notes,
    )


def read_java_topics(disk: Disk, root: str, notes: list[str]) -> dict[str, JavaTopic] | None:
    """As `read_java_config`."""
    path = f"{root}/{CONFIG_FOLDER_NAME}/topics.json"
    return _read(disk, path, "topicConfigTable", dict[str, JavaTopic], notes)


def _read(disk: Disk, path: str, table: str, kind: type[_T], notes: list[str]) -> _T | None:
    """The table of that file; without an entry it is empty. None: there is no such file."""
    problems = []
    content = msgspec.defstruct("Content", [(table, kind, msgspec.field(default_factory=dict))])
    for each in (path, f"{path}.bak"):
        data = _content(disk, each)
        if not data:
            continue
        try:
            decoded: _T = getattr(msgspec.json.decode(_quoted(data), type=content), table)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            problems.append(f"{each}: {error}")
            continue
        if each != path:
            notes.append(f"{path} is {'cut' if problems else 'missing or empty'}: {each} was read")
        return decoded
    if problems:
        raise ConfigError(f"{'; '.join(problems)}: restore one of them from a copy")
    return None


def _content(disk: Disk, path: str) -> bytes:
    """Empty where there is none. Raises StoreFailure."""
    with disk_work(path, "read"):
        return read_file(disk, path) or b"" if disk.exists(path) else b""


def _quoted(data: bytes) -> str:
    """With quotes about keys that are numbers. Raises UnicodeDecodeError."""
    return _BARE_KEY.sub(lambda found: found[1] or f'"{found[2]}":', data.decode())


# ----------------------------------------------------------------
# The first look at a store that another software wrote, a Java broker in general: its whole commit log
# is walked once, and compared with the queues and the checkpoint, before a start writes anything or a
# takeover copies it. What does not fit is refused by file: files of the log may be missing, or lie
# elsewhere, and a broker that goes on without them assigns their queue offsets again.
#
# A store that we have started once has a file `flushed` (flushed_file.py), and is not looked at again.

log = logging.getLogger("quorumlog.broker")

_BATCH_QUEUES_NAME = "batchconsumequeue"
_LIGHT_PREFIX = "%LMQ%"
_ROCKS_NAME = "CURRENT"
"""A file of each RocksDB."""


def refuse_other_queues(disk: Disk, root: str) -> None:
    """Raises ConfigError for a store whose queues are not of the one kind that there is here."""
    kept_in_rocks = [
        name
        for name in disk.list(root)
        if name.startswith(QUEUES_NAME) and disk.exists(f"{root}/{name}/{_ROCKS_NAME}")
    ]
    if kept_in_rocks:
        raise ConfigError(
            f"{root}/{kept_in_rocks[0]} holds queues in RocksDB (storeType=defaultRocksDB), which are"
            " not read. Where the commit log still begins at 0, copy the store without that folder:"
            " queues are derived from the log then"
        )
    batched = disk.list(f"{root}/{_BATCH_QUEUES_NAME}")
    if batched:
        raise ConfigError(
            f"{root}/{_BATCH_QUEUES_NAME}/{batched[0]} is a topic with queue.type=BatchCQ: its messages"
            " hold several each, which is not read"
        )
    light = [name for name in disk.list(f"{root}/{QUEUES_NAME}") if name.startswith(_LIGHT_PREFIX)]
    if light:
        raise ConfigError(
            f"{root}/{QUEUES_NAME}/{light[0]} is a light message queue (enableLmq), of which there are"
            f" none here. The messages of all {len(light)} lie in topics of their own, too: to continue"
            f" with those, copy the store without its folders {QUEUES_NAME}/{_LIGHT_PREFIX}*"
        )


def deleted_topics(disk: Disk, root: str) -> Callable[[str], bool]:
    """Whether a Java broker has deleted a topic: its queues are gone, and its messages in the log stay.
    Raises StoreFailure."""
    try:
        topics = read_java_topics(disk, root, [])
    except ConfigError as error:
        log.warning("the deleted topics are not known: %s", error)
        topics = None
    if topics is None:
        return lambda topic: False
    left = {*topics, *disk.list(f"{root}/{QUEUES_NAME}"), SCHEDULE_TOPIC}
    return lambda topic: topic not in left


def find_deleted(
    files: SegmentList, was_deleted: Callable[[str], bool], known: Collection[QueueKey] = ()
) -> dict[QueueKey, int]:
    """As `ConsumeQueues.alive_from`, by the log: messages before 0 are delivered again. `known`: queues
    with messages that the log no longer has."""
    alive_from, seen = dict[QueueKey, int](), {*known}
    for found in walk(files, files.first_position, LogEnd(files.first_position), check_bodies=False):
        for key, rows in found.records.queues if len(found.records) else ():
            positions = found.records.starts[rows] + found.position
            begins = np.flatnonzero(found.records.columns.queue_offsets[rows] == 0)
            if was_deleted(key.topic):
                alive_from[key] = int(positions[-1]) + 1
            elif len(begins) and (begins[-1] or key in seen):
                alive_from[key] = int(positions[begins[-1]])
            seen.add(key)
    return alive_from


def first_look(
    disk: Disk, root: str, files: SegmentList, queues: ConsumeQueues, *, is_clean: bool
) -> str:
    """Nothing is changed. Returns why the queues have to be derived anew; empty: they match the log.
    Raises ConfigError."""
    size_bytes = files.end_position - files.first_position
    log.info("%s: the first start on it looks at its %d bytes of commit log", root, size_bytes)
    end = LogEnd(files.first_position)
    lost, was_deleted = "", deleted_topics(disk, root)
    for found in walk(files, files.first_position, end, check_bodies=False):
        wrong = [problem for key, problem in wrong_units(found, queues) if not was_deleted(key.topic)]
        lost = lost or "".join(wrong[:1])
    refuse_missing_files(disk, root, files, queues, end, is_clean=is_clean)
    return lost


def refuse_missing_files(
    disk: Disk, root: str, files: SegmentList, queues: ConsumeQueues, end: LogEnd, *, is_clean: bool
) -> None:
    """`end`: of a walk over the whole log. After an unclean stop the log may end below the queues, in
    its last file. Raises ConfigError."""
    ahead = [(queue.last_position, key) for key, queue in queues.items()]
    last, key = max(ahead, default=(-1, None))
    hint = (
        "files of the commit log are missing, or lie on another path (storePathCommitLog may name"
        f" several): copy all of them to {files.directory}. To continue without: quorumlog broker"
        f" recover {root} --cut {end.position}"
    )
    what = f"the record at {end.position} {end.problem}" if end.problem else (
        f"the commit log ends at {end.position}"
    )  # fmt: skip
    if key is not None and last > end.position and (is_clean or last > files.end_position):
        raise ConfigError(
            f"{files.path_of(end.position)}: {what}, and {QUEUES_NAME}/{key.topic}/{key.queue_id} names"
            f" messages up to {last}: {hint}"
        )
    flushed_ms = StoreCheckpoint.peek(disk, root)
    if flushed_ms > end.last_time_ms:
        raise ConfigError(
            f"{files.path_of(end.position)}: {what} with a message of {end.last_time_ms} (milliseconds"
            f" since 1970), and the checkpoint names one of {flushed_ms}: {hint}, or delete"
            f" {root}/checkpoint where the checkpoint is wrong"
        )


def wrong_units(
    found: LogRecords, queues: ConsumeQueues, unconfirmed: int = (1 << 63) - 1
) -> list[tuple[QueueKey, str]]:
    """Queues whose units do not name these records, and the text for it. `unconfirmed`: from there on a
    message may be in no queue yet."""
    shown = found.records.shown
    wrong = []
    for key, rows in shown.queues:
        if not _names(queues, key, shown, rows, found.position, unconfirmed):
            first, last = shown.columns.queue_offsets[rows[[0, -1]]].tolist()
            what = f"{key.topic} queue {key.queue_id}: units {first} to {last}"
            wrong.append((key, f"{what} do not name their messages"))
    return wrong


def _names(
    queues: ConsumeQueues,
    key: QueueKey,
    shown: RecordBatch,
    rows: Int64Array,
    position: int,
    unconfirmed: int,
) -> bool:
    queue = queues.get(key)
    if key in queues.alive_from:
        rows = rows[shown.starts[rows] + position >= queues.alive_from[key]]
        if not len(rows):
            return True
    offsets = shown.columns.queue_offsets[rows]
    units = None if queue is None else queue.units(int(offsets[0]), int(offsets[-1]) + 1)
    positions = shown.starts[rows] + position
    count = 0 if units is None else len(units)
    if count < np.count_nonzero(positions < unconfirmed) or count > len(rows):
        return False
    return units is None or bool(
        (units["position"] == positions[:count]).all()
        and (units["size"] == shown.sizes[rows][:count]).all()
    )
