"""Sessions of the product's own client over cut connections: joined appends, and streams."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest.mock import patch

import pytest

from quorumlog.testing.profile import SimulationProfile
from quorumlog.version import IS_COMPILED
from sim.log import run, world
from sim.log.profile import draw_profile
from sim.log.run import run_seed
from tests.sim.session_clients import SessionClient


@pytest.mark.skipif(IS_COMPILED, reason="a compiled session takes none but real connections")
def test_what_is_joined_and_streamed_in_a_session_is_in_the_log_once() -> None:
    """In a run of all faults each append ends with a receipt, and none is unknown."""
    counts = run_with_session_clients(2)
    assert counts["session client: appends were on their way"] > 10
    assert counts["exactly once: checked"] == 1


def run_with_session_clients(seed: int) -> dict[str, int]:

    def with_sessions(*arguments: Any, **options: Any) -> SimulationProfile:
        profile = draw_profile(*arguments, **options)
        storage = dataclasses.replace(profile.storage, flush="sync")
        return dataclasses.replace(profile, producers=2, storage=storage)

    with (
        patch.object(run, "draw_profile", with_sessions),
        patch.object(world, "SimProducer", SessionClient),
    ):
        result = run_seed(seed, size=3)
    assert not result.failure, result.failure
    return result.counts
