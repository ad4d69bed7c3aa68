"""Who a client says that it is, before it has connected."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest
from scramp import ScramException, ScramMechanism  # type: ignore[import-untyped, unused-ignore]

from quorumlog.errors import ConfigError, NotAuthenticated
from quorumlog.net.credentials import (
    MECHANISM,
    MOST_PASSWORD_BYTES,
    PASSWORD_VARIABLE,
    ClientUser,
    Proof,
    fits,
    verifier_for,
)
from quorumlog.net.hello import Challenge

WRONG_PASSWORDS = ("", "a" * (MOST_PASSWORD_BYTES + 1), "é" * MOST_PASSWORD_BYTES, "a\ud800")


@pytest.mark.parametrize("password", WRONG_PASSWORDS, ids=("empty", "long", "wide", "surrogate"))
def test_a_password_is_bounded_wherever_it_comes_from(
    password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_bytes(password.encode(errors="surrogatepass"))
    monkeypatch.setenv(PASSWORD_VARIABLE, password.encode(errors="ignore").decode()[:1] or "b")
    from_environment = ClientUser("bob")
    monkeypatch.setattr("os.environ", {PASSWORD_VARIABLE: password})
    for asked in (
        lambda: ClientUser("bob", password),
        ClientUser("bob", password_file=str(file)).password,
        from_environment.password,
        lambda: verifier_for(password),
    ):
        with pytest.raises(ConfigError, match="password"):
            asked()
    assert not fits(password, verifier_for("b"))


def test_the_longest_password_is_one() -> None:
    longest = "a" * MOST_PASSWORD_BYTES
    assert ClientUser("bob", longest).password() == longest
    assert fits(longest, verifier_for(longest))


@pytest.mark.parametrize("name", ["\ud800", "n" * 65, "n" * 100_000, "b,o=b", "bob\n", "é"])
def test_a_name_that_no_user_can_have_is_refused_at_once(name: str) -> None:
    with pytest.raises(ConfigError, match="a user or a role has a name of 1 to 64") as refused:
        ClientUser(name, "tahini")
    assert len(str(refused.value)) < 1000


class Server:
    """The library's, for a user with that password."""

    def __init__(self, password: str) -> None:
        of = verifier_for(password)
        known = of.salt, of.stored_key, of.server_key, of.iterations
        self.scram = ScramMechanism(MECHANISM).make_server(lambda name: known)

    def asks(self, proof: Proof) -> str:
        """What the client says last."""
        self.scram.set_client_first(proof.answer(Challenge(mechanism=MECHANISM)).decode())
        first = self.scram.get_server_first().encode()
        return proof.answer(Challenge(mechanism=MECHANISM, data=first)).decode()


@pytest.mark.parametrize("password", ["sesame", "é" * 500, "a\u00a0b"])
def test_a_proof_is_one_of_scram(password: str) -> None:
    server, proof = Server(password), Proof(ClientUser("bob", password))
    server.scram.set_client_final(server.asks(proof))
    assert server.scram.user == "bob" and not proof.is_whole
    last = server.scram.get_server_final().encode()
    assert proof.answer(Challenge(mechanism=MECHANISM, data=last)) == b"" and proof.is_whole


def test_another_password_proves_nothing() -> None:
    server = Server("sesame")
    with pytest.raises(ScramException):
        server.scram.set_client_final(server.asks(Proof(ClientUser("bob", "tahini"))))


@pytest.mark.parametrize("said", [b"v=" + b64encode(bytes(32)), b"e=other-error", b"", b"v=", b"\xff"])
def test_a_server_that_does_not_know_the_user_is_found_out(said: bytes) -> None:
    proof = Proof(ClientUser("bob", "sesame"))
    Server("other").asks(proof)
    with pytest.raises(NotAuthenticated, match="does not prove that it knows"):
        proof.answer(Challenge(mechanism=MECHANISM, data=said))
    assert not proof.is_whole
