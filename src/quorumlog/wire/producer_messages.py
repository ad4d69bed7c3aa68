"""What clients and servers say of producers and their sessions."""

from __future__ import annotations

import msgspec

from quorumlog.log_state.control_entries import Epoch
from quorumlog.wire.client_message import ClientMessage, Int, Text


class ProducerInfo(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A session, as a log knows it."""

    producer: Text
    epoch: Epoch
    last_sequence: Int
    """-1: none of its entries is in the log."""
    last_index: Int
    """Where that one lies; -1 if none is remembered."""


class ConnectProducer(ClientMessage, frozen=True, kw_only=True, tag=42):
    """A producer's epoch is to begin."""

    producer: Text
    token: bytes
    """Random, 16 bytes; the same in each repetition."""
    ends: Epoch | None = None
    """The epoch that stands, as an answer before has named it; None: there is none."""
    timeout_ms: Int = 0
    """As in AppendRequest."""
    seen_index: Int | None = None
    """Of the first connect of a producer: it was meant for the log up to here, as an answer has told. If
    a producer was forgotten since, nothing is opened, so that no late copy of it lists that one again.
    -1: no answer yet. None: an older client, or one whose id nobody forgets."""


class ConnectProducerResponse(ClientMessage, frozen=True, kw_only=True, tag=43):
    opened: bool
    """False: `epoch` stands, which the request did not name; (-1, -1): none does, and `seen_index` is
    for the next request. Nothing was written."""
    epoch: Epoch
    last_sequence: Int
    """Number of the last entry that is in the log; -1: none is."""
    seen_index: Int = -1
    """Where no epoch stands: up to where the log is that says so."""


class LastSequence(ClientMessage, frozen=True, kw_only=True, tag=44):
    """What is in the log of a producer. Refused with ProducerExpired if there is no such session."""

    producer: Text


class LastSequenceResponse(ClientMessage, frozen=True, kw_only=True, tag=45):
    producer: ProducerInfo


class ListProducers(ClientMessage, frozen=True, kw_only=True, tag=46):
    after: Text = ""
    """Names behind this one, in their order."""
    limit: Int = 1000


class ListProducersResponse(ClientMessage, frozen=True, kw_only=True, tag=47):
    producers: tuple[ProducerInfo, ...]
    is_last: bool
    """There are none behind these."""


class ForgetProducer(ClientMessage, frozen=True, kw_only=True, tag=48):
    """A session is to end for good, with all that is known of its producer's numbers."""

    producer: Text
    epoch: Epoch
    """The one that stands; another: ProducerFenced."""


class ForgetProducerResponse(ClientMessage, frozen=True, kw_only=True, tag=49):
    pass
