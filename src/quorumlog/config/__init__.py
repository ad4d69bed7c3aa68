"""Every option, in one place; none is defined elsewhere.

Read in this order: `options` (dataclasses by concern), `reloading` (options that a running member
applies), `staging` (the staging group of a group), `tables` (certificates, and other ports).
"""

from quorumlog.config.options import (
    DAY_MS,
    DEFAULT_GROUP,
    FRAME_LIMIT_BYTES,
    GIB,
    HOUR_MS,
    KIB,
    LARGEST_ENTRY_BYTES,
    LARGEST_PUSH_BYTES,
    LARGEST_WINDOW_BYTES,
    MAX_NAME_BYTES,
    MIB,
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
    within,
)
from quorumlog.config.reloading import RELOADABLE, changes, reloaded
from quorumlog.config.staging import STAGING_FOLDER, is_staging_name, staging_name, with_staging
from quorumlog.config.tables import AdminOptions, KafkaOptions, KvOptions, TlsOptions

__all__ = [
    "AdminOptions",
    "STAGING_FOLDER",
    "ConsensusConfig",
    "DAY_MS",
    "DEFAULT_GROUP",
    "FRAME_LIMIT_BYTES",
    "GIB",
    "GroupConfig",
    "HOUR_MS",
    "KIB",
    "KafkaOptions",
    "KvOptions",
    "LARGEST_ENTRY_BYTES",
    "LARGEST_PUSH_BYTES",
    "LARGEST_WINDOW_BYTES",
    "LimitOptions",
    "MAX_NAME_BYTES",
    "MIB",
    "MemberAddress",
    "RELOADABLE",
    "Bounds",
    "StoreConfig",
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
    "within",
    "with_staging",
]
