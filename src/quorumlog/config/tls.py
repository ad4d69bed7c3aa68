"""TLS options of a process, and which peers must present certificates."""

from __future__ import annotations

from dataclasses import dataclass, fields

from quorumlog.config.options import parse_address
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
                try:
                    parse_address(address)
                except ConfigError as error:
                    raise ConfigError(f"[tls] {name}: {error}") from None
