"""Whoever gets in without a right is found; `make nemesis-replicas OPTIONS=--users` breaks brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from nemesis.users import GUEST, Users, options_of
from quorumlog.broker import BrokerAdmin
from quorumlog.log_state.users import UserOperation, UserOrder
from tests.waiting import eventually

pytestmark = [pytest.mark.processes]


def test_who_gets_in_without_a_right_is_found(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "a", *options_of(tmp_path)) as broker,
        Users({"a": broker.address}, "t") as users,
    ):
        eventually(lambda: users.counts["guest: Forbidden"] and users.counts["app: let in"])
        assert not users.violations
        users.check()
        with BrokerAdmin(broker.address) as admin:
            admin.change_users(UserOrder(UserOperation.GIVE_ROLES, GUEST.name, ("app",)))
        eventually(lambda: "a lets guest send" in users.violations)
        assert "a lets guest pull" in users.violations
