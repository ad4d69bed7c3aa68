"""Who a client says that it is, before it has connected."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.errors import ConfigError
from quorumlog.net.credentials import (
    MOST_PASSWORD_BYTES,
    PASSWORD_VARIABLE,
    ClientUser,
    fits,
    verifier_for,
)

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
