"""The port for clients of Kafka."""

from __future__ import annotations

from dataclasses import dataclass

from quorumlog.config.options import parse_address, parse_members
from quorumlog.errors import ConfigError


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
        try:
            parse_address(self.listen)
        except ConfigError as error:
            raise ConfigError(f"--kafka: {error}") from None
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
