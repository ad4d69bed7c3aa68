"""Users of a simulated cluster, step by step: what a member that does not know them lets nobody do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from quorumlog.log_state.users import ADMINISTRATORS, UserOperation, UserOrder, Users
from quorumlog.node.operator_orders import UsersOutcome
from quorumlog.store.state_files import FIRST_ADMIN_NAME
from quorumlog.testing.member import SimMember
from quorumlog.testing.profile import SimulationProfile
from quorumlog.version import IS_COMPILED
from sim.log.work.user_work import GRANTS, ROOT, SimUser, UserWork
from tests.sim.scenario import QUIET, Scenario

pytestmark = pytest.mark.skipif(IS_COMPILED, reason="a compiled session takes none but real connections")
READS = GRANTS[0]


class Scene(Scenario):
    def __init__(self, profile: SimulationProfile = QUIET) -> None:
        few = replace(QUIET.consensus, push_limit_bytes=600, push_window_bytes=600)
        slow = replace(profile, catch_up_bytes_per_second=1_000, consensus=few)
        super().__init__(profile=replace(slow, has_users=True))
        work = self.world.user_work
        assert isinstance(work, UserWork)
        self.work = work

    def order(self, verb: UserOperation, name: str, *roles: str, reads: bool = False) -> None:
        outcomes: list[UsersOutcome] = []
        verifier = self.work.verifier() if verb is UserOperation.ADD_USER else None
        order = UserOrder(verb, name, roles, (READS,) if reads else (), verifier)
        leader = self.await_leader()
        secret = bytes(32)
        leader.enter(lambda: leader.node.orders.change_users(order, secret, outcomes.append))
        self.until(lambda: outcomes, "change of users")
        assert isinstance(outcomes[0], int), outcomes

    def begin(self) -> None:
        """bob may read; and every member knows it."""
        for _ in range(20):
            self.ask_and_wait(self.await_leader(), 200)
        self.order(UserOperation.ADD_USER, ROOT, ADMINISTRATORS)
        self.order(UserOperation.ADD_ROLE, "r0", reads=True)
        self.order(UserOperation.ADD_USER, "bob", "r0")
        self.run_for(1_000)

    def users_at(self, member: SimMember) -> Users | None:
        return self.work.ports.by_place[member.place].users.access.users

    def user(self, name: str) -> SimUser:
        return next(each for each in self.work.users if each.name == name)

    def outcome(self, name: str, member: SimMember, *, wait_ms: int = 0) -> str:
        """What a read of the first entries, or of such that are not there yet, ends with."""
        counts, user = self.cluster.trace.counts, self.user(name)
        before = counts.copy()
        end_index = member.node.store.end.index
        user.read(user.connect(member), end_index + 50 if wait_ms else 0, wait_ms)
        self.run_for(wait_ms + 200.0)
        told = (name for name in counts - before if name.startswith("users: "))
        return " ".join(told).replace("users: ", "")


def a_member_that_starts_alone_lets_nobody_in() -> None:
    """It knew who may do what, and it may have missed more since."""
    scene = Scene()
    scene.begin()
    away = scene.followers()[0]
    others = [member for member in scene.members if member is not away]
    assert scene.outcome("bob", away) == "read let through"
    assert scene.outcome("", away) == "NotAuthenticated"
    away.kill()
    scene.cut([away], others)
    away.start()
    scene.run_for(500)
    for name in ("bob", "", ROOT):
        assert scene.outcome(name, away) == "LeaderNotReady", name
    scene.heal()
    scene.until(lambda: scene.users_at(away) is not None, "users")
    assert scene.outcome("bob", away) == "read let through"


def a_member_whose_disk_is_empty_lets_nobody_in(entries: int = 0) -> None:
    """Not until it has what the others have, and whenever it is killed before."""
    scene = Scene()
    scene.begin()
    away = scene.followers()[0]
    others = [member for member in scene.members if member is not away]
    away.wipe()
    away.sync_ms = 100.0
    away.start()
    scene.until(lambda: bool(away.node.directory.formation.cluster_id), "knowledge of its group")
    scene.until(lambda: away.node.store.end.index >= entries - 1, "entries", step_ms=0.1)
    assert not entries or away.node.store.end.index < 15, "it has what the others have"
    assert "read let through" not in scene.outcome("", away)
    away.kill()
    scene.cut([away], others)
    away.start()
    scene.run_for(500)
    assert "read let through" not in scene.outcome("", away)
    scene.heal()
    scene.until(lambda: scene.users_at(away) is not None, "users")
    assert scene.outcome("", away) == "NotAuthenticated"


def a_member_whose_disk_is_empty_and_that_is_killed_lets_nobody_in() -> None:
    a_member_whose_disk_is_empty_lets_nobody_in(entries=10)


def a_read_that_waits_ends_when_its_right_goes() -> None:
    scene = Scene()
    scene.begin()
    member = scene.followers()[0]
    user = scene.user("bob")
    user.read(user.connect(member), 1_000, 60_000)
    scene.run_for(500)
    before = scene.cluster.trace.counts["users: Forbidden"]
    scene.order(UserOperation.REVOKE, "r0", reads=True)
    scene.run_for(1_000)
    assert scene.cluster.trace.counts["users: Forbidden"] == before + 1


def a_member_that_was_stopped_for_long_looks_before_it_serves() -> None:
    """What has come meanwhile it sees before its own timers."""
    scene = Scene()
    scene.begin()
    member = scene.followers()[0]
    user = scene.user("bob")
    connection = user.connect(member)
    member.pause(10_000)
    user.read(connection, 0)
    scene.order(UserOperation.REVOKE, "r0", reads=True)
    before = scene.cluster.trace.counts.copy()
    scene.run_for(12_000)
    told = scene.cluster.trace.counts - before
    assert told["users: LeaderNotReady"] == 1 and not told["users: read let through"]


def what_is_granted_and_revoked_counts_everywhere_within_a_second() -> None:
    scene = Scene()
    scene.begin()
    for verb, outcome in (
        (UserOperation.REVOKE, "Forbidden"),
        (UserOperation.GRANT, "read let through"),
    ):
        scene.order(verb, "r0", reads=True)
        scene.run_for(1_000)
        for member in scene.members:
            assert scene.outcome("bob", member) == outcome, (verb, member)


def a_new_leader_lets_nobody_in_before_it_knows_what_is_committed() -> None:
    """It has heard the leader before a moment ago, which may have said more to others."""
    scene = Scene()
    scene.begin()
    scene.await_leader().kill()
    leading = scene.cluster.leading
    scene.until(lambda: bool(leading()), "leader", step_ms=0.01)
    (leader,) = leading()
    assert not leader.node.raft.reads.knows_commit and scene.users_at(leader) is None
    scene.until(lambda: scene.users_at(leader) is not None, "users", within_ms=500)
    assert scene.outcome("bob", leader) == "read let through"


def who_is_left_in_a_directory_becomes_an_administrator_once(
    verb: UserOperation = UserOperation.RESET_ADMIN, *, killed: bool = False, is_cut_off: bool = False
) -> None:
    """Though it takes longer to write it than the member waits before it asks again."""
    scene = Scene()
    scene.append()
    for each in scene.members:
        each.sync_ms, each.least_sync_share = 800.0, 1.0
    member = scene.followers()[0]
    others = [each for each in scene.members if each is not member]
    if is_cut_off:
        scene.cut([member], others)
    assert scene.work.leave_at(member, UserOrder(verb, ROOT, (), (), scene.work.verifier()))
    member.start()
    for _ in range(6 if killed else 0):
        scene.run_for(450)
        member.kill()
        scene.run_for(100)
        member.start()
    scene.run_for(4_000)
    scene.heal()
    scene.make_whole()
    assert all(
        users is not None and users.rights_of(ROOT).is_admin
        for users in map(scene.users_at, scene.members)
    )


def who_was_killed_as_it_deleted_the_file_may_know_less_again() -> None:
    """Of the administrator it has been told; and alone it does not know again that this is committed."""
    scene = Scene(replace(QUIET, has_hanging_disks=True))
    scene.append()
    member = scene.followers()[0]
    order = UserOrder(UserOperation.RESET_ADMIN, ROOT, (), (), scene.work.verifier())
    assert scene.work.leave_at(member, order)
    member.start()
    file = f"{member.path}/{FIRST_ADMIN_NAME}"
    scene.until(lambda: not member.disk.exists(file), "end of the file", step_ms=0.02)
    member.kill()
    scene.cut([member], [each for each in scene.members if each is not member])
    member.start()
    scene.until(lambda: member.node.log_state.committed is not None, "knowledge of the log")
    assert not member.node.log_state.committed_state().users.is_on
    scene.heal()
    scene.make_whole()


def test_a_member_that_starts_alone_lets_nobody_in() -> None:
    a_member_that_starts_alone_lets_nobody_in()


@pytest.mark.parametrize("entries", [0, 10])
def test_a_member_whose_disk_is_empty_lets_nobody_in(entries: int) -> None:
    a_member_whose_disk_is_empty_lets_nobody_in(entries)


def test_a_read_that_waits_ends_when_its_right_goes() -> None:
    a_read_that_waits_ends_when_its_right_goes()


def test_a_member_that_was_stopped_for_long_looks_before_it_serves() -> None:
    a_member_that_was_stopped_for_long_looks_before_it_serves()


def test_what_is_granted_and_revoked_counts_everywhere_within_a_second() -> None:
    what_is_granted_and_revoked_counts_everywhere_within_a_second()


def test_a_new_leader_lets_nobody_in_before_it_knows_what_is_committed() -> None:
    a_new_leader_lets_nobody_in_before_it_knows_what_is_committed()


@pytest.mark.parametrize(
    "case",
    [
        partial(who_is_left_in_a_directory_becomes_an_administrator_once),
        partial(who_is_left_in_a_directory_becomes_an_administrator_once, UserOperation.INIT_ADMIN),
        partial(who_is_left_in_a_directory_becomes_an_administrator_once, killed=True),
        partial(who_is_left_in_a_directory_becomes_an_administrator_once, is_cut_off=True),
    ],
)
def test_who_is_left_in_a_directory_becomes_an_administrator_once(case: partial[None]) -> None:
    case()


def test_who_was_killed_as_it_deleted_the_file_may_know_less_again() -> None:
    who_was_killed_as_it_deleted_the_file_may_know_less_again()
