"""OldState: topics, consumer groups, offsets and delays of a store that is taken over, from a Java
broker's `config` and the commit log; and the parts not taken over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import msgspec
from isal.isal_zlib import crc32
from msgspec.structs import replace

from quorumlog.batch import EntryBatch
from quorumlog.broker.client.blocking import BrokerClient
from quorumlog.broker.group_commands import (
    DLQ_PREFIX,
    GROUPS_TOPIC,
    LEVELS,
    MOST_QUEUES,
    READ,
    RETRY_PREFIX,
    UNDELIVERED_TOPIC,
    WRITE,
    check_group_name,
    check_topic_name,
    dlq_topic,
    retry_topic,
)
from quorumlog.broker.message import SCHEDULE_TOPIC, StoredMessage, blank_record
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.broker.offline.old_log import (
    BLOCK_BYTES,
    FOLDER_NAME,
    PIECE_BYTES,
    RECORD_NAME,
    FileDigest,
    OldGroup,
    OldState,
    OldTopic,
    TakenOver,
    decode_record,
    encode_record,
)
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.java_store import CONFIG_FOLDER_NAME, JavaConfig, JavaTopic, read_java_config
from quorumlog.broker.store.log_files import LogEnd
from quorumlog.broker.store.message_store import USERS_NAME
from quorumlog.config import MemberAddress, StoreConfig
from quorumlog.entry import EntryKind, Formation, Replica
from quorumlog.errors import BadRequest, ConfigError, ProtocolViolation, StoreFailure
from quorumlog.log_state.control_entries import LEVEL, MembershipEntry, encode_body
from quorumlog.log_state.log_state import EMPTY
from quorumlog.log_state.users import UsersChange
from quorumlog.store.directory_kind import DirectoryKind
from quorumlog.store.disk import Disk, OsDisk, disk_work
from quorumlog.store.log_points import LogPoint, LogStart
from quorumlog.store.made_directories import RestoredDirectory
from quorumlog.store.member_directory import draw_directory_id
from quorumlog.store.segments import segment_name
from quorumlog.store.state_files import VERSION_WITH_START, MemberRecord, replace_file, version_of

HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
_COUNTED = {HALF_TOPIC, OP_TOPIC, TIMER_TOPIC}
"""Their messages are looked at one by one."""
_TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
_SYSTEM_PREFIXES = ("RMQ_SYS_", "rmq_sys_")
_SYSTEM_TOPICS = {
    GROUPS_TOPIC,
    SCHEDULE_TOPIC,
    UNDELIVERED_TOPIC,
    "TBW102",
    "BenchmarkTest",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
}
_REPLY_SUFFIX = "_REPLY_TOPIC"
_INHERIT = 1
"""Bit of a permission: of topics after whose image others are made, such as that of the cluster."""
_SYSTEM_GROUPS = {
    "CID_ONS-HTTP-PROXY",
    "DEFAULT_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SCHEDULE_CONSUMER",
    "SELF_TEST_C_GROUP",
    "TOOLS_CONSUMER",
    "__MONITOR_CONSUMER",
}
_SYSTEM_GROUP_PREFIXES = ("CID_RMQ_SYS_", "CID_ONSAPI_", "CID_SYS_RMQ_")


LEFT_USERS = (
    "users are not taken over, and every request is refused: before its first start, give the directory"
    " of one of the members an administrator (quorumlog init-admin), who adds the others"
)


class OldReport(NamedTuple):
    """How much was taken over, and how much was not."""

    topics: int
    groups: int
    offsets: int
    """Committed, of all groups."""
    delayed_messages: int
    """Still to be delivered, retries among them."""
    delivered_messages: int
    """Of delay levels; they are not delivered again."""
    half_messages: int
    """Prepared, neither committed nor rolled back: not taken over."""
    timers: int
    """Not due yet: not taken over."""
    left_topics: tuple[str, ...]
    """With messages, and a name or a number of queues that is not possible here."""
    left_groups: tuple[str, ...]
    notes: tuple[str, ...]


class OldMessages:
    """The result of a walk over the commit log."""

    def __init__(self) -> None:
        self.ends: dict[QueueKey, int] = {}
        self.expired: dict[QueueKey, int] = {}
        """Ends of queues of which it has no message any more."""
        self.last_time_ms = 0
        self._halves: dict[tuple[int, int], str] = {}
        """UNIQ_KEY, by queue and offset; a check of the broker's writes another with the same."""
        self._ended: set[tuple[int, int]] = set()
        self._timers: dict[str, int] = {}
        """When each is due."""

    def add(self, records: RecordBatch) -> None:
        if not len(records):
            return
        self.last_time_ms = max(self.last_time_ms, int(records.columns.store_times_ms.max()))
        shown = records.shown
        for key, rows in shown.queues:
            self.ends[key] = int(shown.columns.queue_offsets[rows].max()) + 1
            if key.topic in _COUNTED:
                for message in shown.select(rows).messages():
                    self._look_at(message)

    def _look_at(self, message: StoredMessage) -> None:
        if message.topic == HALF_TOPIC:
            place = message.queue_id, message.queue_offset
            self._halves[place] = message.properties.get("UNIQ_KEY", str(place))
        elif message.topic == OP_TOPIC:
            words = message.body.split(b",")
            self._ended |= {(message.queue_id, int(word)) for word in words if word.strip().isdigit()}
        elif (due := message.properties.get("TIMER_OUT_MS", "")).isascii() and due.isdigit():
            deleted = message.properties.get("TIMER_DEL_UNIQKEY", "")
            if deleted:
                self._timers.pop(deleted, None)
            else:
                key = message.properties.get("UNIQ_KEY", str(message.queue_offset))
                self._timers[key] = int(due)

    def queues_of(self, topic: str) -> int:
        keys = [*self.ends, *self.expired]
        return max((key.queue_id + 1 for key in keys if key.topic == topic), default=0)

    def end_of(self, key: QueueKey) -> int:
        return self.ends.get(key, self.expired.get(key, 0))

    def pending_halves(self, checked: dict[int, int]) -> int:
        """`checked`: by queue, from where on the broker had not looked yet."""
        ended = {self._halves[place] for place in self._ended if place in self._halves}
        open_ = {
            key
            for (queue, offset), key in self._halves.items()
            if offset >= checked.get(queue, 0) and (queue, offset) not in self._ended
        }
        return len(open_ - ended)

    def pending_timers(self, delivered_until_ms: int) -> int:
        until_ms = delivered_until_ms or self.last_time_ms
        return sum(due > until_ms for due in self._timers.values())


def old_state(
    root: str, config: JavaConfig, held: OldMessages, *, without_config: bool
) -> tuple[OldState, OldReport]:
    """`without_config`: the record of delivered messages may be missing. Raises ConfigError if it is
    missing and needed."""
    if not without_config:
        _check_config(root, config, held)
    configured = config.topics
    if configured is None:
        # RocketMQ's own classic stores have the file; ours have no settings but what they hold.
        configured = {key.topic: JavaTopic() for key in (*held.ends, *held.expired)}
    topics: dict[str, OldTopic] = {}
    left_topics = []
    for name, topic in sorted(configured.items()):
        if _is_system(name, topic, held) or name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            continue
        queues = max(topic.read_queue_nums, topic.write_queue_nums, held.queues_of(name))
        try:
            check_topic_name(name)
            if not 1 <= queues <= MOST_QUEUES:
                raise BadRequest(f"{queues} queues")
        except BadRequest:
            left_topics += [name] if held.queues_of(name) else []
            continue
        topics[name] = OldTopic(name, queues, topic.perm & (READ | WRITE))
    offsets: dict[str, dict[str, dict[int, int]]] = {}
    for key, of_queues in sorted((config.offsets or {}).items()):
        topic_name, _, group = key.rpartition("@")
        offsets.setdefault(group, {})[topic_name] = of_queues
    names = {name.removeprefix(RETRY_PREFIX) for name in configured if name.startswith(RETRY_PREFIX)}
    groups = []
    left_groups = []
    for name in sorted(names.union(offsets, config.groups or [])):
        if name in _SYSTEM_GROUPS or name.startswith(_SYSTEM_GROUP_PREFIXES):
            continue
        try:
            check_group_name(name)
        except BadRequest:
            left_groups.append(name)
            continue
        for own in (retry_topic(name), dlq_topic(name)):
            queues = max(configured.get(own, JavaTopic()).read_queue_nums, held.queues_of(own), 1)
            topics[own] = OldTopic(own, min(queues, MOST_QUEUES), READ | WRITE)
        groups.append(name)
    state = OldState(
        [topics[name] for name in sorted(topics)],
        [OldGroup(name, list(_rows(offsets.get(name, {}), topics, held))) for name in groups],
        {level: at for level, at in sorted((config.delayed or {}).items()) if 1 <= level <= LEVELS},
    )
    delays = {key.queue_id + 1: end for key, end in held.ends.items() if key.topic == SCHEDULE_TOPIC}
    waiting = sum(max(end - state.delayed.get(level, 0), 0) for level, end in delays.items())
    checked = offsets.get(_TRANSACTION_GROUP, {}).get(HALF_TOPIC, {})
    report = OldReport(
        topics=sum(not name.startswith((RETRY_PREFIX, DLQ_PREFIX)) for name in topics),
        groups=len(groups),
        offsets=sum(len(group.offsets) for group in state.groups),
        delayed_messages=waiting,
        delivered_messages=sum(delays.values()) - waiting,
        half_messages=held.pending_halves(checked),
        timers=held.pending_timers(config.timers_until_ms),
        left_topics=tuple(left_topics),
        left_groups=tuple(left_groups),
        notes=tuple(config.notes),
    )
    return state, report


def _check_config(root: str, config: JavaConfig, held: OldMessages) -> None:
    lacking, topics = [], {key.topic for key in held.ends}
    if config.delayed is None and SCHEDULE_TOPIC in topics:
        lacking.append("delayOffset.json")
    if config.offsets is None and any(topic.startswith(RETRY_PREFIX) for topic in topics):
        lacking.append("consumerOffset.json")
    if lacking:
        raise ConfigError(
            f"{root} holds delayed messages or retries, and no {CONFIG_FOLDER_NAME}/"
            f"{f' and {CONFIG_FOLDER_NAME}/'.join(lacking)}, which records the delivered ones: copy"
            f" the folder {CONFIG_FOLDER_NAME} of the broker's storePathRootDir there, or deliver all of"
            " them again with --without-config"
        )


def _is_system(name: str, topic: JavaTopic, held: OldMessages) -> bool:
    is_named = name in _SYSTEM_TOPICS or name.startswith(_SYSTEM_PREFIXES)
    is_pattern = bool(topic.perm & _INHERIT) and not held.queues_of(name)
    return is_named or is_pattern or name.endswith(_REPLY_SUFFIX)


def _rows(
    offsets: dict[str, dict[int, int]], topics: dict[str, OldTopic], held: OldMessages
) -> Iterable[tuple[str, int, int]]:
    """A group that is ahead of what this copy of the log holds begins at its end."""
    for name, of_queues in offsets.items():
        topic = topics.get(name)
        for queue, offset in sorted(of_queues.items()):
            if topic is not None and 0 <= queue < topic.queues and offset >= 0:
                yield topic.name, queue, min(offset, held.end_of(QueueKey(topic.name, queue)))


# ---------------------------------------------------------------- Takeover
# A member's directory made of a stopped classic store. The old commit log stays as it is below the
# first entry, closed with a blank record; the replicated log begins at index 0 where it ends.
#
# Each member is made on its own machine, from its own copy of the store. What a group is known by
# follows from the digest of the old log and the list of members: members whose old logs differ by a
# byte are of different clusters, and never take a message from each other.

_ID_DIGITS = 32


class Takeover(NamedTuple):
    record: TakenOver
    report: OldReport


def take_over(
    store: str,
    data_dir: str,
    member_id: str,
    members: Sequence[MemberAddress],
    *,
    group: str = "default",
    without_config: bool = False,
) -> Takeover:
    """`store` is read, and left as it is. `without_config`: see `old_state`. Raises ConfigError where it
    runs, is damaged or was not stopped, or where `data_dir` is not empty; DiskFull, StoreFailure.

    After taking over a store with users, every request is refused until an administrator is named."""
    disk = OsDisk()
    if member_id not in [each.member_id for each in members]:
        raise ConfigError(f"--id {member_id} is not in --members")
    with OfflineStore(store, disk) as old:
        has_users = disk.exists(f"{store}/{USERS_NAME}")
        record, report, end_position = _survey(old, store, disk, without_config=without_config)
        names = ",".join(sorted(f"{m.member_id}={m.host}:{m.port}" for m in members))
        # A copy without the file would make a log without users: of another cluster.
        seed = f"{record.digest} {group} {names}{' users' if has_users else ''}"
        replicas = tuple(
            Replica(m.member_id, _id_of(seed, m.member_id))
            for m in sorted(members, key=lambda member: member.member_id)
        )
        member = replace(
            _member_of(record, group, member_id, _id_of(seed, member_id)),
            formation=Formation(replicas, replicas, _id_of(seed, "cluster"), level=LEVEL),
            version=version_of(LEVEL, has_start=True) if has_users else VERSION_WITH_START,
            users=has_users,
        )
        with RestoredDirectory(disk, data_dir, member) as target:
            target.begin(start_behind(record))
            addresses = tuple((each.member_id, str(each)) for each in members)
            membership = MembershipEntry(replicas, replicas, addresses=addresses)
            target.log.append_own(EntryBatch.noop(), 1)
            if has_users:
                body = encode_body(UsersChange(clears=True))
                target.log.append_own(EntryBatch.control(EntryKind.USERS, body), 1)
            body = encode_body(membership)
            target.log.append_own(EntryBatch.control(EntryKind.MEMBERSHIP, body), 1)
            copy_old_log(
                disk,
                data_dir,
                record,
                lambda file: _content(old, file.position, end_position, record.end_position),
            )
            target.prepare(1)
            target.complete()
    if has_users:
        report = report._replace(notes=(*report.notes, LEFT_USERS))
    return Takeover(record, report)


def _id_of(seed: str, name: str) -> str:
    return hashlib.sha256(f"{seed} {name}".encode()).hexdigest()[:_ID_DIGITS]


def _member_of(record: TakenOver, group: str, member_id: str, directory_id: str) -> MemberRecord:
    return MemberRecord(
        group=group,
        member_id=member_id,
        directory_id=directory_id,
        segment_bytes=record.file_bytes,
        index_segment_bytes=StoreConfig(segment_bytes=record.file_bytes).index_segment_bytes,
        version=VERSION_WITH_START,
        kind=DirectoryKind.LOG_BROKER.stored,
    )


def _survey(
    old: OfflineStore, path: str, disk: Disk, *, without_config: bool
) -> tuple[TakenOver, OldReport, int]:
    """And where the log ends. Raises ConfigError."""
    if not old.is_clean:
        raise ConfigError(
            f"{path} was not stopped cleanly: start its broker once more and stop it, so that its log is"
            " recovered"
        )
    config = read_java_config(disk, path)
    end, held = LogEnd(old.files.first_position), OldMessages()
    for found in old.walk(end):
        held.add(found.records)
    if end.problem:
        raise ConfigError(
            f"the record at {end.position} of {path} {end.problem}: recover the store first"
        )
    old.refuse_missing_files(end)
    held.expired = {
        key: floor for key, floor in old.queues.floors().items() if floor and key not in held.ends
    }
    queues = [(*key, end_offset) for key, end_offset in sorted(held.expired.items())]
    state, report = old_state(path, config, held, without_config=without_config)
    files = []
    stop = end.position
    closed = -(-stop // old.file_bytes) * old.file_bytes
    for base in range(old.files.first_position, closed, old.file_bytes):
        sha, blocks = hashlib.sha256(), list[int]()
        for data in _content(old, base, stop, closed):
            sha.update(data)
            blocks.append(crc32(data))
        files.append(FileDigest(base, sha.hexdigest(), blocks))
    return TakenOver(closed, old.file_bytes, files, state, queues), report, stop


def _content(old: OfflineStore, base: int, stop: int, closed: int) -> Iterator[bytes]:
    """Blocks of a file as it stands below the replicated log: after the last record a blank, and
    zeros."""
    blank = blank_record(closed - stop) if stop < closed else b""
    for at in range(base, base + old.file_bytes, BLOCK_BYTES):
        size = min(BLOCK_BYTES, base + old.file_bytes - at)
        data = bytearray(old.files.pread(max(min(size, stop - at), 0), at).ljust(size, b"\0"))
        first, last = max(stop, at), min(stop + len(blank), at + size)
        if first < last:
            data[first - at : last - at] = blank[first - stop : last - stop]
        yield bytes(data)


def start_behind(record: TakenOver) -> LogStart:
    """Of the replicated log."""
    return LogStart(LogPoint(-1, -1, 0, record.end_position), EMPTY.encode())


def copy_old_log(
    disk: Disk, data_dir: str, record: TakenOver, blocks_of: Callable[[FileDigest], Iterable[bytes]]
) -> None:
    """`blocks_of`: a file in blocks of BLOCK_BYTES. On disk when this returns. Raises StoreFailure, also
    where a file is not the one of the record."""
    folder = f"{data_dir}/{FOLDER_NAME}"
    with disk_work(data_dir, "written"):
        disk.make_directory(folder)
        for name in disk.list(folder):
            disk.unlink(f"{folder}/{name}")  # of an earlier attempt: what is not written here is a hole
        for each in record.files:
            digest = hashlib.sha256()
            with closing(disk.open(f"{folder}/{segment_name(each.position)}", create=True)) as file:
                file.set_size(record.file_bytes)
                for number, data in enumerate(blocks_of(each)):
                    digest.update(data)
                    if data.strip(b"\0"):
                        file.pwritev([data], number * BLOCK_BYTES)
                file.sync()
            if digest.hexdigest() != each.sha256:
                raise StoreFailure(
                    f"the file at {each.position} of the old commit log does not match its digest:"
                    " nothing was made of it"
                )
        disk.sync_directory(folder)
        path = f"{data_dir}/{RECORD_NAME}"
        replace_file(disk, path, encode_record(record), synced=True)


# ----------------------------------------------------------------
# A later member of a group that has taken a classic store over: it is made before it starts, of what a
# member's broker sends of the old commit log, file by file. Its replicated log begins where those of
# the others do, without an entry, and the leader feeds it.
#
# A member that starts on an empty directory instead never comes to vote: the first entry lies elsewhere
# in its log, and it takes none.


def make_later_member(
    broker: BrokerClient, data_dir: str, member_id: str, *, group: str = "default"
) -> TakenOver:
    """`broker`: of any member that runs. Raises ConfigError if its group has taken no store over or
    `data_dir` is not empty; the broker's refusal; StoreFailure, DiskFull. The next call clears an
    incomplete directory."""
    disk, data = OsDisk(), broker.old_log().record
    if not data:
        raise ConfigError(
            f"the group of {broker.server} has taken no store over: a new member starts on an empty"
            " directory"
        )
    try:
        record = decode_record(data)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(
            f"{broker.server} returns no record of an old commit log: {error}"
        ) from None
    member = _member_of(record, group, member_id, draw_directory_id())

    def blocks_of(file: FileDigest) -> Iterator[bytes]:
        stop = file.position + record.file_bytes
        for at in range(file.position, stop, BLOCK_BYTES):
            yield b"".join(
                broker.old_log(piece, min(PIECE_BYTES, at + BLOCK_BYTES - piece, stop - piece)).data
                for piece in range(at, min(at + BLOCK_BYTES, stop), PIECE_BYTES)
            )

    with RestoredDirectory(disk, data_dir, member) as target:
        target.begin(start_behind(record))
        copy_old_log(disk, data_dir, record, blocks_of)
        target.complete()
    return record
