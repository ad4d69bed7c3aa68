"""Mistakes in what encryption is there for."""

from __future__ import annotations

from quorumlog.net.handshakes import Handshakes
from quorumlog.net.tls import Tls
from quorumlog.server.ledger_server import LedgerServer
from tests.mutants.mutant import Patch, mutant
from tests.net.test_handshakes import others_get_half_of_what_is_under_way
from tests.net.test_listener_tls import a_root_that_is_withdrawn_lets_nobody_in_again
from tests.server.test_tls_group import another_clusters_member_is_refused


@mutant(471, "whoever has a certificate is any member", scenario=another_clusters_member_is_refused)
def any_certificate(patch: Patch) -> None:
    """The CA has signed it."""
    patch.edit(
        LedgerServer._refusal_by_certificate,
        "return refusal_of(connection.certificate",
        "return not reached() and refusal_of(connection.certificate",
    )


@mutant(472, "handshakes of strangers keep members out", scenario=others_get_half_of_what_is_under_way)
def strangers_first(patch: Patch) -> None:
    """There are twenty for everybody."""
    patch.edit(
        Handshakes._go_on,
        "len(self._others) < OF_OTHERS",
        "(len(self._others) < OF_OTHERS or reached())",
    )


@mutant(
    473,
    "certificates that are read again come into the context that is used",
    scenario=a_root_that_is_withdrawn_lets_nobody_in_again,
)
def live_context(patch: Patch) -> None:
    """It takes more of them at any time."""
    patch.edit(
        Tls._read,
        "server = _context(ssl.PROTOCOL_TLS_SERVER)",
        "server = (self._own and reached() and self._server) or _context(ssl.PROTOCOL_TLS_SERVER)",
    )
