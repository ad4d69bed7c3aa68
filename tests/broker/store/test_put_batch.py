"""Puts of several clients that are checked and written together."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import numpy as np

from quorumlog.broker.errors import UnknownTopic
from quorumlog.broker.message import Message, encode_records
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.broker.store.commit_log import PutBatch
from quorumlog.broker.store.log_files import PutOutcome, PutRequest


def test_an_unknown_topic_refuses_nothing_but_what_was_sent_to_it() -> None:
    topics = ["orders", "lost", "payments", "gone", "orders"]
    refused: dict[int, PutOutcome] = {}
    requests = []
    for number, topic in enumerate(topics):
        buffer, sizes = encode_records([Message(topic, b"x")], 0, 0)
        records = RecordBatch.contiguous(buffer, sizes)
        requests.append(PutRequest(records, True, partial(refused.__setitem__, number)))
    with patch.object(np, "empty", np.zeros):  # memory that nobody has used yet
        batch = PutBatch(requests, 1 << 20, lambda queue: queue.topic in ("orders", "payments"))
    assert batch.requests == [requests[0], requests[2], requests[4]]
    assert sorted(refused) == [1, 3]
    for number, outcome in refused.items():
        assert isinstance(outcome, UnknownTopic)
        assert f"no topic {topics[number]} " in str(outcome)
