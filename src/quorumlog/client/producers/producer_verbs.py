"""What the leader is asked of the producers that the log remembers, as `verbs` are written."""

from __future__ import annotations

from quorumlog.client.arguments import checked_producer
from quorumlog.client.result_streams import Step, Verb, request_of
from quorumlog.errors import BadRequest
from quorumlog.net.rpc.calls import LEADER, response_of
from quorumlog.wire.producer_messages import (
    ForgetProducer,
    ForgetProducerResponse,
    LastSequence,
    LastSequenceResponse,
    ListProducers,
    ListProducersResponse,
    ProducerInfo,
)


def last_sequence(own_producer: str | None, timeout_ms: float) -> Verb[int]:
    """Of the client's own one, whose session is opened first."""
    if own_producer is None:
        raise BadRequest("this client has no producer: connect(..., producer_id=...)")
    request = request_of(LastSequence(producer=own_producer), LEADER, timeout_ms, in_session=True)
    yield Step((request,), (request,))
    return response_of(request, LastSequenceResponse).producer.last_sequence


def producers(timeout_ms: float) -> Verb[list[ProducerInfo]]:
    found = list[ProducerInfo]()
    while True:
        after = found[-1].producer if found else ""
        request = request_of(ListProducers(after=after), LEADER, timeout_ms)
        yield Step((request,), (request,))
        response = response_of(request, ListProducersResponse)
        found += response.producers
        if response.is_last:
            return found


def producer(producer_id: str, timeout_ms: float) -> Verb[ProducerInfo]:
    message = LastSequence(producer=checked_producer(producer_id))
    request = request_of(message, LEADER, timeout_ms)
    yield Step((request,), (request,))
    return response_of(request, LastSequenceResponse).producer


def forget(producer_id: str, timeout_ms: float) -> Verb[ProducerInfo]:
    known = yield from producer(producer_id, timeout_ms)
    message = ForgetProducer(producer=known.producer, epoch=known.epoch)
    request = request_of(message, LEADER, timeout_ms)
    yield Step((request,), (request,))
    response_of(request, ForgetProducerResponse)
    return known
