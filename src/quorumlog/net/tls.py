"""Tls: the current certificates of a process, and the owner of a certificate.

A context is never changed: OpenSSL would continue serving the old certificate of another kind of key,
and believing a root that was withdrawn. A new one takes its place.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from quorumlog.config.tables import FILES, TlsOptions
from quorumlog.errors import ConfigError

log = logging.getLogger("quorumlog.server")

MEMBER, USER = "member", "user"
HTTP2 = "h2"
"""As a handshake names it (ALPN)."""
LOOK_EVERY_S = 1.0
"""Files are looked at so often at most, and only where somebody is to be greeted."""
EXPIRES_SOON_S = 14 * 86_400
"""So long before its end the own certificate is a problem."""
_URI = re.compile(r"quorumlog://([^/?#]+)/(member|user)/([^/?#]+)")

Certificate = Mapping[str, Any]
"""As `ssl.SSLObject.getpeercert` gives it; empty: none was shown."""


class Principal(NamedTuple):
    """The identity in a certificate."""

    cluster: str
    """NAME; empty where the certificate names a user by its CN alone."""
    kind: str
    name: str
    """Of a member its id."""

    def __str__(self) -> str:
        if not self.cluster:
            return f"the {self.kind} {self.name}"
        return f"quorumlog://{quote(self.cluster, safe='')}/{self.kind}/{quote(self.name, safe='')}"


def principal_of(certificate: Certificate | None) -> Principal | None:
    """None: it names none, or more than one."""
    names = (certificate or {}).get("subjectAltName", ())
    uris = [value for kind, value in names if kind == "URI" and value.startswith("quorumlog:")]
    if uris:
        parts = _URI.fullmatch(uris[0])
        if len(uris) > 1 or parts is None:
            return None
        cluster, kind, name = map(unquote, parts.groups())
        return Principal(cluster, kind, name)
    common = [
        value
        for part in (certificate or {}).get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
    return Principal("", USER, common[0]) if len(common) == 1 and common[0] else None


def refusal_of(certificate: Certificate | None, cluster: str, member_id: str) -> str:
    """Why the holder of this certificate is not that member; empty if it is. `cluster`: NAME."""
    wanted = Principal(cluster, MEMBER, member_id)
    if not certificate:
        return f"it shows no certificate, and that of {wanted} is required"
    found = principal_of(certificate)
    if found == wanted:
        return ""
    return f"its certificate is that of {found or 'no member or user'}, not of {wanted}"


_WORDS = {
    "WRONG_VERSION_NUMBER": "the other side does not speak TLS",
    "HTTP_REQUEST": "the other side speaks plain HTTP, not TLS",
    "UNSUPPORTED_PROTOCOL": "the other side offers only TLS 1.2 or older, and TLS 1.3 is required",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other side does not accept TLS 1.3",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the other side shows no certificate, and one is required",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other side requires a certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the other side does not trust the CA of our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other side reports that our certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other side does not accept our certificate",
}
_FOREIGN = (
    "self-signed certificate",
    "self signed certificate",
    "unable to get local issuer certificate",
)


def words_of(error: BaseException) -> str:
    """Why there is no TLS on a connection, in a part of a sentence."""
    if isinstance(error, ssl.SSLCertVerificationError):
        message = error.verify_message
        if message.startswith(_FOREIGN):
            return "the certificate is signed by a CA that is not in --tls-ca"
        return f"the certificate is not valid: {message}"
    if isinstance(error, ssl.SSLError):
        return _WORDS.get(error.reason or "") or f"TLS fails: {error.reason or error}"
    if isinstance(error, TimeoutError | ConnectionAbortedError):
        return "the TLS handshake timed out"
    if isinstance(error, ConnectionError | EOFError):
        return (
            str(error)
            or "the other side closed the connection during the TLS handshake: it may be plain"
        )
    return f"TLS fails: {getattr(error, 'strerror', None) or error}"


def is_plain(error: BaseException) -> bool:
    """The other side has answered, and not with TLS."""
    return isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")


def client_context(ca: str, cert: str = "", key: str = "") -> ssl.SSLContext:
    """Of a client, which checks the host. Raises ConfigError."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    _load_roots(context, ca)
    if cert:
        _load_chain(context, cert, key)
    return context


class ClientTls:
    """The TLS options of clients: `connect(servers, tls=ClientTls("ca.crt"))`. `cert` and `key`: the
    client's own, if a server asks for one. Files are PEM, and reloaded when they change; open
    connections continue. Raises ConfigError."""

    def __init__(self, ca: str, cert: str = "", key: str = "") -> None:
        if not ca:
            raise ConfigError("--tls-ca is missing: it names the CAs to trust")
        if bool(cert) != bool(key):
            raise ConfigError(f"{FILES[bool(cert)]} is missing: --tls-cert and --tls-key go together")
        self.files = tuple(map(str, (ca, cert, key)))
        self._context = client_context(*self.files)
        self._seen = _stamps(self.files)

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection. Files that cannot be used change nothing."""
        if (stamps := _stamps(self.files)) != self._seen:
            self._seen = stamps
            try:
                self._context = client_context(*self.files)
            except ConfigError as error:
                log.error("TLS: the new certificates are not used: %s", error)
        return self._context

    def __reduce__(self) -> tuple[type[ClientTls], tuple[str, ...]]:
        return ClientTls, self.files


_of_clients: list[ClientTls] = []
"""Of those that are made without one of their own; the last."""


@contextmanager
def clients_use(tls: ClientTls | None) -> Iterator[None]:
    """Those that are made meanwhile, in any thread, and are given none. None: they stay as they are."""
    if tls is None:
        yield
        return
    _of_clients.append(tls)
    try:
        yield
    finally:
        _of_clients.remove(tls)


def tls_of_clients() -> ClientTls | None:
    return _of_clients[-1] if _of_clients else None


def _stamps(paths: Sequence[str]) -> list[tuple[int, int, int] | None]:
    """They differ once a file is another one. None: it is not there."""
    found: list[tuple[int, int, int] | None] = []
    for path in filter(None, paths):
        try:
            stat = os.stat(path)
            found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        except OSError:
            found.append(None)
    return found


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _load_roots(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--tls-ca {ca}: {_file_words(error)}") from None


def _load_chain(context: ssl.SSLContext, cert: str, key: str) -> None:
    def no_password() -> str:
        raise ConfigError(f"--tls-key {key}: it is protected by a password; remove the password")

    try:
        context.load_cert_chain(cert, key, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"--tls-key {key} is not the key of --tls-cert {cert}") from None
        raise ConfigError(f"--tls-cert {cert}, --tls-key {key}: {_file_words(error)}") from None
    except OSError as error:
        files = zip(FILES, (cert, key), strict=False)
        unread = next((each for each in files if not os.access(each[1], os.R_OK)), (FILES[0], cert))
        raise ConfigError("{} {}: {}".format(*unread, _file_words(error))) from None


def _file_words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "not PEM, or not the expected kind of PEM"
    return getattr(error, "strerror", None) or str(error)


class Tls:
    def __init__(self, options: TlsOptions, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError: of files that cannot be read, and of a certificate that the other members
        would refuse."""
        self.options = options
        self._clock = clock
        self._problem = ""
        """Why the newest files are not used."""
        self._own: dict[str, Any] = {}
        self.principal: Principal
        self._read()

    def _read(self) -> None:
        options = self.options
        stamps = self._stamps()
        server = _context(ssl.PROTOCOL_TLS_SERVER)
        http2 = _context(ssl.PROTOCOL_TLS_SERVER)
        http2.set_alpn_protocols([HTTP2])
        dialling = _context(ssl.PROTOCOL_TLS_CLIENT)
        dialling.check_hostname = False  # peers are known by their URI
        for context in (server, http2, dialling):
            _load_roots(context, options.ca)
            _load_chain(context, options.cert, options.key)
        for context in (server, http2):
            # A session that is resumed outlives the root that its certificate was believed for.
            context.num_tickets = 0
            context.verify_mode = ssl.CERT_REQUIRED
        own = _shown(server, dialling, options.cert)
        principal = principal_of(own)
        if principal is None or principal.kind != MEMBER:
            raise ConfigError(
                f"{options.cert} is the certificate of {principal or 'no member or user'}, not of a"
                " member; `quorumlog ca member` makes one"
            )
        if self._own and principal != self.principal:
            raise ConfigError(
                f"--tls-cert {options.cert} is now that of {principal}, and was that of {self.principal}"
            )
        if options.cluster and options.cluster != principal.cluster:
            raise ConfigError(
                f"--tls-cert {options.cert} is of {principal.cluster}, and [tls] cluster is"
                f" {options.cluster}"
            )
        if options.client_auth != "required":
            # Clients and peers share the port: the certificate of a peer is checked with its greeting.
            server.verify_mode = http2.verify_mode = ssl.CERT_OPTIONAL
        self._server, self._dialling, self._own, self.principal = server, dialling, own, principal
        self._http2 = http2
        self._seen = stamps
        self._looked_s = self._clock()
        self._problem = ""

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return _stamps((self.options.cert, self.options.key, self.options.ca))

    def as_client(self) -> ClientTls:
        """Of a server that asks other members as a client does."""
        return ClientTls(self.options.ca, self.options.cert, self.options.key)

    def check_member(self, member_id: str) -> None:
        """Raises ConfigError if this process's certificate is another member's."""
        if self.principal.name != member_id:
            raise ConfigError(
                f"--tls-cert {self.options.cert} is that of {self.principal}, and --id is {member_id}"
            )

    @property
    def cluster(self) -> str:
        return self.principal.cluster

    @property
    def server(self) -> ssl.SSLContext:
        """For an accepted connection."""
        self._look()
        return self._server

    @property
    def http2_server(self) -> ssl.SSLContext:
        """The same of a port for HTTP/2 only, announced in the handshake."""
        self._look()
        return self._http2

    @property
    def dialling(self) -> ssl.SSLContext:
        """For connections of members, whose URI must name the member."""
        self._look()
        return self._dialling

    def _look(self) -> None:
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        if (stamps := self._stamps()) != self._seen:
            self._seen = stamps
            self.reload()

    def reload(self) -> str:
        """Use the files' present content for new connections. If that fails, nothing changes, and the
        log and `problem` give the reason. Returns a sentence of the outcome."""
        try:
            self._read()
        except ConfigError as error:
            self._problem = f"the new certificates are not used: {error}"
            log.error("TLS: %s", self._problem, extra={"event": "reload"})
            return f"TLS: {self._problem}"
        until = f"it is valid until {self._own['notAfter']}"
        log.warning("TLS: read %s again; %s", self.options.cert, until, extra={"event": "reload"})
        return f"TLS: read {self.options.cert} again; {until}"

    @property
    def refused(self) -> str:
        """Why the files' present content is not used; empty: it is."""
        return self._problem

    @property
    def expires_s(self) -> float:
        """End of this process's certificate, in seconds since 1970."""
        return ssl.cert_time_to_seconds(self._own["notAfter"])

    @property
    def problem(self) -> str:
        """For `status`; empty: none."""
        left_s = self.expires_s - time.time()
        if self._problem or left_s > EXPIRES_SOON_S:
            return self._problem
        ends = f"{'has expired:' if left_s <= 0 else 'expires'} {self._own['notAfter']}"
        return f"the certificate {self.options.cert} {ends}; renew it (`quorumlog ca renew`)"


def _shown(server: ssl.SSLContext, dialling: ssl.SSLContext, cert: str) -> dict[str, Any]:
    """The own certificate as peers see it, from a handshake in memory. Raises ConfigError where a peer
    would refuse it."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [server.wrap_bio(there, back, server_side=True), dialling.wrap_bio(back, there)]
    try:
        for _ in range(4):
            for end in ends[::-1]:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLError as error:
        raise ConfigError(f"--tls-cert {cert}: no peer would accept it: {words_of(error)}") from None
    return ends[1].getpeercert() or {}
