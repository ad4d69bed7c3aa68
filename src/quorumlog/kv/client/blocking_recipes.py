"""BlockingRecipes: `KeyValueClient` beyond the operations of the asynchronous client: access like a
dict, leases kept alive, locks in `with` blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, overload

from quorumlog.kv.client.async_store import AsyncKeyValueClient
from quorumlog.kv.client.leasing import Election, Lease, Lock
from quorumlog.kv.client.values import BytesLike, Item, Key, V, key_of
from quorumlog.kv.old_spellings import takes_seconds
from quorumlog.kv.requests import Range
from quorumlog.net.loop_thread import ClientShell


class BlockingRecipes(ClientShell[AsyncKeyValueClient[V]], Generic[V]):
    def __getitem__(self, key: Key) -> V:
        item = self._thread.run(self._it.get(key))
        if item is None:
            raise KeyError(key)
        return item.value

    @overload
    def __setitem__(self, key: Key, value: V) -> None: ...

    @overload
    def __setitem__(self: BlockingRecipes[bytes], key: Key, value: BytesLike) -> None: ...

    def __setitem__(self, key: Key, value: Any) -> None:
        self._thread.run(self._it.put(key, value))

    def __delitem__(self, key: Key) -> None:
        if not self._thread.run(self._it.delete(key)).deleted:
            raise KeyError(key)

    def __contains__(self, key: Key) -> bool:
        request = Range(key_of(key), count_only=True)
        return self._thread.run(self._it.read_range(request)).total > 0

    def __iter__(self) -> Iterator[bytes]:
        for item in self._each(self._it.scan(keys_only=True)):
            yield item.key

    def __len__(self) -> int:
        return self._thread.run(self._it.prefix("", count_only=True)).total

    def grant(self, ttl_s: float, *, lease_id: int = 0, keeps_alive: bool = True) -> Lease:
        """As `AsyncKeyValueClient.grant`; kept alive, unless disabled, until this client is closed or
        the lease revoked."""

        client = self._it

        async def granted() -> Lease:
            lease = await client.grant(ttl_s, lease_id=lease_id)
            if keeps_alive:
                lease.keep_alive()
            return lease

        return self._thread.run(granted())

    def _handle(self, lease: Lease | int) -> Lease:
        """A lease that another client was granted is known by its id: it belongs to that one's loop."""
        if not isinstance(lease, Lease):
            return self._it.lease(lease)
        return lease if lease.is_of(self._it.asking) else self._it.lease(lease.id)

    def revoke(self, lease: Lease | int) -> int:
        """End a lease, given as such or by id; returns how many keys were deleted with it. Raises
        LeaseNotFound, OutcomeUnknown."""
        return self._thread.run(self._handle(lease).revoke())

    def keep_alive(self, lease: Lease | int) -> int:
        """Send one keep-alive; returns the TTL in milliseconds. Raises LeaseNotFound."""
        return self._thread.run(self._handle(lease).keep_alive_once())

    def time_to_live(self, lease: Lease | int) -> tuple[int, int, list[bytes]]:
        """See `Lease.time_to_live`."""
        return self._thread.run(self._handle(lease).time_to_live())

    @takes_seconds
    @contextmanager
    def lock(self, name: Key, *, ttl_s: float = 10.0, timeout_ms: float | None = None) -> Iterator[Lock]:
        """`with kv.lock("name") as lock: ... lock.token`, on a lease of `ttl_s` seconds. Waits while
        others hold it, for `timeout_ms` at most if given, then raises TimeoutError. Raises LockLost
        if its lease ends meanwhile."""
        lock = self._it.lock(name, ttl_s=ttl_s)
        try:  # an interrupt may come as it is given
            self._thread.run(lock.acquire(timeout_ms=timeout_ms))
            yield lock
        finally:
            self._thread.run(lock.release())

    @overload
    def leadership(
        self, name: Key, value: V, *, ttl_s: float = 10.0
    ) -> AbstractContextManager[Election[V]]: ...

    @overload
    def leadership(
        self: BlockingRecipes[bytes], name: Key, value: BytesLike, *, ttl_s: float = 10.0
    ) -> AbstractContextManager[Election[bytes]]: ...

    @contextmanager
    def leadership(self, name: Key, value: Any, *, ttl_s: float = 10.0) -> Iterator[Election[Any]]:
        """`with kv.leadership("name", "me") as election` waits until this client leads, on a lease of
        `ttl_s` seconds, with `value` for clients that read the `leader`; `election.check()` raises
        LockLost once it may have lost leadership."""
        election = self._it.election(name, ttl_s=ttl_s)
        try:
            self._thread.run(election.campaign(value))
            yield election
        finally:
            self._thread.run(election.resign())

    def leader(self, name: Key) -> Item[V | None] | None:
        """The leader of an election; see `Election.leader`."""
        return self._thread.run(self._it.election(name).leader())
