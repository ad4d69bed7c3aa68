"""Reloadable options of a key-value store."""

from __future__ import annotations

from dataclasses import dataclass

from quorumlog.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KvOptions:
    """The table `[kv]`."""

    quota_mib: int = 8192
    """Above it puts are refused, while deletions and compaction continue."""
    auto_compaction_s: float = 3600.0
    """History older than that ends; 0: it does not end by itself."""
    max_watches: int = 10_000
    """Of one client; ten times so many of all."""
    etcd: str = ""
    """Port of etcd's gRPC API, PORT or HOST:PORT; empty: there is none. This and the options below are
    read at the start only."""
    etcd_gateway: str = ""
    """The same of etcd's JSON gateway."""
    servers: str = ""
    """The stores of all members, HOST:PORT,..., for these ports."""
    user: str = ""
    """Own user of these ports, for clients that do not log in,"""
    password_file: str = ""
    """and the file whose first line is its password."""

    @property
    def ports(self) -> tuple[str, ...]:
        """Options that are read at the start only."""
        return self.etcd, self.etcd_gateway, self.servers, self.user, self.password_file

    def __post_init__(self) -> None:
        for name, least in (("quota_mib", 1), ("auto_compaction_s", 0), ("max_watches", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"[kv] {name} must be at least {least}, not {getattr(self, name)}")
