"""quorumlog ca: what it makes, and that it overwrites nothing."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quorumlog.cli.main import app
from quorumlog.config.tables import TlsOptions
from quorumlog.net.tls import Tls, client_context


def run(*words: object, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["ca", *map(str, words)])
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def made(tmp_path: Path) -> Path:
    directory = tmp_path / "tls"
    run("init", "--cluster", "orders", "--dir", directory)
    run("member", "--id", "n0", "--host", "127.0.0.1", "--host", "db0.example.com", "--dir", directory)
    return directory


def options_of(directory: Path) -> TlsOptions:
    return TlsOptions(*(str(directory / name) for name in ("member-n0.crt", "member-n0.key", "ca.crt")))


def test_what_is_made_serves_a_member_and_a_user(made: Path) -> None:
    assert str(Tls(options_of(made)).principal) == "quorumlog://orders/member/n0"
    printed = run("client", "--user", "alice", "--dir", made)
    assert printed.split() == [str(made / "user-alice.crt"), str(made / "user-alice.key")]
    client_context(str(made / "ca.crt"), *printed.split())


def test_keys_are_for_their_owner_alone(made: Path) -> None:
    assert {path.name: path.stat().st_mode & 0o777 for path in made.iterdir()} == {
        "ca.crt": 0o644,
        "ca.key": 0o600,
        "member-n0.crt": 0o644,
        "member-n0.key": 0o600,
    }


def test_nothing_is_overwritten(made: Path) -> None:
    before = {path: path.read_bytes() for path in made.iterdir()}
    assert "not overwritten" in run("init", "--cluster", "orders", "--dir", made, status=2)
    again = run("member", "--id", "n0", "--host", "127.0.0.1", "--dir", made, status=2)
    assert "not overwritten" in again
    assert {path: path.read_bytes() for path in made.iterdir()} == before


def test_a_renewed_certificate_has_the_same_names_and_key(made: Path) -> None:
    key = (made / "member-n0.key").read_bytes()
    before = Tls(options_of(made))
    run("renew", made / "member-n0.crt", "--dir", made, "--days", 900)
    after = Tls(options_of(made))
    assert (made / "member-n0.key").read_bytes() == key
    assert after.principal == before.principal
    assert len(list(made.iterdir())) == 4


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("member", "--id", "n1", "--host", "ü ber"), "--host"),
        (("member", "--id", "../n1", "--host", "127.0.0.1"), "cannot be the name of a file"),
        (("client", "--user", ""), "--user"),
        (("renew", "nowhere.crt"), "nowhere.crt is not there"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line(
    made: Path, words: tuple[str, ...], reason: str
) -> None:
    printed = run(*words, "--dir", made, status=2)
    assert reason in printed
    assert len(printed.strip().splitlines()) == 1


def test_without_a_ca_the_first_command_is_named(tmp_path: Path) -> None:
    assert "quorumlog ca init" in run("client", "--user", "alice", "--dir", tmp_path, status=2)


def test_python_s_strictest_checks_are_passed(made: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(made / "ca.crt")
    served = Tls(options_of(made)).server
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = served.wrap_bio(there, back, server_side=True)
    client = context.wrap_bio(back, there, server_hostname="db0.example.com")
    for _ in range(3):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.getpeercert()
