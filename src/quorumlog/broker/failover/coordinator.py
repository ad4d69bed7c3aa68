"""Coordinator: the record that the brokers of a group share, changed by compare-and-set under a lease.

    RECORD   the epoch, its master and the in-sync set; stays
    HOLDER   the lease of whoever leads; ends with it

Three are in `quorumlog.coordinators`. `tests/broker/failover/coordinator_contract.py` says what another
one has to keep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from quorumlog.broker.epochs.epoch_history import Peer
from quorumlog.errors import ProtocolViolation
from quorumlog.wire.field_names import UNREADABLE

NO_HOLDER = 0


class Standing(NamedTuple):
    """What the coordinator holds at one moment."""

    revision: int
    """Of the record: a higher one after each change. 0: there is no record."""
    record: bytes | None
    holder: int
    """The lease that holds the leadership; `NO_HOLDER`: none does."""


class Granted(NamedTuple):
    lease: int
    ttl_ms: int
    """As granted, which may be more than was asked for."""


class Coordinator(Protocol):
    """Every call raises LedgerError where it is not known what became of it; a late request may still be
    carried out afterwards."""

    @property
    def relays_renewals(self) -> bool:
        """An answered renewal says only that those heard of by a tenth of a lease before it have reached
        whoever ends leases."""

    async def read(self) -> Standing:
        """Record and holder of one moment, which is not long ago."""

    async def grant(self, ttl_ms: int) -> Granted:
        """A lease. It runs from when the coordinator granted it."""

    async def put(self, revision: int, record: bytes, lease: int, *, takes: bool) -> int | None:
        """Replace the record of that revision as its holder; `takes`: where nobody is, and become it.
        The new revision. None: nothing has changed, because it was not so or the lease has ended."""

    async def renew(self, lease: int) -> int:
        """Its full time again, in milliseconds, from when the coordinator did it; 0: it has ended."""

    async def revoke(self, lease: int) -> None:
        """It ends, and with it the holder. No error if it has ended."""

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` soon after each change of record or holder, until it is cancelled or cannot go
        on. To be called again then; what happened between may not be told."""

    async def close(self) -> None: ...


class ElectionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """As it lies at the coordinator: JSON, for people to read."""

    version: int = 1
    epoch: int
    master: Peer
    in_sync: dict[str, str]
    """Directory ids of the in-sync set, by broker: a store that was wiped is no member."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self, order="sorted")

    @classmethod
    def decode(cls, data: bytes) -> ElectionRecord:
        """Raises ProtocolViolation: of a newer release, or not ours."""
        try:
            record = msgspec.json.decode(data, type=cls)
        except UNREADABLE as error:
            raise ProtocolViolation(f"the coordinator's record is none of ours: {error}") from None
        if record.version != 1:
            raise ProtocolViolation(f"the coordinator's record is of version {record.version}, not 1")
        return record
