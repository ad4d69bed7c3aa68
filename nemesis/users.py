"""Users of classic brokers while those are killed, stopped, cut off and switched.

One with rights sends and pulls. One without any, and one that is no user, are refused by every broker at
every moment. A right that is granted and revoked again and again is gone at every broker within the time
for which a broker may go by users that are old.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from quorumlog.broker import BrokerAdmin, Message, connect
from quorumlog.errors import NO_RIGHT, BadRequest, LedgerError
from quorumlog.log_state.users import Kind, Right, RoleGrant, UserOperation, UserOrder
from quorumlog.net.credentials import ClientUser, clients_are, verifier_for

PASSWORD = "sesame"
ADMIN, APP, GUEST, SOMETIMES, NOBODY = (
    ClientUser(name, PASSWORD) for name in ("admin", "app", "guest", "sometimes", "nobody")
)
MAY_BE_OLD_MS = 3_000
OPTIONS = ("--option", "ha_send_heartbeat_interval=300")
BOUND_S = 1.1 * MAY_BE_OLD_MS / 1000 + 1.0
"""Machines' clocks differ, and a change is in force a second later."""
TIMEOUT_MS = 1_500
ASK_EVERY_S = 0.1
SETTLE_S = 60.0


def options_of(folder: Path) -> tuple[str, ...]:
    """Of `quorumlog broker serve`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "users.toml"
    file.write_text(f"[users]\nmay_be_old_ms = {MAY_BE_OLD_MS}\n")
    return ("--config", str(file), *OPTIONS)


class Users:
    """`with Users(...) as users`, once a master acknowledges; clients that name no user are the
    administrator from then on."""

    def __init__(self, addresses: Mapping[str, str], topic: str) -> None:
        """`addresses`: by the broker's id."""
        self._addresses = dict(addresses)
        self._topic = topic
        self._grant = RoleGrant(Right.READ, Kind.TOPIC, topic.encode(), is_exact=True)
        self.counts = Counter[str]()
        self.violations: list[str] = []
        self._stop = threading.Event()
        self._revoked_s: float | None = None
        """When that was acknowledged; None: it is granted, or may be."""
        works: list[Callable[[], None]] = [self._grant_and_revoke]
        for name in self._addresses:
            works += [partial(self._enter, name), partial(self._pull, name)]
        self._threads = [threading.Thread(target=work) for work in works]
        self._stack = ExitStack()

    def __enter__(self) -> Users:
        self._stack.enter_context(clients_are(ADMIN))
        add = UserOperation.ADD_USER
        write = RoleGrant(Right.WRITE, Kind.TOPIC, self._topic.encode(), is_exact=True)
        verifier = verifier_for(PASSWORD)
        for order in (
            UserOrder(add, ADMIN.name, ("admin",), verifier=verifier),
            UserOrder(UserOperation.ADD_ROLE, "app", grants=(self._grant, write)),
            UserOrder(UserOperation.ADD_ROLE, "sometimes", grants=(self._grant,)),
            UserOrder(add, APP.name, ("app",), verifier=verifier),
            UserOrder(add, SOMETIMES.name, ("sometimes",), verifier=verifier),
            UserOrder(add, GUEST.name, verifier=verifier),
        ):
            self._change(order)
        for name in self._addresses:
            self._until(partial(self._is_refused, name, GUEST), f"{name} knows its users")
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._stack.close()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        """Every broker lets in who has rights, and nobody else. Raises AssertionError."""
        for name in self._addresses:
            self._until(partial(self._is_let_in, name, APP), f"{name} lets in {APP.name}")
            for user in (GUEST, NOBODY):
                try:
                    with connect(self._addresses[name], user=user) as broker:
                        broker.pull(self._topic, 0, 0)
                except NO_RIGHT:
                    continue
                raise AssertionError(f"{name} lets in {user.name}")

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        return f"users: {counts}; violations: {self.violations or 'none'}"

    @staticmethod
    def _until(condition: Callable[[], bool], what: str) -> None:
        stop_at = time.monotonic() + SETTLE_S
        while not condition():
            assert time.monotonic() < stop_at, f"not within {SETTLE_S:.0f} s: {what}"
            time.sleep(ASK_EVERY_S)

    # ---------------------------------------------------------------- on threads

    def _change(self, order: UserOrder) -> None:
        """Until it is acknowledged, or the run is over: then by no means."""
        servers = ",".join(self._addresses.values())
        while not self._stop.is_set():
            with suppress(LedgerError):
                try:
                    with BrokerAdmin(servers, timeout_ms=TIMEOUT_MS) as admin:
                        admin.change_users(order)
                    return
                except BadRequest:
                    return  # an attempt whose outcome was unknown has done it
            self._stop.wait(ASK_EVERY_S)

    def _grant_and_revoke(self) -> None:
        while not self._stop.wait(BOUND_S):
            self._change(UserOrder(UserOperation.REVOKE, "sometimes", grants=(self._grant,)))
            if self._stop.wait(0):
                return
            self._revoked_s = time.monotonic()
            self.counts["revoked"] += 1
            self._stop.wait(2 * BOUND_S)
            self._revoked_s = None
            self._change(UserOrder(UserOperation.GRANT, "sometimes", grants=(self._grant,)))

    def _is_refused(self, name: str, user: ClientUser) -> bool:
        return not self._is_let_in(name, user)

    def _is_let_in(self, name: str, user: ClientUser) -> bool:
        try:
            with connect(self._addresses[name], user=user, timeout_ms=TIMEOUT_MS) as broker:
                broker.pull(self._topic, 0, 0)
        except LedgerError as error:
            self.counts[f"{user.name}: {type(error).__name__}"] += 1
            return False
        self.counts[f"{user.name}: let in"] += 1
        return True

    def _enter(self, name: str) -> None:
        while not self._stop.wait(ASK_EVERY_S):
            for user in (GUEST, NOBODY):
                if self._is_let_in(name, user):
                    self.violations.append(f"{name} lets {user.name} pull")
                with (
                    suppress(LedgerError),
                    connect(self._addresses[name], user=user, timeout_ms=TIMEOUT_MS) as broker,
                ):
                    broker.send(Message(self._topic, b"of nobody"), queue_id=0)
                    self.violations.append(f"{name} lets {user.name} send")
            self._is_let_in(name, APP)

    def _pull(self, name: str) -> None:
        """Over one connection, as long as it lasts."""
        while not self._stop.wait(ASK_EVERY_S):
            with (
                suppress(LedgerError),
                connect(self._addresses[name], user=SOMETIMES, timeout_ms=TIMEOUT_MS) as broker,
            ):
                while not self._stop.wait(ASK_EVERY_S):
                    revoked_s, sent_s = self._revoked_s, time.monotonic()
                    try:
                        broker.pull(self._topic, 0, 0)
                    except NO_RIGHT:
                        self.counts["sometimes: refused"] += 1
                        continue
                    self.counts["sometimes: let in"] += 1
                    is_late = revoked_s is not None and sent_s > revoked_s + BOUND_S
                    if is_late and self._revoked_s == revoked_s:
                        self.violations.append(f"{name} lets in {sent_s - (revoked_s or 0):.1f} s later")
