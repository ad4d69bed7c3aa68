"""What releases before called otherwise is accepted, with a warning."""

from __future__ import annotations

import asyncio
import pkgutil
from types import ModuleType

import pytest

from quorumlog import broker, kv
from quorumlog.broker import errors as broker_errors
from quorumlog.errors import LedgerError
from quorumlog.kv import errors as kv_errors
from quorumlog.kv.old_spellings import takes_seconds
from tests.cli.conftest import Cli, plain

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize("option", [("--server", NOBODY), (f"--server={NOBODY}",)])
def test_a_broker_is_named_by_the_old_option(cli: Cli, option: tuple[str, ...]) -> None:
    said = plain(cli("broker", "topic", "list", *option, "--timeout", "0.1").stderr)
    assert "warning: --server is now --servers" in said
    assert NOBODY in said


def test_why_kept_is_a_command_of_why(cli: Cli) -> None:
    said = plain(cli("why-kept", "--servers", NOBODY, "--timeout", "0.1").stderr)
    assert "warning: why-kept is now why kept" in said
    assert NOBODY in said


def test_behind_two_dashes_nothing_is_an_option(cli: Cli) -> None:
    said = cli(
        "broker", "send", "--topic", "a", "--timeout", "0.1", "--servers", NOBODY, "--", "--server"
    )
    assert "warning" not in said.stderr


@pytest.mark.parametrize(
    ("variable", "command"),
    [("QUORUMLOG_KV_SERVERS", "kv get a"), ("QUORUMLOG_BROKER", "broker topic list")],
)
def test_addresses_come_from_the_old_variable(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, variable: str, command: str
) -> None:
    monkeypatch.setenv(variable, NOBODY)
    monkeypatch.setenv("QUORUMLOG_SERVERS", "127.0.0.1:2")
    said = plain(cli(*command.split(), "--timeout", "0.1").stderr)
    assert f"warning: {variable} is now QUORUMLOG_SERVERS" in said
    assert f"{NOBODY} (" in said


@pytest.mark.parametrize("command", ["kv get a", "broker topic list", "status"])
def test_one_variable_names_the_addresses_of_every_product(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("QUORUMLOG_SERVERS", NOBODY)
    said = cli(*command.split(), "--timeout", "0.1").output
    assert NOBODY in said
    assert "warning" not in said


def test_a_store_is_connected_to_as_the_others_are() -> None:
    async def connect() -> None:
        async with kv.connect_async(NOBODY, timeout_ms=100):
            pass
        with pytest.warns(DeprecationWarning, match="no longer a coroutine"):
            client = await kv.connect_async(NOBODY)  # type: ignore[misc]
        await client.close()

    asyncio.run(connect())


def test_a_time_out_in_seconds_is_warned_of() -> None:
    with pytest.warns(DeprecationWarning, match="timeout_ms"):
        kv.connect(NOBODY, timeout_s=0.1).close()  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="'time'"):
        kv.connect(NOBODY, time=0.1)  # type: ignore[call-overload]


def test_a_time_out_in_seconds_may_stand_without_its_name() -> None:
    @takes_seconds
    def batch(self: object, *, timeout_ms: float | None = None) -> float | None:
        return timeout_ms

    with pytest.warns(DeprecationWarning, match="timeout_ms"):
        assert batch(None, 2) == 2_000  # type: ignore[misc]
    with pytest.warns(DeprecationWarning, match="timeout_ms"):
        assert batch(None, timeout_s=None) is None  # type: ignore[call-arg]
    assert batch(None, timeout_ms=2) == 2


@pytest.mark.parametrize(("product", "errors"), [(kv, kv_errors), (broker, broker_errors)])
def test_errors_are_importable_where_they_are_documented(
    product: ModuleType, errors: ModuleType
) -> None:
    names = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type)
        and issubclass(each, LedgerError)
        and each.__module__ == errors.__name__
    }
    assert names
    assert names <= set(product.__all__)
    assert all(pkgutil.resolve_name(f"{product.__name__}:{name}") for name in names)
