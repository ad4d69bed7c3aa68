"""MasterRoute: which of several brokers is asked. The one that says that it is master; a slave names
it."""

from __future__ import annotations

from quorumlog.broker.client.broker_verbs import answer_of, frame_of
from quorumlog.broker.errors import InSyncReplicasNotEnough, StaleEpoch
from quorumlog.broker.wire import AnyBrokerMessage, RoleRequest, RoleResponse
from quorumlog.config import parse_address
from quorumlog.entry_header import Buffer
from quorumlog.errors import ConfigError, LedgerError, NotLeader, Unreachable, WrongPort
from quorumlog.net.frame import Frame

RETRY_S = 0.02
PROBE_S = 0.3
"""A broker that owes an answer for so long may have lost its role without being able to say so: the
others are asked."""
SLAVE = "SLAVE"


class MasterRoute:
    def __init__(self, servers: str, *, must_follow: bool = False) -> None:
        """`servers`: HOST:PORT, or several with commas between. `must_follow`: the master is looked for,
        although one alone is named. Raises ConfigError."""
        self.addresses = [part.strip() for part in servers.split(",") if part.strip()]
        if not self.addresses:
            raise ConfigError("the address of the broker is empty; write HOST:PORT")
        for address in self.addresses:
            parse_address(address)
        self.follows = must_follow or len(self.addresses) > 1
        """The master is looked for."""
        self._place = 0
        self._beside = ""
        self._wrong: dict[str, WrongPort] = {}
        """By address: what listens there is no broker."""
        self.term = -1
        """In which the master led that was found last."""

    @property
    def address(self) -> str:
        """To be asked next."""
        return self._beside or self.addresses[self._place]

    @property
    def others(self) -> list[str]:
        return [each for each in self.addresses if each != self.address]

    def failed(self, error: LedgerError | None = None) -> None:
        """It does not answer, or is no master and knows none. Raises WrongPort: none of all is a
        broker."""
        self._wrong.pop(self.address, None)
        if isinstance(error, WrongPort):
            self._wrong[self.address] = error
            if self._wrong.keys() >= {*self.addresses}:
                raise error
        if self._beside:
            self._beside = ""
        else:
            self._place = (self._place + 1) % len(self.addresses)

    def unreachable(self, error: LedgerError) -> Unreachable:
        """What is told in the end of who was tried last, and of whoever will never answer."""
        others = [str(each) for each in self._wrong.values() if each is not error]
        return Unreachable("; ".join([str(error), *others]))

    def turn(self, master: str) -> None:
        """To the one that is named; empty: to the next."""
        if not master or master == self.address:
            self.failed()
        elif master in self.addresses:
            self._beside, self._place = "", self.addresses.index(master)
        else:
            self._beside = master

    def is_master(self, frame: Frame) -> bool:
        """The answer to `role_request` of the broker that was asked; if not, the next one is."""
        message = answer_of(frame)
        if not isinstance(message, RoleResponse):
            raise Unreachable(
                "the broker does not say its role: name a broker of an older release alone"
            )
        known = [address for _, _, address in message.brokers if address]
        self.addresses += [address for address in known if address not in self.addresses]
        if message.role != SLAVE:
            self.term = message.term
            return True
        self.turn(message.master)
        return False

    def newer_master(self, asked: str, message: AnyBrokerMessage, beside: str) -> str:
        """The address of a newer master than `beside`, where `asked` says this of its role; or empty."""
        if not isinstance(message, RoleResponse) or message.term <= self.term:
            return ""
        master = message.master if message.role == SLAVE else asked
        return "" if master == beside else master

    def asks_others(self, error: LedgerError) -> bool:
        """A master without its slaves refuses, which may follow another one since it was away."""
        return self.follows and isinstance(error, InSyncReplicasNotEnough)

    def pause_s(self, error: LedgerError) -> float | None:
        """What was asked for was refused: after so long it is asked for again, perhaps of another
        broker. None: it is not."""
        # A master that was replaced unheard refuses with StaleEpoch: another one takes it.
        if not self.follows or not (error.retriable or isinstance(error, StaleEpoch)):
            return None
        if isinstance(error, NotLeader):
            self.turn(error.leader_address or "")
        return max(RETRY_S, error.retry_after_ms / 1000)


def role_request(request_id: int) -> list[Buffer]:
    return frame_of(RoleRequest(request_id=request_id, watches=True))
