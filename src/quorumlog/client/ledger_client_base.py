"""What both clients share: how they are made, and what a stream of appends tells of itself."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence

from quorumlog.client.arguments import checked_producer_id, milliseconds, parse_servers
from quorumlog.client.events import Callback, Events
from quorumlog.client.protocol.append_window import StreamProgress
from quorumlog.client.protocol.client_protocol import ClientProtocol
from quorumlog.client.reading.read_choice import ReadDefaults
from quorumlog.client.result_streams import Appending
from quorumlog.client.verbs import Verbs
from quorumlog.config import DEFAULT_GROUP, check_name
from quorumlog.errors import ConfigError
from quorumlog.net.rpc.timings import Timings

DEFAULT_TIMEOUT_MS = 30_000


class LedgerClientBase:
    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        group: str = DEFAULT_GROUP,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        timings: Timings | None = None,
        producer_id: str | None = None,
        idempotent: bool = False,
        on_leader_change: Callback | None = None,
        on_reconnect: Callback | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
        read_from: str | None = None,
    ) -> None:
        """Connects with the first call. Raises ConfigError for a list that cannot be read."""
        given_ms = milliseconds(timeout_ms)
        if given_ms is None or given_ms <= 0:
            raise ConfigError(f"timeout_ms must be positive, in milliseconds, not {timeout_ms!r}")
        if not isinstance(group, str):
            raise ConfigError(f"group must be the name of a replicated log, not {group!r}")
        check_name("group", group)
        self.servers = parse_servers(servers)
        self.group = "".join(group)  # a plain str, which is all that a message can carry
        producer = "" if idempotent else None
        if producer_id is not None:
            producer = checked_producer_id(producer_id)
        self._protocol = ClientProtocol(
            self.servers, group=self.group, random=random.Random(), timings=timings, producer=producer
        )
        defaults = ReadDefaults(read_consistency, max_staleness_ms, read_from)
        self._verbs = Verbs(self._protocol, given_ms, defaults)
        self._open(Events(self.group, on_leader_change, on_reconnect))

    def __repr__(self) -> str:
        leader = self._protocol.view.leader
        state = "no leader known yet" if leader is None else f"leader {leader.address}"
        if self._protocol.is_closed:
            state = "closed"
        name, servers = type(self).__name__, ",".join(self.servers)
        return f"<{name} of group {self.group!r} at {servers}: {state}>"

    def _described(self, verb: str, first_index: object, stop_index: object) -> str:
        """Of what reads, which nothing is known of but what was asked for."""
        stop = "" if stop_index is None else f" to {stop_index}"
        return f"{verb} from {first_index}{stop}, group {self.group!r}"

    @property
    def timeout_ms(self) -> float:
        """Of a call that is given none."""
        return self._verbs.timeout_ms

    def add_servers(self, servers: str | Sequence[str]) -> None:
        """Members are to be found there, too: what one client has learned of the members, another one
        need not find out from a list that may be old. What was added before is forgotten. Raises
        ConfigError for what cannot be read."""
        self._protocol.view.add_servers(parse_servers(servers))

    @property
    def known_servers(self) -> list[str]:
        """Those that were given or added, and the members that they have told of so far."""
        return self._protocol.view.known_addresses()

    @property
    def producer_id(self) -> str | None:
        """The one that was given, or drawn for an idempotent client; None: neither."""
        return self._protocol.producer

    def _open(self, events: Events) -> None:
        """Makes what carries the requests."""
        raise NotImplementedError


class AppendStreamBase:
    def __init__(self, appending: Appending) -> None:
        self._appending = appending
        self._is_begun = False

    @property
    def progress(self) -> StreamProgress:
        return self._appending.progress

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.progress.described}>"

    def __del__(self) -> None:
        if not self._is_begun:
            warnings.warn(
                "a stream of appends was never iterated, so nothing of it was sent:"
                " iterate its receipts",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
