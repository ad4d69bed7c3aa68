"""UsersOfServer: those of one group of a process, for all its ports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from quorumlog.config import UsersOptions
from quorumlog.log_state.users import NO_USERS, Users
from quorumlog.net.access import Access
from quorumlog.server.node_driver import NodeDriver

DEFAULTS = UsersOptions()
LOOK_EVERY_S = 0.1
LOOK_AGAIN_S = 0.02
"""While they are not known."""
LOOK_FOR_FIRST_S = 0.4
"""While there are none. Ten times a second would be half of what an idle member does."""
HEARTBEATS = 3
"""Least age allowed for users, in heartbeats."""
PLAIN_USERS = (
    "there are users, and members may be reached without TLS: any client that reaches this port can"
    " claim to be a member, and has all rights then (docs/security.md)"
)


class Timer(Protocol):
    def cancel(self) -> None: ...


class UsersOfServer:
    def __init__(
        self,
        group: str,
        drivers: Callable[[], Mapping[str, NodeDriver]],
        *,
        is_plain: bool,
        options: UsersOptions = DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        """`group`: where they live. `drivers`: by group. `is_plain`: members need not use TLS. `clock`,
        `later`: of the member's turns, in seconds; by default those of the running loop."""
        self.group = group
        self.options = options
        self.access = Access()
        self.access.clock = clock
        self._drivers = drivers
        self._is_plain = is_plain
        self._clock = clock
        self._later = later
        self._timer: Timer | None = None
        self._newest: Users | None = None
        self.hides_status = False
        """There may be users: any other client learns the members' addresses, and no more."""

    def look(self) -> None:
        """Now; and again and again until `close`."""
        if self._timer is not None:
            self._timer.cancel()
        drivers = self._drivers()
        driver = drivers.get(self.group)
        found: Users | str = f"the log of group {self.group} is opened anew"
        if driver is not None and not driver.stopped:
            known = driver.node.users
            others = [each for group, each in drivers.items() if group != self.group]
            has_heard = any(each.node.users.has_heard for each in others if not each.stopped)
            may_be_old_ms = self._may_be_old_ms(driver)
            found = known.look(self._clock() * 1000, may_be_old_ms=may_be_old_ms, for_others=has_heard)
            self.hides_status = driver.node.directory.has_users
            self.access.good_until_s = known.good_until_ms(may_be_old_ms) / 1000
        pause_s = LOOK_AGAIN_S
        if not isinstance(found, str):
            pause_s = LOOK_EVERY_S if found.is_on else LOOK_FOR_FIRST_S
        later = self._later or asyncio.get_running_loop().call_later
        self._timer = later(pause_s, self.look)
        if isinstance(found, str):
            self.access.learn(None, found)
        else:
            self._newest = found
            self.access.learn(found)

    def _may_be_old_ms(self, driver: NodeDriver) -> float:
        """Heartbeats alone tell that they are not, and one may be late."""
        heartbeats_ms = HEARTBEATS * driver.config.consensus.heartbeat_interval_ms
        return max(self.options.may_be_old_ms, heartbeats_ms)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def newest(self) -> Users | None:
        """The last known users, for status requests. None: users exist, but this process has never known
        them."""
        return self._newest or (None if self.hides_status else NO_USERS)

    @property
    def words(self) -> str:
        """For `status`."""
        users = self.access.users
        return "unknown" if users is None else "on" if users.is_on else "off"

    @property
    def problems(self) -> tuple[str, ...]:
        users = self.access.users
        return (PLAIN_USERS,) if self._is_plain and users is not None and users.is_on else ()
