"""Whoever asked for a hand-over hears what came of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.consensus.ready import Role, RoleChange
from quorumlog.node.transfers import TransferOutcome, Transfers
from quorumlog.version import IS_COMPILED


@pytest.mark.skipif(IS_COMPILED, reason="what is compiled takes no stub, and no other method")
def test_a_leader_that_is_no_member_any_more_tells_who_took_over() -> None:
    """It is an observer by the time that another one leads."""
    raft: Any = SimpleNamespace(role=Role.LEADER, transfer=SimpleNamespace(target=None))
    raft.check_transfer = raft.transfer_leadership = lambda *asked: None
    transfers = Transfers(raft, cast(Any, SimpleNamespace(proposed_count=0)), 100.0)
    outcomes: list[TransferOutcome] = []
    transfers.request("n1", 0.0, outcomes.append, "as was asked for")
    transfers.tick(0.0)
    for leader_id in (None, "n1"):
        raft.role = Role.OBSERVER
        transfers.role_changed(RoleChange(Role.OBSERVER, 2, leader_id, ""))
    transfers.tick(1.0)
    assert outcomes == [RoleChange(Role.OBSERVER, 2, "n1", "")]
