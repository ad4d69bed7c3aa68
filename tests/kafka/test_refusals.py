"""What clients of Kafka are told where the log refuses, or nobody knows the outcome."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from quorumlog.errors import (
    DiskFull,
    LedgerError,
    NotLeader,
    OutcomeUnknown,
    PendingFull,
    RequestTimeout,
    ResultUnknown,
)
from quorumlog.kafka.service import code_of
from quorumlog.log_state.users import Kind

AGAIN = ErrorCode.coordinator_load_in_progress


@pytest.mark.parametrize(
    ("error", "of_topic", "of_group"),
    [
        (PendingFull("full"), ErrorCode.not_enough_replicas, AGAIN),
        (DiskFull("full"), ErrorCode.not_enough_replicas, AGAIN),
        (RequestTimeout("late"), ErrorCode.request_timed_out, AGAIN),
        (NotLeader("another"), ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator),
        (OutcomeUnknown("lost"), ErrorCode.request_timed_out, AGAIN),
        (ResultUnknown("lost"), ErrorCode.request_timed_out, AGAIN),
    ],
)
def test_a_refusal_that_passes_ends_no_client(
    error: LedgerError, of_topic: ErrorCode, of_group: ErrorCode
) -> None:
    """Consumers commit and fetch offsets again for few codes, and end at the others."""
    assert code_of(error) == of_topic
    assert code_of(error, Kind.CONSUMER_GROUP) == of_group
