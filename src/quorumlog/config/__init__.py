"""Every option, in one place; none is defined elsewhere.

Read in this order: `options` (dataclasses by concern), `reloading` (options that a running member
applies), `staging` (the staging group of a group), `tls` (certificates), `admin` (the port for
operators), `kv` (the key-value store), `kafka` (the port for clients of Kafka).
"""

from quorumlog.config.admin import AdminOptions
from quorumlog.config.kafka import KafkaOptions
from quorumlog.config.kv import KvOptions
from quorumlog.config.options import (
    DAY_MS,
    DEFAULT_GROUP,
    FRAME_HEAD_BYTES,
    FRAME_LIMIT_BYTES,
    GIB,
    HOUR_MS,
    HOURS_OF_A_CENTURY,
    KIB,
    LARGEST_ENTRY_BYTES,
    LARGEST_PUSH_BYTES,
    LARGEST_WINDOW_BYTES,
    MAX_ENTRY_BYTES,
    MAX_NAME_BYTES,
    MIB,
    PUSHED_BYTES_PER_ENTRY,
    RETENTIONS,
    TIB,
    UNSENT_LIMIT_BYTES,
    Bounds,
    ConsensusConfig,
    GroupConfig,
    LimitOptions,
    MemberAddress,
    StoreConfig,
    UsersOptions,
    check_name,
    parse_address,
    parse_members,
)
from quorumlog.config.reloading import RELOADABLE, Reloaded, changes, reloaded
from quorumlog.config.staging import STAGING_FOLDER, is_staging_name, staging_name, with_staging
from quorumlog.config.tls import TlsOptions

__all__ = [
    "AdminOptions",
    "STAGING_FOLDER",
    "ConsensusConfig",
    "DAY_MS",
    "DEFAULT_GROUP",
    "FRAME_HEAD_BYTES",
    "FRAME_LIMIT_BYTES",
    "GIB",
    "GroupConfig",
    "HOURS_OF_A_CENTURY",
    "HOUR_MS",
    "KIB",
    "KafkaOptions",
    "KvOptions",
    "LARGEST_ENTRY_BYTES",
    "LARGEST_PUSH_BYTES",
    "LARGEST_WINDOW_BYTES",
    "LimitOptions",
    "MAX_ENTRY_BYTES",
    "MAX_NAME_BYTES",
    "MIB",
    "MemberAddress",
    "PUSHED_BYTES_PER_ENTRY",
    "RELOADABLE",
    "RETENTIONS",
    "Bounds",
    "Reloaded",
    "StoreConfig",
    "TIB",
    "TlsOptions",
    "UNSENT_LIMIT_BYTES",
    "UsersOptions",
    "changes",
    "check_name",
    "is_staging_name",
    "parse_address",
    "parse_members",
    "reloaded",
    "staging_name",
    "with_staging",
]
