"""Users follow from the log on every member, and each remembers that there are some."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from quorumlog.consensus.messages import FirstAdminRequest
from quorumlog.consensus.ready import Role
from quorumlog.errors import LevelNotReported, NotLeader, UpgradeNotFinished
from quorumlog.log_state.users import User, UserOperation, UserOrder, Users, Verifier
from quorumlog.node.first_admin import ASK_EVERY_MS, FirstAdmin
from quorumlog.node.operator_orders import UsersOutcome
from quorumlog.store.disk import OsDisk
from quorumlog.store.state_files import (
    FIRST_ADMIN_NAME,
    VERSION_WITH_USERS,
    load_member,
    save_first_admin,
    save_member,
)
from quorumlog.version import IS_COMPILED
from tests.node.cell import Cell, run
from tests.node.test_retention import BUDGET, SEGMENTS, TWO, begins, fill, let_go

SECRET = bytes(range(32))
VERIFIER = Verifier(b"s" * 16, 4096, b"1" * 32, b"2" * 32)
ALICE = UserOrder(UserOperation.ADD_USER, "alice", ("admin",), (), VERIFIER)


def ordered(cell: Cell, order: UserOrder) -> UsersOutcome:
    outcomes: list[UsersOutcome] = []
    cell.leader().orders.change_users(order, SECRET, outcomes.append)
    cell.until(lambda: outcomes)
    return outcomes[0]


def users(cell: Cell) -> list[Users]:
    states = [node.log_state.committed for node in cell.nodes.values()]
    return [state.users for state in states if state is not None]


def remembers(cell: Cell) -> set[tuple[bool, bool]]:
    """(there are users, an earlier release refuses the directory) of each."""
    records = [load_member(OsDisk(), node.directory.path) for node in cell.nodes.values()]
    return {(each.users, each.version >= VERSION_WITH_USERS) for each in records if each is not None}


def test_every_member_has_them_and_remembers_it(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    fill(cell, 3)
    assert remembers(cell) == {(False, False)}
    assert isinstance(ordered(cell, ALICE), int)
    cell.step(500)
    assert len(users(cell)) == 3 and len(set(map(str, users(cell)))) == 1
    assert users(cell)[0].has_administrator and users(cell)[0].secret == SECRET
    assert remembers(cell) == {(True, True)}
    for member in ("n0", "n1", "n2"):
        cell.kill(member)
        cell.start(member)
        cell.leader()
    fill(cell, 3)
    cell.step(500)
    assert len(set(map(str, users(cell)))) == 1 and users(cell)[0].has_administrator
    cell.close()


def test_while_the_group_forms_the_reason_names_what_it_waits_for(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    told = cell.nodes["n0"].users.look(0.0)
    assert isinstance(told, str) and told.startswith("n0: forming: waits for"), told
    cell.close()


@pytest.mark.parametrize("at_once", [True, False])
def test_a_copy_of_the_file_that_is_older_is_made_up_for(tmp_path: Path, at_once: bool) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    cell.leader()
    before = load_member(OsDisk(), cell.nodes["n0"].directory.path)
    assert before is not None
    ordered(cell, ALICE)
    cell.step(500)
    cell.kill("n0")
    save_member(OsDisk(), str(tmp_path / "n0"), before)
    cell.start("n0")
    host = cell.hosts["n0"]
    host.holds_promises = not at_once  # as where another thread writes the file
    for _ in range(50):
        cell.step(10)
        run(host.promises)
    assert remembers(cell) == {(True, True)}
    cell.close()


def test_whoever_gets_a_log_without_its_first_entries_has_them_too(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=TWO, **BUDGET)
    cell.leader()
    cell.kill("n0")
    ordered(cell, ALICE)
    fill(cell, 150)
    let_go(cell)
    assert min(begins(cell)) > 0
    assert not cell.start("n0").directory.has_users
    cell.until(lambda: cell.nodes["n0"].directory.has_users)
    fill(cell, 10)
    cell.step(2000)
    assert cell.nodes["n0"].store.begin.index > 0
    assert remembers(cell) == {(True, True)}
    assert len(set(map(str, users(cell)))) == 1 and len(users(cell)) == 3
    cell.close()


def test_it_takes_a_leader_and_members_that_know_it(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    cell.leader()
    outcomes: list[UsersOutcome] = []
    cell.followers()[0].orders.change_users(ALICE, SECRET, outcomes.append)
    assert isinstance(outcomes[0], NotLeader)
    for host in cell.hosts.values():
        host.level = 6
    cell.leader().orders.change_users(ALICE, SECRET, outcomes.append)
    assert isinstance(outcomes[1], LevelNotReported | UpgradeNotFinished), outcomes
    assert "USERS entries need level 7" in str(outcomes[1])
    assert remembers(cell) == {(False, False)}
    cell.close()


REFUSED = [
    (UserOrder(UserOperation.ADD_USER, "bob"), "there would be no administrator"),
    (UserOrder(UserOperation.ADD_USER, "bob", ("none",)), "no role none"),
    (UserOrder(UserOperation.REMOVE_USER, "bob"), "no user bob"),
    (
        UserOrder(
            UserOperation.ADD_USER, "a", ("admin",), (), Verifier(b"s" * 16, 8192, b"1" * 32, b"2" * 32)
        ),
        "hashed 4096 times",
    ),
    (
        UserOrder(
            UserOperation.ADD_USER, "a", ("admin",), (), Verifier(b"s" * 17, 4096, b"1" * 32, b"2" * 32)
        ),
        "a salt of 16 bytes",
    ),
]
AFTER = [
    (ALICE, "there is a user alice"),
    (UserOrder(UserOperation.INIT_ADMIN, "bob"), "there is an administrator"),
    (UserOrder(UserOperation.REMOVE_USER, "alice"), "there would be no administrator"),
    (UserOrder(UserOperation.TAKE_ROLES, "alice", ("admin",)), "there would be no administrator"),
    (UserOrder(UserOperation.TAKE_ROLES, "alice", ("x",)), "does not have the role x"),
    (UserOrder(UserOperation.GRANT, "admin"), "always there"),
    (UserOrder(UserOperation.GRANT, "x"), "no role x"),
    (UserOrder(UserOperation.REMOVE_ROLE, "admin"), "no role admin that could be removed"),
    (UserOrder(UserOperation.REMOVE_ROLE, "r"), "alice has the role r"),
    (UserOrder(UserOperation.ADD_ROLE, "r"), "there is a role r"),
]


def test_what_is_refused_and_why(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    for order, words in REFUSED:
        assert words in str(ordered(cell, order))
    assert not users(cell)[0].is_on
    for order in (
        ALICE,
        UserOrder(UserOperation.ADD_ROLE, "r"),
        UserOrder(UserOperation.GIVE_ROLES, "alice", ("r",)),
    ):
        assert isinstance(ordered(cell, order), int), order
    for order, words in AFTER:
        assert words in str(ordered(cell, order)), order
    assert isinstance(ordered(cell, UserOrder(UserOperation.RESET_ADMIN, "bob")), int)
    assert isinstance(ordered(cell, UserOrder(UserOperation.REMOVE_USER, "alice")), int)
    assert isinstance(ordered(cell, UserOrder(UserOperation.REMOVE_ROLE, "r")), int)
    cell.close()


# ---------------------------------------------------------------- users that are not known


def knows(cell: Cell, member: str) -> bool:
    return isinstance(cell.nodes[member].users.look(cell.now_ms), Users)


def test_a_member_knows_the_users_once_it_has_what_the_first_heartbeat_calls_committed(
    tmp_path: Path,
) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    ordered(cell, ALICE)
    cell.until(lambda: all(knows(cell, member) for member in cell.nodes))
    away = cell.followers()[0].replica.member_id
    cell.kill(away)
    fill(cell, 30)
    ordered(cell, UserOrder(UserOperation.ADD_USER, "bob"))
    cell.start(away)
    cell.until(lambda: knows(cell, away))
    found = cell.nodes[away].users.look(cell.now_ms)
    assert isinstance(found, Users) and found.user("bob") is not None
    cell.close()


def test_who_leads_right_after_the_first_user_was_added_lets_nobody_in(tmp_path: Path) -> None:
    """It has heard its leader a moment ago, and not that the user is committed."""
    cell = Cell(tmp_path, storage=SEGMENTS)
    fill(cell, 3)
    first = cell.leader()
    cell.until(lambda: all(node.raft.reads.fresh_since_ms() > 0 for node in cell.nodes.values()))

    def has_added() -> bool:
        state = first.log_state.committed
        return state is not None and state.users.is_on

    cell.drops = lambda sender, to, message: sender == first.replica.member_id and has_added()
    ordered(cell, ALICE)
    cell.kill(first.replica.member_id)

    def is_not_open(member: str) -> None:
        node = cell.nodes[member]
        if node.raft.role is Role.LEADER:
            found = node.users.look(cell.now_ms)
            assert isinstance(found, str) or found.is_on, "everybody is let in"

    cell.on_turned = is_not_open
    leader = cell.leader().replica.member_id
    cell.until(lambda: knows(cell, leader))
    cell.close()


def test_who_has_not_heard_the_leader_for_ten_seconds_knows_them_no_more(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    ordered(cell, ALICE)
    cell.until(lambda: all(knows(cell, member) for member in cell.nodes))
    away = cell.followers()[0].replica.member_id
    cell.cut_off = {away}
    for _ in range(90):
        cell.step(100)
    assert knows(cell, away)
    for _ in range(30):
        cell.step(100)
    assert not knows(cell, away)
    cell.cut_off = set()
    cell.until(lambda: knows(cell, away))
    cell.close()


def test_how_long_the_leader_may_be_silent_is_an_option(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    ordered(cell, ALICE)
    cell.until(lambda: all(knows(cell, member) for member in cell.nodes))
    away = cell.followers()[0].replica.member_id
    cell.cut_off = {away}

    def known_within(may_be_old_ms: int) -> bool:
        found = cell.nodes[away].users.look(cell.now_ms, may_be_old_ms=may_be_old_ms)
        assert isinstance(found, Users) or f"for {may_be_old_ms // 1000} s" in found
        return isinstance(found, Users)

    for _ in range(20):
        cell.step(100)
    assert known_within(3000)
    for _ in range(20):
        cell.step(100)
    assert not known_within(3000) and known_within(60_000)
    for _ in range(150):
        cell.step(100)
    assert known_within(60_000)
    cell.close()


def test_a_leader_that_is_cut_off_knows_them_no_more(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    ordered(cell, ALICE)
    cell.until(lambda: all(knows(cell, member) for member in cell.nodes))
    leader = cell.leader().replica.member_id
    cell.cut_off = {leader}
    for _ in range(120):
        cell.step(100)
    assert not knows(cell, leader)
    cell.close()


def test_without_users_a_member_that_hears_nobody_is_as_it_was(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    fill(cell, 10)
    cell.until(lambda: all(knows(cell, member) for member in cell.nodes))
    away = cell.followers()[0].replica.member_id
    cell.cut_off = {away}
    for _ in range(150):
        cell.step(100)
    assert knows(cell, away)
    cell.kill(away)
    cell.start(away)
    cell.until(lambda: cell.nodes[away].log_state.committed is not None)
    assert knows(cell, away)
    cell.close()


def test_for_other_groups_a_member_waits_until_it_has_heard_what_it_may_have_missed(
    tmp_path: Path,
) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    fill(cell, 10)
    away = cell.followers()[0].replica.member_id

    def found(*, for_others: bool) -> Users | str:
        return cell.nodes[away].users.look(cell.now_ms, for_others=for_others)

    cell.until(lambda: isinstance(found(for_others=True), Users))
    assert cell.nodes[away].users.has_heard
    cell.kill(away)
    ordered(cell, ALICE)
    cell.cut_off = {away}
    cell.start(away)
    cell.until(lambda: cell.nodes[away].log_state.committed is not None)
    assert isinstance(found(for_others=False), Users) and isinstance(found(for_others=True), str)
    assert not cell.nodes[away].users.has_heard
    cell.cut_off = set()
    cell.until(lambda: isinstance(found(for_others=True), Users))
    users_then = found(for_others=True)
    assert isinstance(users_then, Users) and users_then.is_on
    cell.close()


def a_member_without_its_directory_is_never_open(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=TWO, **BUDGET)
    ordered(cell, ALICE)
    cell.until(lambda: all(knows(cell, member) for member in cell.nodes))
    away = cell.followers()[0].replica.member_id
    for entries in (0, 150):
        cell.kill(away)
        shutil.rmtree(tmp_path / away)
        fill(cell, entries)
        let_go(cell)
        cell.start(away)

        def is_open(member: str = away) -> bool:
            found = cell.nodes[member].users.look(cell.now_ms)
            return isinstance(found, Users) and not found.is_on

        def shows_all(member: str = away) -> bool:
            """Though it knows which group it is in."""
            node = cell.nodes[member]
            return bool(node.directory.formation.cluster_id) and not node.users.may_be_some

        cell.on_turned = lambda member: fail() if member == away and (is_open() or shows_all()) else None
        cell.until(lambda: knows(cell, away))
        found = cell.nodes[away].users.look(cell.now_ms)
        assert isinstance(found, Users) and found.has_administrator
        assert cell.nodes[away].directory.has_users
    cell.close()


def fail() -> None:
    raise AssertionError("a member lets everybody in that does not know better")


def test_a_member_without_its_directory_is_never_open(tmp_path: Path) -> None:
    a_member_without_its_directory_is_never_open(tmp_path)


# ---------------------------------------------------------------- the first administrator

FIRST = UserOrder(UserOperation.INIT_ADMIN, "root", (), (), VERIFIER)


def has_file(path: Path, member: str) -> bool:
    return (path / member / FIRST_ADMIN_NAME).exists()


def left_in(cell: Cell, path: Path, member: str, order: UserOrder = FIRST) -> None:
    cell.kill(member)
    save_first_admin(OsDisk(), str(path / member), order)
    cell.start(member)


def administrators(cell: Cell) -> set[tuple[str, ...]]:
    return {
        tuple(user.name for user in each.users if each.rights_of(user.name).is_admin)
        for each in users(cell)
    }


@pytest.mark.parametrize("leads", [False, True])
def test_an_administrator_that_is_left_in_a_stopped_directory_becomes_one(
    tmp_path: Path, leads: bool
) -> None:
    cell = Cell(tmp_path, 1 if leads else 3, storage=SEGMENTS)
    cell.leader()
    member = cell.leader().replica.member_id if leads else cell.followers()[0].replica.member_id
    left_in(cell, tmp_path, member)
    cell.until(lambda: not has_file(tmp_path, member))
    cell.step(500)
    assert administrators(cell) == {("root",)}
    assert not any(cell.nodes[member].problems())
    cell.close()


def killed_at_any_time_the_administrator_becomes_one_and_the_file_goes(tmp_path: Path) -> None:
    for steps in range(0, 60, 4):
        path = tmp_path / str(steps)
        cell = Cell(path, storage=SEGMENTS)
        member = (cell.leader() and cell.followers()[0]).replica.member_id
        left_in(cell, path, member)
        is_lost = steps % 8 == 0
        cell.drops = lambda sender, to, message, lost=is_lost: (
            lost and type(message) is FirstAdminRequest
        )
        for _ in range(steps):
            cell.step(20)
        cell.kill(member)
        cell.drops = lambda sender, to, message: False
        cell.leader()
        assert has_file(path, member) or administrators(cell) == {("root",)}
        cell.start(member)
        cell.until(lambda p=path, m=member: not has_file(p, m))
        assert ("root",) in administrators(cell)
        cell.close()


def test_killed_at_any_time_it_becomes_one_and_the_file_goes(tmp_path: Path) -> None:
    killed_at_any_time_the_administrator_becomes_one_and_the_file_goes(tmp_path)


def test_a_member_that_is_cut_off_keeps_the_file(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    cell.leader()
    member = cell.followers()[0].replica.member_id
    left_in(cell, tmp_path, member)
    cell.cut_off = {member}
    for _ in range(100):
        cell.step(100)
    assert has_file(tmp_path, member)
    assert "root is to become an administrator" in " ".join(cell.nodes[member].problems())
    cell.cut_off = set()
    cell.until(lambda: not has_file(tmp_path, member))
    assert ("root",) in administrators(cell)
    cell.close()


def test_of_two_that_are_left_for_one_name_each_is_written_and_no_more(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    ordered(cell, ALICE)
    members = [each.replica.member_id for each in cell.followers()]
    cell.cut_off = {*cell.nodes}
    for number, member in enumerate(members):
        verifier = Verifier(b"s" * 16, 4096, bytes([number]) * 32, b"2" * 32)
        left_in(cell, tmp_path, member, UserOrder(UserOperation.RESET_ADMIN, "root", (), (), verifier))
        cell.step(ASK_EVERY_MS / 2)  # they look by turns
    cell.cut_off = set()
    cell.until(lambda: not any(has_file(tmp_path, member) for member in members))
    cell.step(500)
    end_index = cell.leader().store.end.index
    for _ in range(20):
        cell.step(100)
    assert cell.leader().store.end.index == end_index
    cell.close()


def test_where_there_is_an_administrator_only_a_reset_makes_another(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    ordered(cell, ALICE)
    member = cell.followers()[0].replica.member_id
    left_in(cell, tmp_path, member)
    cell.until(lambda: not has_file(tmp_path, member))
    assert "there is one, which can add others" in " ".join(cell.nodes[member].problems())
    assert administrators(cell) == {("alice",)}
    left_in(cell, tmp_path, member, UserOrder(UserOperation.RESET_ADMIN, "root", (), (), VERIFIER))
    cell.until(lambda: not has_file(tmp_path, member))
    cell.step(500)
    assert administrators(cell) == {("alice", "root")}
    cell.close()


@pytest.mark.skipif(IS_COMPILED, reason="what is compiled takes no stub, and no other method")
def test_what_is_written_and_not_committed_yet_is_not_written_again() -> None:
    order = UserOrder(UserOperation.RESET_ADMIN, "root", (), (), VERIFIER)
    member, log_state, orders, known = (MagicMock() for _ in range(4))
    member.directory.first_admin.return_value, member.raft.role = order, Role.LEADER
    known.look.return_value = log_state.appended.users = Users(True)
    written = FirstAdmin(member, log_state, orders, known, lambda: SECRET)
    written.tick(0.0)
    assert orders.change_users.call_count == 1
    log_state.appended.users = Users(True, SECRET, (User("root", ("admin",), VERIFIER),))
    written.tick(1000.0)
    assert orders.change_users.call_count == 1 and not member.directory.forget_first_admin.called


def test_a_file_that_is_damaged_is_told_and_changes_nothing(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    cell.leader()
    cell.kill("n0")
    save_first_admin(OsDisk(), str(tmp_path / "n0"), FIRST)
    path = tmp_path / "n0" / FIRST_ADMIN_NAME
    path.write_bytes(path.read_bytes().replace(b"root", b"toor"))
    cell.start("n0")
    cell.step(2000)
    assert "its CRC does not match" in " ".join(cell.nodes["n0"].problems())
    assert administrators(cell) == {()}
    cell.close()
