"""ReadChoice: `read_consistency`, `max_staleness_ms` and `from_member` of a read, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypedDict

from quorumlog.client.arguments import milliseconds
from quorumlog.client.protocol.client_requests import read_target
from quorumlog.errors import BadRequest, ConfigError
from quorumlog.net.rpc.calls import ANY_MEMBER, LEADER, RequestTarget, TargetKind
from quorumlog.wire.read_promise import COMMITTED, CONSISTENCIES, READ_INDEX, ReadPromise

LEADER_NAME = "leader"


@dataclass(frozen=True, slots=True)
class Freshness:
    """How fresh an answer was: everything that anybody had acknowledged `age_ms` before it left the
    member is at or below `index`."""

    index: int
    """The member's committed index."""
    age_ms: float | None
    """None: the member did not know."""
    member_id: str
    """Empty: it has not said who it is."""


class ReadChoice(NamedTuple):
    target: RequestTarget = LEADER
    consistency: str = ""
    """Empty: none was named, so the leader answers as it is, and ends of the log are confirmed."""
    max_staleness_ms: float = -1.0

    @property
    def member(self) -> str | None:
        """For a question that is only for who has the entries."""
        return self.target.name if self.target.kind is TargetKind.MEMBER else None

    def promise(self, at_least_index: int) -> ReadPromise | None:
        """`at_least_index`: of what the client has appended, or was told of."""
        if not self.consistency:
            return None
        if self.consistency == READ_INDEX:
            return ReadPromise(consistency=READ_INDEX)
        return ReadPromise(max_staleness_ms=self.max_staleness_ms, at_least_index=at_least_index)


Source = str | ReadChoice | None
"""A choice, or `from_member` alone."""


class ReadDefaults:
    """Of one client, for reads that do not say."""

    def __init__(
        self, read_consistency: str | None, max_staleness_ms: float | None, read_from: str | None
    ) -> None:
        """Raises ConfigError."""
        self._given = ReadChoice()
        try:
            self._given = self.choice(read_from, read_consistency, max_staleness_ms)
        except BadRequest as error:
            raise ConfigError(str(error).replace("from_member", "read_from")) from None
        self._read_from = read_from

    def choice(
        self,
        from_member: str | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
    ) -> ReadChoice:
        """Raises BadRequest."""
        given = self._given
        consistency, staleness_ms = given.consistency, given.max_staleness_ms
        if read_consistency is not None:
            if read_consistency not in CONSISTENCIES:
                known = " or ".join(CONSISTENCIES)
                raise BadRequest(f"read_consistency must be {known}, not {read_consistency!r}")
            consistency = read_consistency
            staleness_ms = staleness_ms if consistency == COMMITTED else -1.0
        if max_staleness_ms is not None:
            checked_ms = milliseconds(max_staleness_ms)
            if checked_ms is None or checked_ms < 0:
                raise BadRequest(
                    f"max_staleness_ms must be a number of milliseconds, not {max_staleness_ms!r}"
                )
            consistency, staleness_ms = consistency or COMMITTED, checked_ms
            if consistency == READ_INDEX:
                raise BadRequest(
                    "max_staleness_ms goes with read_consistency committed only: the other one misses"
                    " nothing"
                )
        return ReadChoice(self._target(from_member, consistency), consistency, staleness_ms)

    def _target(self, from_member: str | None, consistency: str) -> RequestTarget:
        if from_member == LEADER_NAME:
            return LEADER
        if from_member is not None:
            return read_target(from_member)
        if self._given.consistency or self._given.target is not LEADER:
            return self._given.target
        return ANY_MEMBER if consistency else LEADER

    def of(self, source: Source) -> ReadChoice:
        return source if isinstance(source, ReadChoice) else self.choice(source)


# Options that reads share, by name: `LedgerClient.read` and `LedgerClient.tail` say what each means.


class ReadOptions(TypedDict, total=False):
    limit: int | None
    from_member: str | None
    read_consistency: str | None
    max_staleness_ms: float | None


class TailOptions(TypedDict, total=False):
    wait: bool
    timeout_ms: int | None
    from_member: str | None
    read_consistency: str | None
    max_staleness_ms: float | None
