"""Handshakes: bounds the TLS handshakes that a loop has under way; others queue.

Each costs the loop a millisecond or two, and a thousand clients that reconnect together would hold it
longer than members wait for a heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable

AT_ONCE = 20
OF_OTHERS = AT_ONCE // 2
"""Of those that are under way: from source addresses that are no member's."""
MOST_WAITING = 1024


class Handshakes:
    def __init__(self) -> None:
        self._members: dict[object, None] = {}
        """Under way."""
        self._others: dict[object, None] = {}
        self._waiting_members: dict[object, Callable[[], None]] = {}
        self._waiting_others: dict[object, Callable[[], None]] = {}

    @property
    def under_way(self) -> int:
        return len(self._members) + len(self._others)

    @property
    def waiting(self) -> int:
        return len(self._waiting_members) + len(self._waiting_others)

    def come(self, owner: object, begin: Callable[[], None], *, is_member: bool) -> bool:
        """Calls `begin` once its turn has come, which may be now. False: too many wait, and it never
        will."""
        if self.waiting >= MOST_WAITING:
            return False
        (self._waiting_members if is_member else self._waiting_others)[owner] = begin
        self._go_on()
        return True

    def leave(self, owner: object) -> None:
        """Its handshake has ended, or it does not wait any more."""
        for each in (self._members, self._others, self._waiting_members, self._waiting_others):
            each.pop(owner, None)
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting_members and self.under_way < AT_ONCE:
            _begin_first(self._waiting_members, self._members)
        while self._waiting_others and self.under_way < AT_ONCE and len(self._others) < OF_OTHERS:
            _begin_first(self._waiting_others, self._others)


def _begin_first(waiting: dict[object, Callable[[], None]], under_way: dict[object, None]) -> None:
    owner = next(iter(waiting))
    under_way[owner] = None
    waiting.pop(owner)()
