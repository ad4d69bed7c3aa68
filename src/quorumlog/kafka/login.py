"""Login: authentication of Kafka's clients by SASL: SCRAM-SHA-256, and PLAIN on connections with TLS."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from kio.schema.errors import ErrorCode

from quorumlog.client_guard import guarded
from quorumlog.errors import ConfigError, LedgerError, NotAuthenticated, Overloaded
from quorumlog.kafka.service import KafkaCall
from quorumlog.net.access import WRONG, WRONG_PAUSE_S, Access, Challenging
from quorumlog.net.connection import Connection
from quorumlog.net.credentials import MECHANISM, ClientUser, Proof
from quorumlog.net.hello import Challenge, Hello
from quorumlog.net.tls import Tls

PLAIN = "PLAIN"
AGAIN = "wait for the answer: one password at a time is checked"
NO_USERS = "this server has no users: leave SASL out"
_NAME = re.compile(rb"[^,]*,[^,]*,n=([^,]*),")
"""The name in a client's first SCRAM message; a user's name has no characters that need escaping."""

MOST_PROOFS, MOST_PROOFS_OF_ADDRESS = 16, 8
"""Most passwords that are checked, or wait for the check, at a time."""


class Proofs:
    """Password checks of one port. They take milliseconds each and run on one thread, not on the
    loop."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "quorumlog-kafka-logins")
        self._of_host = Counter[str]()
        self._wrong = Counter[str]()
        """Failed attempts whose answer is delayed, by address."""

    def begin(self, host: str) -> bool:
        """False: too many checks are under way."""
        if self.under_way >= MOST_PROOFS or self._is_full(host):
            return False
        self._of_host[host] += 1
        return True

    def _is_full(self, host: str) -> bool:
        return self._of_host[host] + self._wrong[host] >= MOST_PROOFS_OF_ADDRESS

    @property
    def under_way(self) -> int:
        return self._of_host.total()

    def end(self, host: str) -> None:
        self._of_host -= Counter([host])

    def wrong(self, host: str, answer: Callable[[], None]) -> bool:
        """`answer` is called after a delay; until then the attempt counts for its address. False: that
        has too many already; they may be malformed, so that no check began."""
        if self._is_full(host):
            return False
        self._wrong[host] += 1

        def over() -> None:
            self._wrong -= Counter([host])
            answer()

        asyncio.get_running_loop().call_later(WRONG_PAUSE_S, over)
        return True


class Login:
    """The login of one connection. A certificate may have authenticated it before."""

    def __init__(
        self,
        access: Access,
        connection: Connection,
        tls: Tls | None,
        proofs: Proofs,
        passed: Callable[[], None],
    ) -> None:
        """`passed` is called when the connection has a user, or another one than before."""
        self._access = access
        self._connection = connection
        self._tls = tls
        self._proofs = proofs
        self._host = connection.peer_host
        """Kept, since a lost connection does not know it."""
        self.is_proving = False
        """A password is checked, or was wrong and its answer is delayed."""
        self._has_passed = passed
        self._mechanism = ""
        self._asking: Challenging | None = None
        for _ in self._greet(""):
            raise AssertionError("a client without a name is asked for a proof")

    def _greet(self, name: str) -> Challenging:
        return self._access.greet(self._connection, Hello(role="client", user=name), self._tls)

    def handshake(self, call: KafkaCall) -> None:
        if self.is_proving:
            self._fail(call, AGAIN, ErrorCode.illegal_sasl_state)
            return
        mechanisms = [MECHANISM, PLAIN] if self._connection.is_encrypted else [MECHANISM]
        wanted = call.fields.mechanism
        self._mechanism = wanted if wanted in mechanisms else ""
        self._asking = None
        code = ErrorCode.none if self._mechanism else ErrorCode.unsupported_sasl_mechanism
        call.answer({"error_code": code, "mechanisms": mechanisms}, code)

    def authenticate(self, call: KafkaCall) -> None:
        said: bytes = call.fields.auth_bytes
        if not self._mechanism or self.is_proving:
            why = AGAIN if self.is_proving else "send SaslHandshake first"
            self._fail(call, why, ErrorCode.illegal_sasl_state)
            return
        try:
            if self._mechanism == PLAIN:
                self._plain(call, said)
            else:
                self._scram(call, said)
        except NotAuthenticated as refusal:
            self._fail_later(call, str(refusal))
        except LedgerError:
            self._connection.close()  # who the users are is not known: it comes again

    def _fail(
        self, call: KafkaCall, why: str, code: ErrorCode = ErrorCode.sasl_authentication_failed
    ) -> None:
        self._mechanism, self._asking = "", None
        call.answer({"error_code": code, "error_message": why}, code)
        self._connection.close()

    def _fail_later(self, call: KafkaCall, why: str) -> None:
        """A wrong password: delay the answer, which bounds the rate of attempts."""
        self.is_proving = True
        fail: Callable[[], None] = guarded(lambda: self._fail(call, why), call.client)
        if not self._proofs.wrong(self._host, fail):
            self._connection.close()

    def _passed(self, call: KafkaCall, data: bytes) -> None:
        """Requests are checked by this user's rights from now on."""
        self._mechanism, self._asking = "", None
        quotas = self._access.quotas
        if self._connection.is_counted:
            quotas.leave(self._connection)
            over = quotas.refusal_of_connection(self._connection)
            if over is not None:
                self._fail(call, str(over))
                return
            quotas.enter(self._connection)
        self._has_passed()
        call.answer({"auth_bytes": data})

    # ---------------------------------------------------------------- SCRAM

    def _scram(self, call: KafkaCall, said: bytes) -> None:
        """Raises LedgerError."""
        if self._asking is None:
            found = _NAME.match(said)
            if found is None:
                raise NotAuthenticated(WRONG)
            self._asking = self._greet(found[1].decode("utf-8", "replace") or "?")
            if next(self._asking, None) is None:
                self._fail(call, NO_USERS)
                return
            call.answer({"auth_bytes": self._asking.send(said).data})
            return
        if not self._proofs.begin(self._host):
            raise _too_many()
        try:
            data = self._asking.send(said).data
        finally:
            self._proofs.end(self._host)
        try:
            self._asking.send(b"")
        except StopIteration:
            self._passed(call, data)
        else:
            raise AssertionError("a client that has proved its password is asked for more")

    # ---------------------------------------------------------------- PLAIN

    def _plain(self, call: KafkaCall, said: bytes) -> None:
        """Check the password by computing the SCRAM proof that a client with it would send. Raises
        LedgerError."""
        try:
            _, name, password = said.decode().split("\0")
            proof = Proof(ClientUser(name, password))
        except (ValueError, ConfigError):
            raise NotAuthenticated(WRONG) from None
        asking = self._greet(name)
        challenge = next(asking, None)
        if challenge is None:
            self._fail(call, NO_USERS)
            return
        if not self._proofs.begin(self._host):
            raise _too_many()
        self.is_proving = True
        self._answer_plain(call, proof, asking, challenge, partial(self._proofs.end, self._host))

    def _answer_plain(
        self,
        call: KafkaCall,
        proof: Proof,
        asking: Challenging,
        challenge: Challenge,
        over: Callable[[], None],
    ) -> None:
        """Compute the proof on a thread, which takes milliseconds; `over` is called at the end."""
        loop = asyncio.get_running_loop()

        def answered(future: asyncio.Future[bytes]) -> None:
            if future.cancelled():  # the port is closed
                return
            try:
                following = asking.send(future.result())
            except StopIteration:
                self.is_proving = False
                over()
                if self._connection.closed:  # it was lost meanwhile, and is counted no more
                    self._access.lost(self._connection)
                    return
                self._passed(call, b"")
            except NotAuthenticated as refusal:
                over()
                self._fail_later(call, str(refusal))
            except LedgerError:
                over()
                self._connection.close()
            else:
                self._answer_plain(call, proof, asking, following, over)

        future = loop.run_in_executor(self._proofs.thread, proof.answer, challenge)
        future.add_done_callback(answered)


def _too_many() -> Overloaded:
    return Overloaded("too many passwords are being checked, or were wrong a moment ago")
