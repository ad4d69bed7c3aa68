"""OldState: topics, consumer groups, offsets and delays of a store that is taken over, from what a Java
broker keeps in `config` and from what lies in the commit log; and what of it is left behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from quorumlog.broker.group_commands import (
    DLQ_PREFIX,
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
from quorumlog.broker.message import SCHEDULE_TOPIC, StoredMessage
from quorumlog.broker.offline.old_log import OldGroup, OldState, OldTopic
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.java_store import CONFIG_FOLDER_NAME, JavaConfig, JavaTopic
from quorumlog.errors import BadRequest, ConfigError

HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
_COUNTED = {HALF_TOPIC, OP_TOPIC, TIMER_TOPIC}
"""Their messages are looked at one by one."""
_TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
_SYSTEM_PREFIXES = ("RMQ_SYS_", "rmq_sys_")
_SYSTEM_TOPICS = {
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
    """Prepared, neither committed nor rolled back: left behind."""
    timers: int
    """Not due yet: left behind."""
    left_topics: tuple[str, ...]
    """With messages, and a name or a number of queues that is not possible here."""
    left_groups: tuple[str, ...]
    notes: tuple[str, ...]


class OldMessages:
    """What a walk over the commit log gathers."""

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
        shown = records
        if not records.in_queue.all():
            shown = records.select(np.flatnonzero(records.in_queue))
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

    @property
    def topics(self) -> set[str]:
        return {key.topic for key in self.ends}

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
    """`without_config`: what says which messages were delivered may be missing. Raises ConfigError
    where it is, and it is needed."""
    if not without_config:
        _check_config(root, config, held)
    given = config.topics
    if given is None:
        # RocketMQ's own classic stores have the file; ours have no settings but what they hold.
        given = {key.topic: JavaTopic() for key in (*held.ends, *held.expired)}
    topics: dict[str, OldTopic] = {}
    left_topics = []
    for name, topic in sorted(given.items()):
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
    offsets = config.offsets or {}
    names = {key.rpartition("@")[2] for key in offsets}
    names |= {name.removeprefix(RETRY_PREFIX) for name in given if name.startswith(RETRY_PREFIX)}
    groups = []
    left_groups = []
    for name in sorted(names.union(config.groups or [])):
        if name in _SYSTEM_GROUPS or name.startswith(_SYSTEM_GROUP_PREFIXES):
            continue
        try:
            check_group_name(name)
        except BadRequest:
            left_groups.append(name)
            continue
        for own in (retry_topic(name), dlq_topic(name)):
            queues = max(given.get(own, JavaTopic()).read_queue_nums, held.queues_of(own), 1)
            topics[own] = OldTopic(own, min(queues, MOST_QUEUES), READ | WRITE)
        groups.append((name, [key for key in offsets if key.rpartition("@")[2] == name]))
    state = OldState(
        [topics[name] for name in sorted(topics)],
        [OldGroup(name, list(_rows(keys, offsets, topics, held))) for name, keys in groups],
        {level: at for level, at in sorted((config.delayed or {}).items()) if 1 <= level <= LEVELS},
    )
    delays = {key.queue_id + 1: end for key, end in held.ends.items() if key.topic == SCHEDULE_TOPIC}
    waiting = sum(max(end - state.delayed.get(level, 0), 0) for level, end in delays.items())
    checked = offsets.get(f"{HALF_TOPIC}@{_TRANSACTION_GROUP}", {})
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
    lacking = []
    if config.delayed is None and SCHEDULE_TOPIC in held.topics:
        lacking.append("delayOffset.json")
    if config.offsets is None and any(topic.startswith(RETRY_PREFIX) for topic in held.topics):
        lacking.append("consumerOffset.json")
    if lacking:
        raise ConfigError(
            f"{root} holds delayed messages or retries, and no {CONFIG_FOLDER_NAME}/"
            f"{f' and {CONFIG_FOLDER_NAME}/'.join(lacking)}, which says what of them was delivered: copy"
            f" the folder {CONFIG_FOLDER_NAME} of the broker's storePathRootDir there, or deliver all of"
            " them again with --without-config"
        )


def _is_system(name: str, topic: JavaTopic, held: OldMessages) -> bool:
    is_pattern = bool(topic.perm & _INHERIT) and not held.queues_of(name)
    return is_pattern or name in _SYSTEM_TOPICS or name.startswith(_SYSTEM_PREFIXES) or (
        name.endswith(_REPLY_SUFFIX)
    )  # fmt: skip


def _rows(
    keys: Iterable[str],
    offsets: dict[str, dict[int, int]],
    topics: dict[str, OldTopic],
    held: OldMessages,
) -> Iterable[tuple[str, int, int]]:
    """A group that is ahead of what this copy of the log holds begins at its end."""
    for key in sorted(keys):
        topic = topics.get(key.rpartition("@")[0])
        for queue, offset in sorted(offsets[key].items()):
            if topic is not None and 0 <= queue < topic.queues and offset >= 0:
                yield topic.name, queue, min(offset, held.end_of(QueueKey(topic.name, queue)))
