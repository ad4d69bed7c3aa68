"""What asyncio clients can do the blocking ones can, with the same arguments and words."""

from __future__ import annotations

import inspect

import pytest

from quorumlog import AsyncLedgerClient, LedgerClient
from quorumlog.broker.client.async_broker_admin import AsyncBrokerAdmin
from quorumlog.broker.client.async_broker_client import AsyncBrokerClient
from quorumlog.broker.client.async_consumer import AsyncConsumer
from quorumlog.broker.client.async_producer import AsyncProducer
from quorumlog.broker.client.blocking import BrokerAdmin, BrokerClient, Consumer, Producer
from quorumlog.client.blocking_client import MachineHandle, NamedReader
from quorumlog.client.handles import AsyncMachineHandle, AsyncNamedReader
from quorumlog.kv import AsyncKeyValueClient, KeyValueClient
from quorumlog.kv.client.blocking_store import BlockingWatch
from quorumlog.kv.client.watching import Watching

PAIRS: list[tuple[type, type]] = [
    (AsyncLedgerClient, LedgerClient),
    (AsyncMachineHandle, MachineHandle),
    (AsyncNamedReader, NamedReader),
    (AsyncKeyValueClient, KeyValueClient),
    (Watching, BlockingWatch),
    (AsyncBrokerClient, BrokerClient),
    (AsyncProducer, Producer),
    (AsyncConsumer, Consumer),
    (AsyncBrokerAdmin, BrokerAdmin),
]
OTHERWISE = {
    KeyValueClient: {"election", "lease"},  # `leadership`; `grant`, `revoke`, `keep_alive`
    Producer: {"send_encoded"},
    BlockingWatch: {"began"},
}


@pytest.mark.parametrize(("asyncio", "blocking"), PAIRS)
def test_no_verb_is_missing(asyncio: type, blocking: type) -> None:
    verbs = {name for name in vars(asyncio) if not name.startswith("_")}
    assert verbs - set(dir(blocking)) == OTHERWISE.get(blocking, set())


@pytest.mark.parametrize(("asyncio", "blocking"), PAIRS)
def test_a_verb_says_the_same(asyncio: type, blocking: type) -> None:
    for name, verb in vars(blocking).items():
        made_of = inspect.unwrap(verb) if inspect.isfunction(verb) else verb
        if made_of is not verb and not inspect.isgeneratorfunction(made_of):
            ours, theirs = inspect.signature(verb), inspect.signature(getattr(asyncio, name))
            assert ours.parameters == theirs.parameters, name
            assert "Async" not in str(ours.return_annotation), name
            assert inspect.getdoc(verb), name
            assert not inspect.iscoroutinefunction(verb), name
