"""Certificates: whose they are, when they are refused, and when the files are read again."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest

from quorumlog.cli import certificates
from quorumlog.config.tables import TlsOptions
from quorumlog.errors import ConfigError
from quorumlog.net.tls import LOOK_EVERY_S, Principal, Tls, client_context, principal_of, refusal_of
from tests.certificates import directory, member, member_valid, options_of, user


def named(*uris: str, cn: str = "") -> dict[str, Any]:
    subject = ((("commonName", cn),),) if cn else ()
    return {"subject": subject, "subjectAltName": tuple(("URI", uri) for uri in uris)}


@pytest.mark.parametrize(
    ("certificate", "principal"),
    [
        (named("quorumlog://orders/member/n0", cn="x"), Principal("orders", "member", "n0")),
        (named("quorumlog://orders/user/al%2Fice"), Principal("orders", "user", "al/ice")),
        (named("https://example.com/a", cn="alice"), Principal("", "user", "alice")),
        (named(cn="alice"), Principal("", "user", "alice")),
        (named(), None),
        (named("quorumlog://orders/member/n0", "quorumlog://orders/member/n1"), None),
        (named("quorumlog://orders/admin/n0", cn="alice"), None),
        (named("quorumlog://orders/member/n0/more"), None),
        (named("quorumlog:///member/n0"), None),
        ({}, None),
    ],
)
def test_whose_a_certificate_is(certificate: dict[str, Any], principal: Principal | None) -> None:
    assert principal_of(certificate) == principal


def test_names_of_any_kind_come_back() -> None:
    for name in ("n0", "a/b c?#%", "ü"):
        principal = Principal("shop north", "member", name)
        assert principal_of(named(str(principal))) == principal


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        (named("quorumlog://orders/member/n1"), ""),
        (named("quorumlog://orders/member/n0"), "quorumlog://orders/member/n0, not of"),
        (named("quorumlog://audit/member/n1"), "quorumlog://audit/member/n1, not of"),
        (named("quorumlog://orders/user/n1"), "quorumlog://orders/user/n1, not of"),
        (named(cn="n1"), "the user n1, not of"),
        ({}, "no certificate"),
    ],
)
def test_who_may_speak_as_a_member(certificate: dict[str, Any], reason: str) -> None:
    refusal = refusal_of(certificate, "orders", "n1")
    assert reason in refusal if reason else not refusal


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: options_of(member_valid(-30, -1, "n0")), "certificate has expired"),
        (lambda: options_of(member_valid(1, 30, "n0")), "certificate is not yet valid"),
        (lambda: options_of(member("n0", number=1)), "signed by a CA that is not in --tls-ca"),
        (lambda: options_of(member("n0", "audit")), "signed by a CA that is not in --tls-ca"),
        (lambda: options_of(user("alice")), "would accept it|not of a member"),
        (lambda: options_of(member("n0"), cluster="audit"), "is of orders, and .tls. cluster is audit"),
        (lambda: TlsOptions("/nowhere", "/nowhere", str(directory() / "ca.crt")), "--tls-cert /nowhere"),
        (lambda: TlsOptions(*map(str, member("n0")), "/nowhere"), "--tls-ca /nowhere: No such file"),
        (
            lambda: TlsOptions(
                str(member("n0").cert), str(member("n1").key), str(directory() / "ca.crt")
            ),
            "is not the key of",
        ),
    ],
)
def test_what_no_other_member_would_accept_is_refused_at_the_start(make: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        Tls(make())
    assert "\n" not in str(raised.value)


def test_a_session_is_never_resumed_and_nothing_older_than_1_3_is_spoken() -> None:
    tls = Tls(options_of(member("n0")))
    assert tls.server.num_tickets == 0
    assert tls.server.minimum_version == tls.dialling.minimum_version == ssl.TLSVersion.TLSv1_3
    assert tls.server.verify_mode == ssl.CERT_OPTIONAL
    assert Tls(options_of(member("n0"), client_auth="required")).server.verify_mode == ssl.CERT_REQUIRED
    assert client_context(str(directory() / "ca.crt")).check_hostname


def test_another_member_s_certificate_is_named() -> None:
    with pytest.raises(ConfigError, match="quorumlog://orders/member/n0, and --id is n1"):
        Tls(options_of(member("n0"))).check_member("n1")


class Files:
    """Certificate, key and roots of n0, which are changed while they are used."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path
        self.now_s = 0.0
        shutil.copy(directory() / "ca.crt", tmp_path / "ca.crt")
        self.use(member("n0"))
        options = TlsOptions(*(str(tmp_path / name) for name in ("n0.crt", "n0.key", "ca.crt")))
        self.tls = Tls(options, lambda: self.now_s)

    def use(self, pair: certificates.Pair) -> None:
        for source, name in zip(pair, ("n0.crt", "n0.key"), strict=True):
            shutil.copy(source, self.directory / f"{name}.new")
            (self.directory / f"{name}.new").replace(self.directory / name)


def test_files_that_change_are_read_by_a_new_context(tmp_path: Path) -> None:
    files = Files(tmp_path)
    before = files.tls.server
    files.now_s += 2 * LOOK_EVERY_S
    assert files.tls.server is before
    files.use(member_valid(0, 100, "n0"))
    assert files.tls.server is before, "they are looked at once a second"
    files.now_s += 2 * LOOK_EVERY_S
    assert files.tls.server is not before
    assert not files.tls.problem


def test_files_that_cannot_be_used_change_nothing(tmp_path: Path) -> None:
    files = Files(tmp_path)
    before = files.tls.server
    files.use(member("n1"))
    files.now_s += 2 * LOOK_EVERY_S
    assert files.tls.server is before
    assert "is now that of quorumlog://orders/member/n1" in files.tls.problem
    assert files.tls.principal.name == "n0"
    files.use(member("n0"))
    files.now_s += 2 * LOOK_EVERY_S
    assert files.tls.server is not before
    assert not files.tls.problem


def test_an_end_that_is_near_is_a_problem() -> None:
    problem = Tls(options_of(member_valid(-10, 3, "n0"))).problem
    assert "expires" in problem
    assert "quorumlog ca renew" in problem


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"client_auth": "maybe"}, "--client-auth must be none, optional or required"),
        ({"peers": "never"}, "peers must be plain, prefer or required"),
        ({"listen": "nowhere"}, "not an address"),
        ({"cert": ""}, "--tls-cert is missing"),
    ],
)
def test_options_that_cannot_be(given: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        TlsOptions(**{"cert": "a", "key": "b", "ca": "c", **given})
