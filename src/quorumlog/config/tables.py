"""Tables of a process in its file: certificates, and the ports beside that of the log."""

from __future__ import annotations

from dataclasses import dataclass, fields

from quorumlog.config.options import parse_address, parse_members, within
from quorumlog.errors import ConfigError

CLIENT_AUTHS = ("none", "optional", "required")
FILES = ("--tls-cert", "--tls-key", "--tls-ca")
PEERS = ("plain", "prefer", "required")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The table `[tls]`. Files are PEM, and read again when they change."""

    cert: str
    key: str
    ca: str
    """CAs to trust."""
    client_auth: str = "none"
    """`none`: clients need no certificate. `optional`: one that is shown is checked. `required`:
    clients without one are refused."""
    cluster: str = ""
    """NAME in quorumlog://NAME/member/ID; empty: that of the own certificate."""
    listen: str = ""
    """A second address of the log, for TLS, while the first stays plain; empty: the first speaks TLS."""
    store_listen: str = ""
    """The same of the key-value store,"""
    gateway_listen: str = ""
    """of etcd's JSON gateway on it,"""
    etcd_listen: str = ""
    """of etcd's gRPC API on it,"""
    broker_listen: str = ""
    """and of the broker."""
    peers: str = "required"
    """Links between members: `plain`, `prefer` (TLS, or plain if the other has none), `required`."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if not isinstance(getattr(self, each.name), str):
                raise ConfigError(f"[tls] {each.name} must be a string")
        for option, path in zip(FILES, (self.cert, self.key, self.ca), strict=True):
            if not path:
                raise ConfigError(f"{option} is missing: --tls-cert, --tls-key and --tls-ca go together")
        if self.client_auth not in CLIENT_AUTHS:
            raise ConfigError(
                f"--client-auth must be none, optional or required, not {self.client_auth!r}"
            )
        if self.peers not in PEERS:
            raise ConfigError(f"[tls] peers must be plain, prefer or required, not {self.peers!r}")
        for name in ("listen", "store_listen", "gateway_listen", "etcd_listen", "broker_listen"):
            if address := getattr(self, name):
                with within(f"[tls] {name}"):
                    parse_address(address)


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """The table `[admin]`."""

    listen: str
    """HOST:PORT of the operators' port."""
    insecure: bool = False
    """Allow access from other machines without TLS."""

    def __post_init__(self) -> None:
        with within("--admin"):
            parse_address(self.listen)


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
            if not getattr(self, name) >= least:  # NaN is neither
                raise ConfigError(f"[kv] {name} must be at least {least}, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The table `[kafka]`."""

    listen: str
    """HOST:PORT of this member's port for clients of Kafka."""
    servers: str = ""
    """Where clients reach the port of each member, `n0=HOST:PORT,...`; empty: on the host of each
    member, with the port of `listen`."""
    group: str = ""
    """Whose log has the topics; empty: the first one of the process."""
    auto_create_topics: bool = True
    """A topic that a client asks for is made, if it is not there."""
    partitions: int = 1
    """Of a topic that is made without a number of them."""
    offsets_retention_minutes: int = 7 * 24 * 60
    """So long the committed offsets of a consumer group without members are kept."""

    def __post_init__(self) -> None:
        with within("--kafka"):
            parse_address(self.listen)
        if self.servers:
            try:
                parse_members(self.servers)
            except ConfigError as error:
                raise ConfigError(str(error).replace("--members", "--kafka-servers")) from None
        if not 1 <= self.partitions <= 10_000:
            raise ConfigError(f"[kafka] partitions must be 1 to 10000, not {self.partitions}")
        if self.offsets_retention_minutes < 1:
            raise ConfigError(
                "[kafka] offsets_retention_minutes must be 1 or more, not"
                f" {self.offsets_retention_minutes}"
            )
