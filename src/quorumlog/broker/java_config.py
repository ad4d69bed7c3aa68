"""JavaConfig: what a Java broker keeps beside its messages, in the folder `config` of its
storePathRootDir: topics, consumer groups, their offsets, and what its delay levels have delivered.

Each is a file in the JSON of fastjson, which writes numbers as keys without quotes, and beside it the
same in an earlier state (`.bak`), which counts where the file itself is cut, as it does in Java.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeVar

import msgspec

from quorumlog.errors import ConfigError, StoreFailure
from quorumlog.store.disk import Disk, refusal
from quorumlog.store.state_files import read_file

CONFIG_FOLDER_NAME = "config"
_NAMES_OF_OFFSETS = ("consumerOffset.json", "lmqConsumerOffset.json")
"""The second with enableLmq."""
_BARE_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|(?<=[{,])\s*(-?\d+)\s*:')


class JavaTopic(msgspec.Struct, frozen=True, rename="camel"):
    read_queue_nums: int = 1
    write_queue_nums: int = 1
    perm: int = 6


class _Topics(msgspec.Struct, rename="camel"):
    topic_config_table: dict[str, JavaTopic] = {}


class _Groups(msgspec.Struct, rename="camel"):
    subscription_group_table: dict[str, dict[str, object]] = {}


class _Offsets(msgspec.Struct, rename="camel"):
    offset_table: dict[str, dict[int, int]] = {}


class _Delays(msgspec.Struct, rename="camel"):
    offset_table: dict[int, int] = {}


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
    """What was read otherwise than from the file itself, in sentences."""


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
    groups = _read(disk, f"{folder}/subscriptionGroup.json", _Groups, notes)
    of_offsets = [_read(disk, f"{folder}/{name}", _Offsets, notes) for name in _NAMES_OF_OFFSETS]
    delays = _read(disk, f"{folder}/delayOffset.json", _Delays, notes)
    offsets = next((each for each in of_offsets if each is not None), None)
    return JavaConfig(
        topics,
        None if groups is None else sorted(groups.subscription_group_table),
        None if offsets is None else offsets.offset_table,
        None if delays is None else delays.offset_table,
        int.from_bytes(_content(disk, f"{folder}/timercheck")[:8], "big"),
        notes,
    )


def read_java_topics(disk: Disk, root: str, notes: list[str]) -> dict[str, JavaTopic] | None:
    """As `read_java_config`."""
    topics = _read(disk, f"{root}/{CONFIG_FOLDER_NAME}/topics.json", _Topics, notes)
    return None if topics is None else topics.topic_config_table


def _read(disk: Disk, path: str, kind: type[_T], notes: list[str]) -> _T | None:
    problems = []
    for each in (path, f"{path}.bak"):
        data = _content(disk, each)
        if not data:
            continue
        try:
            decoded = msgspec.json.decode(_quoted(data), type=kind)
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
    try:
        return read_file(disk, path) or b"" if disk.exists(path) else b""
    except OSError as error:
        raise StoreFailure(refusal(path, "read", error)) from error


def _quoted(data: bytes) -> str:
    """With quotes about keys that are numbers. Raises UnicodeDecodeError."""
    return _BARE_KEY.sub(lambda found: found[1] or f'"{found[2]}":', data.decode())
