"""Passwords, and what servers keep of them, are in no log, no traceback and no repr."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import subprocess
import sys
import traceback
from base64 import b64encode
from pathlib import Path

import pytest

from quorumlog import LocalCluster, connect, connect_async
from quorumlog.broker import AsyncBrokerAdmin, AsyncBrokerClient, AsyncProducer
from quorumlog.errors import ConfigError, NotAuthenticated
from quorumlog.kv import AsyncKeyValueClient, KeyValueClient
from quorumlog.log_state.users import UserOperation, UserOrder, Users, change_of
from quorumlog.net.credentials import ClientUser, verifier_for

PASSWORD, WRONG = "open-sesame-4711", "wrong-tahini-4712"
VERIFIER = verifier_for(PASSWORD)
SECRETS = [
    *(PASSWORD, WRONG, PASSWORD.encode().hex(), b64encode(PASSWORD.encode()).decode()),
    *(repr(key)[2:-1] for key in (VERIFIER.stored_key, VERIFIER.server_key)),
    *(b64encode(key).decode() for key in (VERIFIER.stored_key, VERIFIER.server_key)),
    *(key.hex() for key in (VERIFIER.stored_key, VERIFIER.server_key)),
]
ALICE = ClientUser("alice", PASSWORD)
ADD_ALICE = UserOrder(UserOperation.ADD_USER, "alice", ("admin",), (), VERIFIER)


def told_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def test_logs_and_tracebacks_have_no_password(caplog: pytest.LogCaptureFixture) -> None:
    said = ""
    with caplog.at_level(logging.DEBUG), LocalCluster(1, store="memory") as cluster:
        with connect(cluster.servers) as log:
            log.change_users(ADD_ALICE)
        with connect(cluster.servers, user=ALICE) as log:
            said += repr(log) + repr(log.users()) + repr(log.status())
            log.append(b"x")
        with connect(cluster.servers, user=ClientUser("alice", WRONG)) as log:
            with pytest.raises(NotAuthenticated) as refused:
                log.append(b"y")
            shown = traceback.TracebackException.from_exception(refused.value, capture_locals=True)
            said += repr(log) + "".join(shown.format())
    assert "'alice' at 127.0.0.1" in caplog.text
    assert not told_in(caplog.text) and not told_in(said)


def test_no_client_shows_its_password() -> None:
    where = "127.0.0.1:1"

    async def clients() -> str:
        made = (
            connect_async(where, user=ALICE),
            AsyncKeyValueClient(where, user=ALICE),
            *(each(where, user=ALICE) for each in (AsyncBrokerClient, AsyncBrokerAdmin, AsyncProducer)),
        )
        said = repr(made)
        for each in made:
            await each.close()
        return said

    with connect(where, user=ALICE) as log, KeyValueClient(where, user=ALICE) as store:
        said = f"{log!r} {store!r} {ALICE!r} {ALICE}"
    assert not told_in(said + asyncio.run(clients()))
    with pytest.raises(ConfigError, match="use password_file"):
        pickle.dumps(ALICE)


def test_no_value_of_the_state_shows_what_a_password_is_checked_by() -> None:
    change = change_of(Users(), ADD_ALICE, VERIFIER.server_key)
    users = Users().changed(change)
    assert users.secret == VERIFIER.server_key
    assert not told_in(f"{users} {change} {ADD_ALICE} {VERIFIER!r}")


def test_a_process_that_asks_shows_no_password(tmp_path: Path) -> None:
    """As `ps` shows it, and what it says where its file cannot be used."""
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    with LocalCluster(1, store="memory") as cluster:
        with connect(cluster.servers) as log:
            log.change_users(ADD_ALICE)
        command = [sys.executable, "-m", "quorumlog", "read", "--follow", "--servers", cluster.servers]
        process = subprocess.Popen(
            [*command, "--user", "alice", "--password-file", str(file)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            with connect(cluster.servers, user=ALICE) as log:
                log.append(b"come here")
            assert process.stdout is not None
            assert "come here" in process.stdout.readline()
            shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        finally:
            process.kill()
            process.wait()
        environment = {**os.environ, "QUORUMLOG_PASSWORD": WRONG}
        refused = subprocess.run(
            [*command, "--user", "alice"], capture_output=True, text=True, env=environment, check=False
        )
    assert b"alice" in shown and not told_in(shown.decode(errors="replace"))
    assert refused.returncode and "password is wrong" in refused.stderr
    assert not told_in(refused.stdout + refused.stderr)
