"""The admin port of a process."""

from __future__ import annotations

from dataclasses import dataclass

from quorumlog.config.options import parse_address
from quorumlog.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """The table `[admin]`."""

    listen: str
    """HOST:PORT of the operators' port."""
    insecure: bool = False
    """Allow access from other machines without TLS."""

    def __post_init__(self) -> None:
        try:
            parse_address(self.listen)
        except ConfigError as error:
            raise ConfigError(f"--admin: {error}") from None
